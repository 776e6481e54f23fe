"""Seconds per steady round of the three workloads, in one and two processes, against hand-written loops.

python -m benchmarks.workloads --data DATA                 # A, B and C
python -m benchmarks.workloads --data DATA --only A --rounds 8

DATA holds MNIST and Fashion-MNIST as torchvision lays them out. (A) Fashion-MNIST, 10 clients Dirichlet(0.5), small
CNN, batch 32, 1 epoch, SGD 0.01 with momentum 0.9. (B) MNIST, 500 clients sorted by label, 100 per round, McMahan CNN,
batch 32, 2 epochs, SGD 0.1. (C) logistic regression on MNIST, 1000 clients of 60 samples, 100 per round, batch 10, 1
epoch, SGD 0.03. Runs take turns, and every contestant trains the same clients for the same steps from the same weights.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn
from torch import multiprocessing as mp

from benchmarks.plain import (
    WORKLOADS,
    RoundClock,
    Workload,
    initial_weights,
    load_flat,
    train,
    write_result,
)
from flightning.algorithms import FedAvg
from flightning.callbacks import Federation
from flightning.callbacks.planning import Planner
from flightning.datamodules import MNIST, FashionMNIST, FederatedDataModule
from flightning.datamodules.partitioners import Dirichlet, Similarity
from flightning.strategies.assignment import assign


@dataclass(frozen=True)
class Setting:
    """How a workload is run.

    Args:
        threads: Threads of each process.
        rounds: Rounds to train.
        shuffle: Whether every local pass is in new random order.
        share: Part of its samples that each client keeps.
    """

    threads: int
    rounds: int
    shuffle: bool = True
    share: float = 1.0


def make_data(name: str, root: str, shuffle: bool = True, share: float = 1.0) -> FederatedDataModule:
    """The clients of a workload, set up; each keeps a part of its samples."""
    work = WORKLOADS[name]
    options: dict[str, Any] = {"root": root, "batch_size": work.batch_size, "seed": 0, "shuffle": shuffle}
    data: FederatedDataModule
    if name == "A":
        data = FashionMNIST(num_clients=10, partition=Dirichlet(alpha=0.5), **options)
    else:
        number, similarity = (500, 0.0) if name == "B" else (1000, 1.0)
        data = MNIST(num_clients=number, partition=Similarity(similarity), **options)
    data.prepare_data()
    data.setup("fit")
    data.parts = [part[: max(1, round(share * len(part)))] for part in data.parts]
    data.sizes = np.array([len(part) for part in data.parts])
    return data


def make_module(work: Workload) -> FedAvg:
    """FedAvg with the network and the local SGD of a workload, at its initial weights."""
    import flightning.nets

    class Plain(FedAvg):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=work.lr, momentum=work.momentum)

    module = Plain(net=getattr(flightning.nets, work.net), input_shape=(1, 28, 28), num_classes=10)
    load_flat(module, initial_weights(work))
    return module


def cohorts_of(work: Workload, data: FederatedDataModule, rounds: int) -> list[list[int]]:
    """The cohorts that flightning draws, for everybody."""
    planner = Planner(make_module(work), data, work.epochs, None, work.cohort, "fixed", "samples", seed=0)
    return [planner.plan(r).cohort for r in range(rounds)]


def read(data: FederatedDataModule, client: int) -> tuple[Tensor, Tensor]:
    """All samples of a client."""
    (batch,) = data.train_source.batches([data.parts[client]])
    return batch[0], batch[1]


def read_test(data: FederatedDataModule) -> tuple[Tensor, Tensor]:
    """The test set."""
    found = list(data.test_dataloader())
    return torch.cat([b[0] for b in found]), torch.cat([b[1] for b in found])


# --- hand-written -------------------------------------------------------------------------------------------------


def train_clients(
    net: nn.Module, work: Workload, clients: list[tuple[Tensor, Tensor]], shuffle: bool
) -> dict[str, Tensor]:
    """Sum of the weights of clients, each times its samples."""
    received = {n: w.detach().clone() for n, w in net.state_dict().items()}
    total = {n: torch.zeros_like(w) for n, w in received.items()}
    for inputs, targets in clients:
        net.load_state_dict(received)
        train(net, work, inputs, targets, shuffle)
        for n, w in net.state_dict().items():
            total[n].add_(w, alpha=float(len(targets)))
    net.load_state_dict(received)
    return total


def _worker(
    net: nn.Module, work: Workload, clients: dict[int, tuple[Tensor, Tensor]], pipe: Connection, shuffle: bool
) -> None:
    torch.set_num_threads(1)
    while (job := pipe.recv()) is not None:
        weights, chosen = job
        net.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()})
        sums = train_clients(net, work, [clients[c] for c in chosen], shuffle)
        pipe.send({n: w.numpy() for n, w in sums.items()})


def handwritten(
    net: nn.Module, work: Workload, data: FederatedDataModule, rounds: int, processes: int
) -> tuple[RoundClock, nn.Module]:
    """Time of each round of a plain loop, in this process or in persistent workers with the same balancing."""
    cohorts = cohorts_of(work, data, rounds)
    clients = {c: read(data, c) for c in range(data.num_clients)}
    clock = RoundClock()
    load_flat(net, initial_weights(work))
    pipes: list[Connection] = []
    if processes > 1:
        context = mp.get_context("fork")
        for _ in range(processes):
            own, theirs = context.Pipe()
            context.Process(target=_worker, args=(net, work, clients, theirs, data.shuffle), daemon=True).start()
            pipes.append(own)
    clock.tick()
    for cohort in cohorts:
        total = sum(len(clients[c][1]) for c in cohort)
        if processes == 1:
            sums = train_clients(net, work, [clients[c] for c in cohort], data.shuffle)
        else:
            ranks = assign([len(clients[c][1]) for c in cohort], processes)
            weights = {n: w.numpy() for n, w in net.state_dict().items()}
            for rank, pipe in enumerate(pipes):
                pipe.send((weights, [c for c, r in zip(cohort, ranks, strict=True) if r == rank]))
            parts = [pipe.recv() for pipe in pipes]
            sums = {n: torch.from_numpy(sum(part[n] for part in parts)) for n in weights}
        net.load_state_dict({n: w / total for n, w in sums.items()})
        clock.tick()
    for pipe in pipes:
        pipe.send(None)
    return clock, net


# --- flightning ---------------------------------------------------------------------------------------------------


class Clock(pl.Callback):
    """Time of every round, from its start to the start of the next."""

    def __init__(self) -> None:
        self.clock = RoundClock()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A round begins."""
        self.clock.tick()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The last round has ended."""
        self.clock.tick()


def flightning(
    work: Workload, data: FederatedDataModule, rounds: int, processes: int, loop: Any
) -> tuple[RoundClock, nn.Module]:
    """Time of each round, and the trained module."""
    module, clock = make_module(work), Clock()
    federation = Federation(local_epochs=work.epochs, participation=work.cohort, local_loop=loop, seed=0)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="client_parallel" if processes > 1 else "auto",
        max_epochs=rounds,
        callbacks=[federation, clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(module, datamodule=data)
    return clock.clock, module


# --- one contestant in a process of its own -----------------------------------------------------------------------

#: Contestants of the same layout: kind, processes and threads of each.
CONTESTANTS = {
    "hand-written, 1 process x 2 threads": ("handwritten", 1, 2),
    "hand-written, 2 processes x 1 thread": ("handwritten", 2, 1),
    "hand-written, nets of flightning, 1 process x 2 threads": ("own nets", 1, 2),
    "hand-written, nets of flightning, 2 processes x 1 thread": ("own nets", 2, 1),
    "flightning fused, 1 process x 2 threads": ("fused", 1, 2),
    "flightning fused, 2 processes x 1 thread": ("fused", 2, 1),
    "flightning lightning, 1 process x 2 threads": ("lightning", 1, 2),
    "flightning lightning, 2 processes x 1 thread": ("lightning", 2, 1),
}


def contest(name: str, root: str, kind: str, processes: int, setting: Setting, folder: Path) -> None:
    """Run one contestant and write what it took."""
    torch.set_num_threads(setting.threads)
    work, data = WORKLOADS[name], make_data(name, root, setting.shuffle, setting.share)
    if kind in ("handwritten", "own nets"):
        own = make_module(work).net if kind == "own nets" else work.plain()
        clock, net = handwritten(own, work, data, setting.rounds, processes)
    else:
        clock, net = flightning(work, data, setting.rounds, processes, kind)
        if int(os.environ.get("LOCAL_RANK", "0")):
            return
        data.evaluation_shard = (0, 1)
    write_result(folder, clock, net, read_test(data))


def own_command(contestant: str, name: str, root: str, setting: Setting, folder: Path) -> list[str]:
    """How to start a contestant of `CONTESTANTS`, which leaves its result in a folder."""
    kind, processes, _ = CONTESTANTS[contestant]
    options = [name, root, kind, str(processes), json.dumps(asdict(setting)), str(folder)]
    return [sys.executable, "-m", "benchmarks.workloads", "--contest", *options]


#: Seconds between two looks at the memory of a contestant, each of which takes a part of a core from it.
LOOK = 1.0


def tree_memory(pid: int) -> float:
    """Proportional set size of a process and its children in GiB; 0 where it has ended."""
    own, children = 0, []
    with suppress(OSError, StopIteration):  # ended while it was looked at
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        own = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        # a child is listed with the thread that started it
        children = [c for file in Path(f"/proc/{pid}/task").glob("*/children") for c in file.read_text().split()]
    return own / 2**20 + sum(tree_memory(int(child)) for child in children)


def measure(command: list[str], threads: int, folder: Path) -> dict[str, float]:
    """Run a contestant: median seconds per round after the first, start-up, peak memory of its processes, accuracy.

    Start-up is all that comes before a steady state: the time until the first round begins, and what that round takes
    longer than a steady one.

    Args:
        command: Starts the contestant, which calls `write_result` for `folder`.
        threads: Threads of each of its processes.
        folder: An empty folder for its result and its output.

    Raises:
        RuntimeError: If the contestant fails; with the end of its output.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    peak, log = 0.0, folder / "output.txt"
    with log.open("w") as output:
        launched = time.time()
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            peak = max(peak, tree_memory(process.pid))
            time.sleep(LOOK)
    if process.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{log.read_text()[-3000:]}")
    result = json.loads((folder / "result.json").read_text())
    first, *steady = result["seconds"]
    median = statistics.median(steady or [first])
    return {
        "seconds": median,
        "start-up": result["began"] - launched + max(0.0, first - median),
        "PSS GiB": peak,
        "accuracy": result["accuracy"],
    }


