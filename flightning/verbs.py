"""The verbs of the command line beside those of LightningCLI; each is imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

__all__ = ["VERBS", "run_verb"]

#: Verb, and the module whose ``run(argv)`` does it.
VERBS = {
    "report": "flightning.report",
    "compare": "flightning.compare",
    "dashboard": "flightning.dashboard",
    "partition": "flightning.partition",
}


def run_verb(argv: Sequence[str]) -> int | None:
    """Do what the first argument says.

    Args:
        argv: Arguments without the program's name.

    Returns:
        Exit code, or ``None`` where the first argument is none of these verbs.
    """
    if not argv or argv[0] not in VERBS:
        return None
    return int(import_module(VERBS[argv[0]]).run(list(argv[1:])))
