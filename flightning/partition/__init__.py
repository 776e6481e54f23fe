"""Look at a partition before training: a table of numbers and pictures."""

from __future__ import annotations

from flightning.partition.command import run

__all__ = ["run"]
