"""Where the runs of a comparison are born: a process that imports PyTorch once and forks one process for each run.

``python -m flightning.compare.nursery LIFE`` reads jobs from standard input, one JSON object per line, and writes
``{"job": ..., "pid": ...}`` and later ``{"job": ..., "code": ...}`` to standard output. ``LIFE`` is the reading end of
a pipe that the comparison holds: the operating system closes it when the comparison is gone, however it ended, and
every run ends with it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import warnings
from typing import Any

__all__ = ["main"]

#: What every run needs and takes seconds to import.
_PRELOADED = ("flightning.cli", "flightning.__main__", "matplotlib.figure", "matplotlib.backends.backend_agg")
_PAUSE = 0.05


def main() -> int:
    """Start the jobs that are asked for; in the process of a job, do it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("life", type=int)
    parser.add_argument("--fresh", action="store_true", help="a new interpreter for each job in place of a fork")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    job = json.loads(options.job) if options.job else _serve(options.life, options.fresh)
    return 0 if job is None else _do(job, options.life)


def _serve(life: int, fresh: bool) -> dict[str, Any] | None:
    """Start jobs until there is no comparison any more; the job, in the process that was forked for it."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what is printed by an import is no answer
    if not fresh:
        # the only other threads are those of BLAS libraries, which look after themselves in a fork
        warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
        for name in _PRELOADED:
            importlib.import_module(name)
    running: dict[int, int] = {}
    # as long as they are kept, no new one waits for those before it in our place
    interpreters: dict[int, subprocess.Popen[bytes]] = {}
    unread = b""
    while True:
        if select.select([0], [], [], _PAUSE)[0]:
            found = os.read(0, 65536)
            if not found:
                return None
            *lines, unread = (unread + found).split(b"\n")
            for line in lines:
                job = json.loads(line)
                if fresh:
                    process = _start(line.decode(), life)
                    interpreters[pid := process.pid] = process
                elif (pid := os.fork()) == 0:
                    os.close(answers)
                    return dict(job)
                running[pid] = job["job"]
                _say(answers, job=job["job"], pid=pid)
        _tell_ended(running, interpreters, answers)


def _tell_ended(running: dict[int, int], interpreters: dict[int, subprocess.Popen[bytes]], answers: int) -> None:
    while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
        pid, code = ended[0], os.waitstatus_to_exitcode(ended[1])
        if pid in interpreters:
            interpreters.pop(pid).returncode = code
        _say(answers, job=running.pop(pid), code=code)


def _start(job: str, life: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "flightning.compare.nursery", str(life), "--job", job]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[life])


def _say(answers: int, **message: int) -> None:
    os.write(answers, json.dumps(message).encode() + b"\n")


def _do(job: dict[str, Any], life: int) -> int:
    """Be the process of a job: its own session, output, environment and arguments."""
    os.setsid()  # Ctrl-C is for the comparison, which passes it on
    _redirect(job["output"])
    os.environ.update(job["environment"])
    _end_with(life)
    sys.argv = ["flightning", *job["arguments"]]
    # Lightning starts further processes of a run by the module of the first
    sys.modules["__main__"] = importlib.import_module("flightning.__main__")
    return int(importlib.import_module(job["module"]).main())


def _redirect(output: str) -> None:
    with open(os.devnull, "rb") as nothing, open(output, "ab") as file:
        os.dup2(nothing.fileno(), 0)
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def _end_with(life: int) -> None:
    """Kill this process and all that it started as soon as the comparison is gone."""

    def wait() -> None:
        while os.read(life, 1024):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, name="end-with-comparison", daemon=True).start()


if __name__ == "__main__":
    raise SystemExit(main())
