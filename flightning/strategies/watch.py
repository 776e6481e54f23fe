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

import torch.distributed as dist
from lightning.fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from lightning.pytorch import Trainer

from flightning.strategies import heartbeat
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
    """Look after the other processes; `start` it on all of them, and `stop` it when nothing can fail.

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
        self._names: list[str] = []
        self._beside: dict[int, int] = {}
        self._elsewhere: list[int] = []
        for rank, (machine, pid) in enumerate(places):
            self._names.append(f"rank {rank} (process {pid}{'' if machine == here else f' on {machine[0]}'})")
            if machine != here:
                self._elsewhere.append(rank)
            elif rank != self._rank and _is_alive(pid):  # a container may hide the processes beside it
                self._beside[rank] = pid
        self._heartbeat = heartbeat.Heartbeat(self._rank, self._elsewhere)
        processes.wait()
        self._trainer, self._say_stopped = trainer, say_stopped
        self._children = list(getattr(trainer.strategy.launcher, "procs", []))
        self._stopped = threading.Event()
        self._dead_before_sigterm: list[int] = []
        _lost.clear()
        _replace_observer()
        self._sigterm = SigtermListener(self._note_sigterm)

    def stop(self) -> None:
        """Look no longer."""
        self._heartbeat.stop()
        self._stopped.set()
        self._sigterm.close()

    def run(self) -> None:
        """Wait for SIGTERM or the end of another process, and end this one."""
        self._heartbeat.start()
        while not self._stopped.is_set():
            has_come = self._sigterm.wait(INTERVAL) or self._heartbeat.hears_sigterm()
            if has_come and not self._stopped.is_set():
                self._note_sigterm()
            if self._find_dead() and not self._stopped.is_set():
                self._end()
                return

    def _note_sigterm(self) -> None:
        """Let the loops of all processes end at their next step, or their exchange fail."""
        connector = self._trainer._signal_connector
        if not connector.received_sigterm:
            self._dead_before_sigterm = self._find_dead()  # a launcher ends the others where one was lost
            connector.received_sigterm = True
            for pid in self._beside.values():
                with contextlib.suppress(OSError):  # it has ended
                    os.kill(pid, signal.SIGTERM)
            self._heartbeat.tell_sigterm()

    def _end(self) -> None:
        if self._trainer.received_sigterm:  # the others have ended for the same reason
            if not self._stopped.wait(GRACE):
                self.report_lost_before_sigterm()
                self._say_stopped()
                os._exit(128 + signal.SIGTERM)
            return
        self.report()
        # an exchange in which the main thread hangs cannot be interrupted: a timer outside of Python ends it
        faulthandler.dump_traceback_later(GRACE, exit=True, file=Path(os.devnull).open("w"))  # noqa: SIM115
        _thread.interrupt_main()

    def explain(self, error: RuntimeError) -> None:
        """Wait until it is known why an exchange has failed, and name the processes that have ended."""
        is_exchange = isinstance(error, dist.DistError) or "gloo" in str(error)
        patience = heartbeat.STALE + GRACE if is_exchange and self._elsewhere else 2.0
        until = time.monotonic() + patience
        while not self._trainer.received_sigterm and not self._find_dead() and time.monotonic() < until:
            time.sleep(INTERVAL / 10)
        if not self._trainer.received_sigterm:
            self.report()

    def report(self) -> None:
        """Name the processes that have ended, once."""
        self._report(self._find_dead())

    def report_lost_before_sigterm(self) -> None:
        """Name the processes that had ended before SIGTERM came, and for which it may have come."""
        self._report(self._dead_before_sigterm)

    def _report(self, dead: list[int]) -> None:
        if dead and not has_lost_process():
            _lost.set()
            who = " and ".join(self._names[rank] for rank in dead)
            print(
                f"error: {who} ended before the run was over, so rank {self._rank} stops, too: start again with "
                "`--ckpt_path last` to go on after the last finished round.",
                file=sys.stderr,
                flush=True,
            )

    def _find_dead(self) -> list[int]:
        for child in self._children:
            child.poll()  # a child that nobody asks for stays in the table of processes
        dead = [rank for rank, pid in self._beside.items() if not _is_alive(pid)]
        return sorted([*dead, *self._heartbeat.silent()])


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
    with contextlib.suppress(OSError):  # no Linux, or it has ended just now
        # a process that has ended stays in the table until its parent asks for it
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return True


def _replace_observer() -> None:
    """Lightning's own observer would kill this process before it can say why."""
    for thread in threading.enumerate():
        if isinstance(thread, _ChildProcessObserver):
            thread._child_processes = []
