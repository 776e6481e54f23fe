"""End a process promptly when another one of the run has ended.

A process that is killed leaves the others waiting for it: in an exchange on some backends for half an hour, and in any
case until they have trained their own clients.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lightning.fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from lightning.pytorch import Trainer

from flightning.strategies.processes import Processes
from flightning.strategies.sigterm import SigtermListener

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
        say_stopped: Says that SIGTERM has stopped the run, where the main thread cannot.
    """

    def __init__(self, processes: Processes, trainer: Trainer, say_stopped: Callable[[], None]) -> None:
        super().__init__(name="flightning-watch", daemon=True)
        self._rank = processes.rank
        here = _machine()
        places = processes.gather((here, os.getpid()))
        self._others = {r: pid for r, (machine, pid) in enumerate(places) if machine == here and r != processes.rank}
        # a container may hide the processes beside it
        self._others = {rank: pid for rank, pid in self._others.items() if _is_alive(pid)}
        self._trainer, self._say_stopped = trainer, say_stopped
        self._children = list(getattr(trainer.strategy.launcher, "procs", []))
        self._stopped = threading.Event()
        _lost.clear()
        _replace_observer()
        self._sigterm = SigtermListener(self._note_sigterm)

    def stop(self) -> None:
        """Look no longer."""
        self._stopped.set()
        self._sigterm.close()

    def run(self) -> None:
        """Wait for SIGTERM or the end of another process, and end this one."""
        while not self._stopped.is_set():
            if self._sigterm.wait(INTERVAL) and not self._stopped.is_set():
                self._note_sigterm()
            if self._find_dead() and not self._stopped.is_set():
                self._end()
                return

    def _note_sigterm(self) -> None:
        """Let the loops of all processes on this machine end at their next step, or their exchange fail."""
        connector = self._trainer._signal_connector
        if not connector.received_sigterm:
            connector.received_sigterm = True
            for pid in self._others.values():
                with contextlib.suppress(OSError):  # it has ended
                    os.kill(pid, signal.SIGTERM)

    def _end(self) -> None:
        if self._trainer.received_sigterm:  # the others have ended for the same reason
            if not self._stopped.wait(GRACE):
                self._say_stopped()
                os._exit(128 + signal.SIGTERM)
            return
        self.report()
        # an exchange in which the main thread hangs cannot be interrupted: a timer outside of Python ends it
        faulthandler.dump_traceback_later(GRACE, exit=True, file=Path(os.devnull).open("w"))  # noqa: SIM115
        _thread.interrupt_main()

    def report(self, patience: float = 0.0) -> None:
        """Name the processes that have ended, once.

        Args:
            patience: Seconds to wait for one, where an exchange has failed for a reason that is not known yet.
        """
        until = time.monotonic() + patience
        while not (dead := self._find_dead()) and time.monotonic() < until and not self._trainer.received_sigterm:
            time.sleep(INTERVAL / 10)
        if dead and not has_lost_process() and not self._trainer.received_sigterm:
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


def _machine() -> tuple[str, ...]:
    """Where a process number means the same process."""
    kernel = Path("/proc/sys/kernel/random/boot_id")
    seen = os.readlink("/proc/self/ns/pid") if kernel.exists() else ""
    return socket.gethostname(), kernel.read_text() if kernel.exists() else "", seen


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
