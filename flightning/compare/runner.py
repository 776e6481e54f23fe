"""Run the cells of a comparison, each in its own process."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flightning.compare.cells import Cell
from flightning.compare.folders import CellRecord, find_state, prepare
from flightning.compare.processes import Nurseries, Process
from flightning.compare.status import Status

__all__ = ["OUTPUT", "Runner", "num_cores", "reason"]

OUTPUT = "output.txt"
"""What a run printed, in its folder."""

_PAUSE = 0.2
_GRACE = 10.0


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Runner:
    """Start cells, watch them, and leave none behind.

    Args:
        cells: The cells.
        jobs: Cells that run at once; each gets its share of the cores where there is more than one.
        group: Name of the comparison, under which W&B shows its runs.
    """

    def __init__(self, cells: Sequence[Cell], jobs: int, group: str) -> None:
        self.jobs, self.group = jobs, group
        #: Threads of a run that starts; 0 leaves them alone.
        self.threads = num_cores() // jobs or 1 if jobs > 1 else 0
        found = {id(cell): find_state(cell) for cell in cells}
        self.statuses = [Status(cell) for cell in cells]
        for status in self.statuses:
            if found[id(status.cell)] != "new":
                status.refresh()
            if found[id(status.cell)] == "finished":
                status.state, status.is_old = "finished", True
        self._waiting = deque(s for s in self.statuses if s.state == "waiting")
        self._running: list[tuple[Status, Process, int]] = []
        self._began: dict[int, float] = {}

    @property
    def waiting(self) -> list[Cell]:
        """The cells that shall run."""
        return [s.cell for s in self._waiting]

    def run(self, nurseries: Nurseries, show: Callable[[], None]) -> None:
        """Run all cells that are not finished.

        Args:
            nurseries: Where their processes are started.
            show: Called whenever there may be something new to show.
        """
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self.jobs:
                    self._try(self._waiting.popleft(), nurseries)
                self._poll()
                show()
                if self._running:
                    time.sleep(_PAUSE)
        finally:
            nurseries.interrupt(_GRACE)
            for status, *_ in self._running:
                status.refresh()  # it may have finished a round, or all, before it ended
                status.state = "finished" if find_state(status.cell) == "finished" else "interrupted"
            if self._running:
                show()

    def _try(self, status: Status, nurseries: Nurseries) -> None:
        try:
            self._start(status, nurseries)
        except OSError as error:
            status.state, status.error = "failed", str(error)

    def _start(self, status: Status, nurseries: Nurseries) -> None:
        cell = status.cell
        state = find_state(cell)
        record = prepare(cell, state, self.threads)
        arguments = ["fit", *cell.arguments, f"--run_folder={cell.folder}"]
        arguments += ["--ckpt_path=last"] if state == "interrupted" else []
        output = cell.folder / OUTPUT
        printed = output.stat().st_size if output.exists() else 0
        environment = self.environment(cell, record)
        process = nurseries.start("flightning.cli", arguments, output, environment, record.threads)
        status.state = "starting"
        self._began[id(status)] = time.monotonic()
        self._running.append((status, process, printed))

    def environment(self, cell: Cell, record: CellRecord) -> Mapping[str, str]:
        """Names by which W&B sorts a cell into the panels of the comparison.

        Args:
            cell: The cell.
            record: What its folder says.
        """
        group = self.group, cell.setting
        return {
            # a panel that averages over a group and a job type must not average over data sets
            "WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP") or ", ".join(filter(None, group))[:128],
            "WANDB_JOB_TYPE": cell.model,
            "WANDB_NAME": cell.label,
            "WANDB_TAGS": ",".join(_tags(cell, self.group)),
            "WANDB_RUN_ID": record.wandb_id,
        }

    def _poll(self) -> None:
        for running in list(self._running):
            status, process, printed = running
            status.refresh()
            code = process.poll()
            if code is None:
                continue
            self._running.remove(running)
            status.refresh()  # the last round may have been written in between
            is_finished = code == 0 and find_state(status.cell) == "finished"
            status.state = "finished" if is_finished else "failed"
            if is_finished and not printed:  # one that went on tells nothing of a whole run
                status.wall_seconds = time.monotonic() - self._began[id(status)]
            status.error = "" if is_finished else reason(status.cell.folder / OUTPUT, code, printed)


def _tags(cell: Cell, group: str) -> list[str]:
    given = [t for t in os.environ.get("WANDB_TAGS", "").split(",") if t]
    own = ["compare", group, cell.model, *([cell.setting] if cell.setting else []), f"seed-{cell.seed}"]
    # W&B refuses tags beyond 64 characters and splits this list at commas
    return list(dict.fromkeys(t.replace(",", ";")[:64] for t in [*given, *own]))


def reason(output: Path, code: int, printed: int = 0) -> str:
    """Why a run ended, from what it printed.

    Args:
        output: File with what it printed.
        code: Exit code of its process; negative for a signal.
        printed: Bytes of the file that were printed before, by a run that was interrupted.
    """
    if code < 0:
        name = signal.Signals(-code).name
        return f"its process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    text = output.read_bytes()[printed:] if output.exists() else b""
    lines = text.decode(errors="replace").splitlines()
    lines = [line.strip() for line in lines[-200:] if line.strip()]
    said = [line for line in lines if line.startswith("error: ")]
    return (said or lines or [f"exit code {code}"])[-1].removeprefix("error: ")
