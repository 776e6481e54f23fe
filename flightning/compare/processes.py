"""Start the runs of a comparison in processes of their own, and leave none behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, cast

__all__ = ["Nurseries", "Process"]

_PAUSE = 0.05
#: Elsewhere a fork of a process that has used the system's libraries may hang.
_CAN_FORK = sys.platform.startswith("linux")


class Process:
    """The process of one run.

    Args:
        nursery: Where it was born.
    """

    def __init__(self, nursery: _Nursery) -> None:
        self._nursery = nursery
        self.pid: int | None = None
        self.code: int | None = None

    def poll(self) -> int | None:
        """Exit code, negative for a signal, or None as long as it lives."""
        if self.code is None:
            self._nursery.listen()
        return self.code

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End it and all that it started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None and self.pid is not None:
            with suppress(ProcessLookupError):  # it has just ended by itself
                (os.killpg if number == signal.SIGKILL else os.kill)(self.pid, number)


class _Nursery:
    """The comparison's end of a nursery, see :mod:`flightning.compare.nursery`.

    Args:
        life: Reading end of the pipe that tells runs that the comparison is gone.
        threads: Threads of each run; 0 leaves them alone.
    """

    def __init__(self, life: int, threads: int, can_fork: bool) -> None:
        command = [sys.executable, "-m", "flightning.compare.nursery", str(life), *([] if can_fork else ["--fresh"])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[life],
            env={**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})},
            start_new_session=True,
        )
        self._jobs, self._answers = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        os.set_blocking(self._answers.fileno(), False)
        self._processes: dict[int, Process] = {}
        self._unread = b""
        self.is_alive = True

    def start(self, module: str, arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> Process:
        process, number = Process(self), len(self._processes)
        self._processes[number] = process
        job = {
            "job": number,
            "module": module,
            "arguments": list(arguments),
            "output": str(output),
            "environment": dict(environment),
        }
        try:
            self._jobs.write(json.dumps(job).encode() + b"\n")
            self._jobs.flush()
        except BrokenPipeError:
            self._lose()
        return process

    def listen(self) -> None:
        """Take in what the nursery has said."""
        while self.is_alive:
            try:
                found = os.read(self._answers.fileno(), 65536)
            except BlockingIOError:
                return
            if not found:
                self._lose()
                return
            *lines, self._unread = (self._unread + found).split(b"\n")
            for line in lines:
                said = json.loads(line)
                process = self._processes[said["job"]]
                process.pid, process.code = said.get("pid", process.pid), said.get("code")

    def _lose(self) -> None:
        """The nursery has ended, which nobody asked for: its runs cannot be watched any more, and end too."""
        self.is_alive = False
        code = self._process.wait()
        for process in self._processes.values():
            if process.code is None:
                if process.pid is not None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                process.code = code or -signal.SIGKILL

    def close(self) -> None:
        self.is_alive = False
        self._process.kill()
        self._process.wait()
        self._answers.close()
        with suppress(BrokenPipeError):  # a job that was never read
            self._jobs.close()


class Nurseries:
    """Processes of runs that end with this one; a context manager.

    Args:
        can_fork: Whether runs are forks of a process that has imported PyTorch already, or new interpreters.
    """

    def __init__(self, can_fork: bool = _CAN_FORK) -> None:
        self._can_fork = can_fork
        self._by_threads: dict[int, _Nursery] = {}
        self._processes: list[Process] = []
        self._life = os.pipe()

    def __enter__(self) -> Nurseries:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(
        self, module: str, arguments: Sequence[str], output: Path, environment: Mapping[str, str], threads: int = 0
    ) -> Process:
        """Start a run.

        Args:
            module: Module whose ``main`` it calls.
            arguments: Its arguments.
            output: File to which it prints.
            environment: Variables beside those of this process.
            threads: Its threads, which are settled when PyTorch is imported; 0 leaves them alone.
        """
        nursery = self._by_threads.get(threads)
        if nursery is None or not nursery.is_alive:
            nursery = self._by_threads[threads] = _Nursery(self._life[0], threads, self._can_fork)
        process = nursery.start(module, arguments, output, environment)
        self._processes.append(process)
        return process

    def interrupt(self, grace: float) -> None:
        """Let all runs end as if by Ctrl-C, which lets loggers finish, and kill those that do not.

        Args:
            grace: Seconds that they have.
        """
        for process in self._processes:
            process.interrupt()
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and any(p.pid is not None and p.poll() is None for p in self._processes):
            time.sleep(_PAUSE)
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            process.kill()
        for end in self._life:  # also ends a run that is just being born
            os.close(end)
        for nursery in self._by_threads.values():
            nursery.close()
        self._processes.clear()
        self._by_threads.clear()
