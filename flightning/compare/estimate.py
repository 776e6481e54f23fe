"""What a comparison would do and how long it would take, from a few measured steps of each method."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from flightning.compare.answers import ask
from flightning.compare.cells import Cell
from flightning.compare.folders import find_state
from flightning.compare.processes import Nurseries
from flightning.compare.status import format_seconds, side_by_side

__all__ = ["dry_run", "estimate"]

_WITHOUT_TRACES = (
    "--trainer.logger=false",
    "--trainer.enable_checkpointing=false",
    "--trainer.enable_progress_bar=false",
    "--federation.state_dir=null",
)


def estimate(measured: Mapping[str, float]) -> float:
    """Seconds that a whole run takes.

    Args:
        measured: Seconds to ``start``, of a local ``step`` and of an ``evaluation``; local ``steps`` of a round,
            ``rounds`` and ``evaluations`` of a run.

    Example:
        >>> estimate({"start": 5, "step": 0.01, "steps": 100, "rounds": 20, "evaluation": 0.5, "evaluations": 20})
        35.0
    """
    rounds = measured["rounds"] * measured["steps"] * measured["step"]
    return measured["start"] + rounds + measured["evaluations"] * measured["evaluation"]


def dry_run(cells: Sequence[Cell], jobs: int) -> int:
    """Print the cells, their commands and an estimate of the time; write nothing into the comparison's folder.

    Args:
        cells: The cells.
        jobs: Cells that would run at once.

    Returns:
        Number of methods that cannot run.
    """
    measured: dict[tuple[str, str, str], tuple[float | None, str]] = {}
    unfinished: list[float] = []
    failures = 0
    with Nurseries() as nurseries:
        for cell in cells:
            state = find_state(cell)
            key = cell.setting, cell.model, str(cell.folder.parent)
            if state != "finished" and key not in measured:
                measured[key] = _measure(cell, nurseries)
                failures += measured[key][0] is None
            seconds, error = measured.get(key, (None, "")) if state != "finished" else (0.0, "")
            unfinished += [seconds] if seconds else []
            about = f"fails ({error})" if error else "finished" if state == "finished" else format_seconds(seconds)
            print(f"{cell.label}: {about}{', of which a part is done' if state == 'interrupted' else ''}")
            place = f"--run_folder={shlex.quote(str(cell.folder))}"
            print(f"    flightning fit {shlex.join(cell.arguments)} {place}", flush=True)
    shared = f", {jobs} at once (each may be slower then)" if jobs > 1 else ""
    print(f"{len(cells)} cells, about {format_seconds(side_by_side(unfinished, jobs))}{shared}")
    return failures


def _measure(cell: Cell, nurseries: Nurseries) -> tuple[float | None, str]:
    arguments = ["fit", *cell.arguments, *_WITHOUT_TRACES]
    found, error = ask(nurseries, "flightning.compare.measure", arguments)
    return (estimate(found), "") if found else (None, error)
