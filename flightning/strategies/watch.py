"""End a process promptly when another one of the run has ended.

A process that is killed leaves the others waiting for it: in an exchange on some backends for half an hour, and in any
case until they have trained their own clients.
"""

from __future__ import annotations

import _thread
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from lightning.fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from lightning.pytorch import Trainer

from flightning.strategies.processes import Processes

__all__ = ["Watch", "has_lost_process"]

#: Seconds between two looks, and seconds that a process has to end by itself.
INTERVAL, GRACE = 0.5, 5.0

_lost = threading.Event()


def has_lost_process() -> bool:
    """Whether this process has reported the end of another one, which is why its exchanges fail."""
    return _lost.is_set()


class Watch(threading.Thread):
    """Look after the processes on this machine; `start` it on all of them, and `stop` it when nothing can fail.

    Args:
        processes: All of them.
        trainer: The Trainer of this one.
    """

    def __init__(self, processes: Processes, trainer: Trainer) -> None:
        super().__init__(name="flightning-watch", daemon=True)
        self._rank = processes.rank
        here = socket.gethostname()
        places = processes.gather((here, os.getpid()))
        self._others = {r: pid for r, (host, pid) in enumerate(places) if host == here and r != processes.rank}
        # a container may hide the processes beside it
        self._others = {rank: pid for rank, pid in self._others.items() if _is_alive(pid)}
        self._is_expected: Callable[[], bool] = lambda: bool(trainer.received_sigterm)
        self._children = list(getattr(trainer.strategy.launcher, "procs", []))
        self._stopped = threading.Event()
        _lost.clear()
        _replace_observer()
        _replace_sigterm_handler(trainer)

    def stop(self) -> None:
        """Look no longer."""
        self._stopped.set()

    def run(self) -> None:
        """Wait for the end of another process, say so, and end this one."""
        while not self._stopped.wait(INTERVAL):
            if self._find_dead() and not self._stopped.is_set():
                self.report()
                # an exchange in which the main thread hangs cannot be interrupted: a timer outside of Python ends it
                faulthandler.dump_traceback_later(GRACE, exit=True, file=Path(os.devnull).open("w"))  # noqa: SIM115
                _thread.interrupt_main()
                return

    def report(self, patience: float = 0.0) -> None:
        """Name the processes that have ended, once.

        Args:
            patience: Seconds to wait for one, where an exchange has failed for a reason that is not known yet.
        """
        until = time.monotonic() + patience
        while not (dead := self._find_dead()) and time.monotonic() < until:
            time.sleep(INTERVAL / 10)
        if dead and not has_lost_process() and not self._is_expected():
            _lost.set()
            who = " and ".join(f"rank {rank} (process {pid})" for rank, pid in dead.items())
            print(
                f"error: {who} ended before the run was over, so rank {self._rank} stops, too: start again with "
                "`--ckpt_path last` to go on after the last finished round.",
                file=sys.stderr,
                flush=True,
            )

    def _find_dead(self) -> dict[int, int]:
        for child in self._children:
            child.poll()  # a child that nobody asks for stays in the table of processes
        return {rank: pid for rank, pid in self._others.items() if not _is_alive(pid)}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _replace_observer() -> None:
    """Lightning's own observer would kill this process before it can say why."""
    for thread in threading.enumerate():
        if isinstance(thread, _ChildProcessObserver):
            thread._child_processes = []


def _replace_sigterm_handler(trainer: Trainer) -> None:
    """Lightning's own handler begins an exchange, which hangs where a process is interrupted inside of another one."""

    def note(signum: int, frame: FrameType | None) -> None:
        connector, launcher = trainer._signal_connector, trainer.strategy.launcher
        if not connector.received_sigterm and launcher is not None:
            launcher.kill(signum)
        connector.received_sigterm = True

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, note)
