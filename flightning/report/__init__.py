"""Tables, learning curves and one self-contained page from the logs of runs."""

from __future__ import annotations

from flightning.report.command import Report, analyse, check_options, report, run
from flightning.report.runs import ReportError

__all__ = ["Report", "ReportError", "analyse", "check_options", "report", "run"]
