"""Run one peer on a task; started in the environment of the peer, where flightning is not installed.

python -m benchmarks.peers.contestant PEER TASK.npz PROCESSES THREADS ROUNDS SHUFFLE FOLDER
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.peers.task import Task
from benchmarks.plain import write_result


@dataclass(frozen=True)
class Layout:
    """How a peer is run.

    Args:
        path: File of the task.
        processes: Processes or workers that train.
        threads: Threads of each of them.
        rounds: Rounds to train.
        shuffle: Whether every local pass is in new random order.
    """

    path: Path
    processes: int
    threads: int
    rounds: int
    shuffle: bool


def main() -> None:
    """Train, evaluate and write the result."""
    peer, path, processes, threads, rounds, shuffle, folder = sys.argv[1:]
    layout = Layout(Path(path), int(processes), int(threads), int(rounds), shuffle == "1")
    torch.set_num_threads(layout.threads)
    task = Task.load(layout.path)
    # found by its name, so that what a peer sends to its workers does not belong to `__main__`
    outcome = importlib.import_module(f"benchmarks.peers.run_{peer}").run(task, layout)
    if outcome is not None:
        clock, net = outcome
        write_result(Path(folder), clock, net, task.test)


if __name__ == "__main__":
    main()
