"""Start flightning as a program, the way a user does."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = [sys.executable, "-m", "flightning"]


def environment(**more):
    """One thread per process, and nothing that an outer launcher or another test has left."""
    foreign = ("LOCAL_RANK", "RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED")
    kept = {k: v for k, v in os.environ.items() if k not in foreign and not k.startswith(("SLURM_", "TORCHELASTIC_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


def call(*arguments, cwd, timeout=300, **more):
    """Run to the end."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def start(*arguments, cwd, log):
    """Start in the background, in a session of its own; what it prints goes to a file."""
    with Path(log).open("a") as file:
        return subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            cwd=cwd,
            env=environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_until(condition, process, timeout=300):
    """Wait for a condition while a process runs; False if it has ended before."""
    end = time.monotonic() + timeout
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)
    return True
