"""How far the cells of a comparison are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from flightning.compare.cells import Cell
from flightning.compare.folders import read_json

__all__ = ["Status", "format_seconds", "remaining", "side_by_side"]

State = Literal["waiting", "starting", "training", "interrupted", "finished", "failed"]


@dataclass
class Status:
    """How far one cell is.

    Args:
        cell: The cell.
        state: What it is doing.
        is_old: Whether an earlier comparison finished it.
        round: Finished rounds.
        max_rounds: Rounds of the whole run; 0 until the first has finished.
        accuracy: Accuracy after the last round.
        seconds: Time that its rounds took.
        error: Why it failed.
        wall_seconds: Time from start to end of a cell that finished here; 0 for any other.
    """

    cell: Cell
    state: State = "waiting"
    is_old: bool = False
    round: int = 0
    max_rounds: int = 0
    accuracy: float | None = None
    seconds: float = 0.0
    error: str = ""
    wall_seconds: float = 0.0
    _modified: float = 0.0
    _updated: float = field(default_factory=time.monotonic)

    def refresh(self) -> bool:
        """Read what the run has written since; whether there was something new."""
        path = self.cell.folder / "summary.json"
        try:
            modified = path.stat().st_mtime
        except FileNotFoundError:
            return False
        if modified == self._modified:
            return False
        summary = read_json(path)
        self._modified, self._updated = modified, time.monotonic()
        self.round, self.max_rounds = int(summary.get("rounds") or 0), int(summary.get("max_rounds") or 0)
        self.accuracy, self.seconds = summary.get("final_accuracy"), float(summary.get("seconds") or 0.0)
        if self.state == "starting":
            self.state = "training"
        return True

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self.state in ("starting", "training")

    @property
    def length(self) -> float:
        """Time that the whole run takes, as far as known: with its start and end where it was seen to finish."""
        return self.wall_seconds or self.seconds / self.round * self.max_rounds

    @property
    def seconds_left(self) -> float | None:
        """Time until it has finished, where a round of it was seen."""
        if self.state in ("finished", "failed"):
            return 0.0
        if not self.round:
            return None
        expected = self.seconds / self.round * (self.max_rounds - self.round)
        return max(expected - (time.monotonic() - self._updated if self.is_running else 0.0), 0.0)


def remaining(statuses: Sequence[Status], jobs: int) -> float | None:
    """Time until all cells have finished; None as long as no round was seen.

    Args:
        statuses: All cells.
        jobs: Cells that run at once.
    """
    # cells that finished here also tell the time to start, to draw pictures and to end
    seen = [s for s in statuses if s.wall_seconds] or [s for s in statuses if s.round]
    lengths = [s.length for s in seen]
    if not lengths:
        return None
    typical = sum(lengths) / len(lengths)
    left = [s.seconds_left for s in statuses]
    return side_by_side([typical if seconds is None else seconds for seconds in left], jobs)


def side_by_side(seconds: Sequence[float], jobs: int) -> float:
    """Time that runs take of which some run at once: never less than the longest of them.

    Example:
        >>> side_by_side([600.0], 4), side_by_side([10.0, 20.0, 30.0], 2)
        (600.0, 30.0)
    """
    return max([sum(seconds) / jobs, *seconds])


def format_seconds(seconds: float | None) -> str:
    """A time for people.

    Example:
        >>> format_seconds(42), format_seconds(600), format_seconds(9000), format_seconds(None)
        ('42 s', '10 min', '2 h 30 min', '')
    """
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
