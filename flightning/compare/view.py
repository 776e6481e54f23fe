"""What a person sees while a comparison runs: one live table, or lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from flightning.compare.status import Status, format_seconds, remaining

__all__ = ["Lines", "LiveTable", "differences", "overview", "view"]

_QUIET = 10.0


def overview(statuses: Sequence[Status], jobs: int) -> str:
    """All cells in one line.

    Args:
        statuses: The cells.
        jobs: Cells that run at once.
    """
    counts = {state: sum(s.state == state for s in statuses) for state in ("finished", "failed")}
    parts = [f"{counts['finished']} of {len(statuses)} finished"]
    parts += [f"{counts['failed']} failed"] if counts["failed"] else []
    left = remaining(statuses, jobs)
    if left is not None and sum(counts.values()) < len(statuses):
        parts.append(f"about {format_seconds(left)} left")
    return ", ".join(parts)


def differences(settings: Sequence[str]) -> dict[str, str]:
    """What tells settings apart, for a narrow column.

    Example:
        >>> list(differences(["MNIST, Similarity(similarity=0.0)", "MNIST, Similarity(similarity=0.1)"]).values())
        ['0.0', '0.1']
        >>> list(differences(["MNIST, IID", "CIFAR10, IID", "CIFAR10, Shards(k=2)"]).values())
        ['MNIST, IID', 'CIFAR10, IID', 'CIFAR10, Shards(k=2)']
    """
    names = list(dict.fromkeys(settings))
    parts = [name.split(", ") for name in names]
    if len({len(p) for p in parts}) > 1:
        return {name: name for name in names}
    shown = [_distinct(column) for column in zip(*parts, strict=True)]
    return {name: ", ".join(c[i] for c in shown if c[i]) for i, name in enumerate(names)}


def _distinct(values: Sequence[str]) -> list[str]:
    """Values without the name and argument that all have in front; empty where all are the same."""
    if len(set(values)) == 1:
        return [""] * len(values)
    heads = {v.rpartition("=")[0] for v in values}
    if heads == {""} or len(heads) > 1:
        return list(values)
    return [v.rpartition("=")[2].removesuffix(")") for v in values]


def view(statuses: Sequence[Status], jobs: int) -> LiveTable | Lines:
    """The view that fits where the output goes."""
    return LiveTable(statuses, jobs) if sys.stdout.isatty() else Lines(statuses, jobs)


class Lines:
    """One line whenever a cell starts or ends, and from time to time in between.

    Args:
        statuses: The cells.
        jobs: Cells that run at once.
    """

    def __init__(self, statuses: Sequence[Status], jobs: int) -> None:
        self._statuses, self._jobs = statuses, jobs
        self._shown = {id(s): (s.state, s.round) for s in statuses}
        self._last = time.monotonic()

    def __enter__(self) -> Lines:
        old = sum(s.is_old for s in self._statuses)
        if old:
            print(f"{old} of {len(self._statuses)} cells are finished already.", flush=True)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing to close."""

    def show(self) -> None:
        """Print what is new."""
        is_time = time.monotonic() - self._last > _QUIET
        for status in self._statuses:
            state, finished = self._shown[id(status)]
            if status.state in ("starting", "interrupted", "finished", "failed") and state != status.state:
                pass
            elif not (is_time and status.round > finished):
                continue
            print(f"{status.cell.label}: {_state(status)}{_details(status)}", flush=True)
            if status.state in ("finished", "failed"):
                print(overview(self._statuses, self._jobs), flush=True)
            self._shown[id(status)] = status.state, status.round
            self._last = time.monotonic()


def _details(status: Status) -> str:
    parts = [f"round {status.round}/{status.max_rounds}"] if status.round else []
    parts += [f"accuracy {_percent(status.accuracy)}"] if status.accuracy is not None else []
    left = status.seconds_left
    parts += [f"{format_seconds(left)} left"] if status.is_running and left is not None else []
    return (", " if parts else "") + ", ".join(parts)


def _state(status: Status) -> str:
    if status.state == "failed":
        return f"failed ({status.error})"
    return "finished before" if status.is_old else status.state


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"


class LiveTable:
    """One table of all cells that follows them.

    Args:
        statuses: The cells.
        jobs: Cells that run at once.
        console: Where it is drawn; ``None`` is standard output.
    """

    def __init__(self, statuses: Sequence[Status], jobs: int, console: Any = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._statuses, self._jobs = statuses, jobs
        self._console = console or Console()
        self._live = Live(console=self._console, get_renderable=self.table, refresh_per_second=4)

    def __enter__(self) -> LiveTable:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self) -> None:
        """The table draws itself."""

    def table(self) -> Any:
        """The table as it is now, one line per cell; of more cells than the terminal has lines, those that say most."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        def line(text: str) -> Text:
            return Text(text, no_wrap=True, overflow="ellipsis")

        table = Table(pad_edge=False)
        settings = differences([s.cell.setting for s in self._statuses])
        has_settings = len(settings) > 1
        # where the terminal is narrow, texts are cut and numbers are not
        table.add_column("method")
        if has_settings:
            table.add_column("setting")
        table.add_column("seed", no_wrap=True)
        table.add_column("state")
        for name in ("round", "accuracy", "time left"):
            table.add_column(name, justify="right", no_wrap=True)
        for status in self._visible():
            setting = [line(settings[status.cell.setting])] if has_settings else []
            rounds = f"{status.round}/{status.max_rounds}" if status.max_rounds else ""
            left = format_seconds(status.seconds_left) if status.is_running else ""
            # why a cell failed is said in full below the table, at the end
            state = status.state if status.state == "failed" else _state(status)
            names = [line(status.cell.model), *setting, line(str(status.cell.seed)), line(state)]
            numbers = rounds, _percent(status.accuracy), left
            table.add_row(*names, *numbers, style=_STYLES.get(status.state))
        return Group(table, line(self._caption()))

    def _visible(self) -> list[Status]:
        room = max(self._console.size.height - 6, 5)  # four lines frame the table, one is below it
        if len(self._statuses) <= room:
            return list(self._statuses)
        order = ("training", "starting", "interrupted", "failed", "waiting", "finished")
        chosen = {id(s) for s in sorted(self._statuses, key=lambda s: order.index(s.state))[:room]}
        return [s for s in self._statuses if id(s) in chosen]

    def _caption(self) -> str:
        hidden = len(self._statuses) - len(self._visible())
        more = f"; {hidden} cells are not shown" if hidden else ""
        return overview(self._statuses, self._jobs) + more


_STYLES = {"failed": "red", "training": "bold", "starting": "bold", "waiting": "dim"}