def main() -> None:
    """Print a table for each workload."""
    if sys.argv[1:2] == ["--contest"]:
        warnings.filterwarnings("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        workload, root, kind, processes, setting, folder = sys.argv[2:]
        contest(workload, root, kind, int(processes), Setting(**json.loads(setting)), Path(folder))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with MNIST and FashionMNIST")
    parser.add_argument("--only", nargs="+", choices=[*WORKLOADS], default=[*WORKLOADS])
    parser.add_argument("--contestants", nargs="+", default=[*CONTESTANTS], help="parts of their names")
    parser.add_argument("--rounds", type=int, help="steady rounds of each contestant")
    parser.add_argument("--turns", type=int, default=1, help="how often all contestants run, one after the other")
    arguments = parser.parse_args()
    chosen = [c for c in CONTESTANTS if any(part in c for part in arguments.contestants)]

    def run(name: str, contestant: str, rounds: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            setting = Setting(CONTESTANTS[contestant][2], rounds)
            command = own_command(contestant, name, arguments.data, setting, Path(folder))
            return measure(command, setting.threads, Path(folder))

    for name in arguments.only:
        rounds = 1 + (arguments.rounds or WORKLOADS[name].rounds)
        turns = [{c: run(name, c, rounds) for c in chosen} for _ in range(arguments.turns)]
        plain = statistics.median(turn[chosen[0]]["seconds"] for turn in turns)
        for contestant in chosen:
            figures = {k: statistics.median(t[contestant][k] for t in turns) for k in turns[0][contestant]}
            ratio = figures["seconds"] / plain
            shown = "  ".join(f"{key} {value:.3f}" for key, value in figures.items())
            print(f"{name}  {contestant:46s} ratio {ratio:.2f}  {shown}", flush=True)


if __name__ == "__main__":
    main()
