"""Run the cells of a comparison, each in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from flightning.compare.cells import Cell
from flightning.compare.folders import CellRecord, find_state, prepare
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
        found = {id(cell): find_state(cell) for cell in cells}
        self.statuses = [Status(cell) for cell in cells]
        for status in self.statuses:
            if found[id(status.cell)] != "new":
                status.refresh()
            if found[id(status.cell)] == "finished":
                status.state, status.is_old = "finished", True
        self._waiting = deque(s for s in self.statuses if s.state == "waiting")
        self._processes: list[tuple[Status, subprocess.Popen[bytes], IO[bytes]]] = []

    def run(self, show: Callable[[], None]) -> None:
        """Run all cells that are not finished.

        Args:
            show: Called whenever there may be something new to show.
        """
        try:
            while self._waiting or self._processes:
                while self._waiting and len(self._processes) < self.jobs:
                    self._start(self._waiting.popleft())
                self._poll()
                show()
                if self._processes:
                    time.sleep(_PAUSE)
        finally:
            self._stop()

    def _start(self, status: Status) -> None:
        cell = status.cell
        state = find_state(cell)
        record = prepare(cell, state, num_cores() // self.jobs or 1 if self.jobs > 1 else 0)
        arguments = ["fit", *cell.arguments, f"--run_folder={cell.folder}"]
        arguments += ["--ckpt_path=last"] if state == "interrupted" else []
        output = (cell.folder / OUTPUT).open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", "flightning.compare.child", *arguments],
            stdin=subprocess.PIPE,  # ends with this process, and the run with it
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self._environment(cell, record),
            start_new_session=True,  # Ctrl-C is for the comparison, which passes it on
        )
        status.state = "starting"
        self._processes.append((status, process, output))

    def _environment(self, cell: Cell, record: CellRecord) -> Mapping[str, str]:
        names = {
            "WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP") or self.group,
            "WANDB_JOB_TYPE": cell.model,
            "WANDB_NAME": cell.label,
            "WANDB_TAGS": ",".join(_tags(cell, self.group)),
            "WANDB_RUN_ID": record.wandb_id,
        }
        threads = {"OMP_NUM_THREADS": str(record.threads)} if record.threads else {}
        return {**os.environ, **names, **threads}

    def _poll(self) -> None:
        for status, process, output in list(self._processes):
            status.refresh()
            code = process.poll()
            if code is None:
                continue
            _close(process, output)
            self._processes.remove((status, process, output))
            is_finished = code == 0 and find_state(status.cell) == "finished"
            status.state = "finished" if is_finished else "failed"
            status.error = "" if is_finished else reason(status.cell.folder / OUTPUT, code)

    def _stop(self) -> None:
        """Let running cells end as if by Ctrl-C, which lets loggers finish, and kill those that do not."""
        for _, process, _ in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _GRACE
        try:
            while time.monotonic() < deadline and any(p.poll() is None for _, p, _ in self._processes):
                time.sleep(_PAUSE / 2)
        finally:  # a second Ctrl-C must not wait
            for status, process, output in self._processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                _close(process, output)
                status.state = "waiting"
            self._processes.clear()


def _close(process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    output.close()
    if process.stdin is not None:
        process.stdin.close()


def _tags(cell: Cell, group: str) -> list[str]:
    given = [t for t in os.environ.get("WANDB_TAGS", "").split(",") if t]
    own = ["compare", group, cell.model, *([cell.setting] if cell.setting else []), f"seed-{cell.seed}"]
    # W&B refuses tags beyond 64 characters and splits this list at commas
    return list(dict.fromkeys(t.replace(",", ";")[:64] for t in [*given, *own]))


def reason(output: Path, code: int) -> str:
    """Why a run ended, from what it printed.

    Args:
        output: File with what it printed.
        code: Exit code of its process; negative for a signal.
    """
    if code < 0:
        name = signal.Signals(-code).name
        return f"its process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    lines = [line.strip() for line in lines[-200:] if line.strip()]
    said = [line for line in lines if line.startswith("error: ")]
    return (said or lines or [f"exit code {code}"])[-1].removeprefix("error: ")
