"""Seconds per steady round of the three workloads, in one and two processes, against hand-written loops.

python -m benchmarks.workloads --data DATA                 # A, B and C
python -m benchmarks.workloads --data DATA --only A --rounds 8

DATA holds MNIST and Fashion-MNIST as torchvision lays them out. (A) Fashion-MNIST, 10 clients Dirichlet(0.5), small
CNN, batch 32, 1 epoch, SGD 0.01 with momentum 0.9. (B) MNIST, 500 clients sorted by label, 100 per round, McMahan CNN,
batch 32, 2 epochs, SGD 0.1. (C) logistic regression on MNIST, 1000 clients of 60 samples, 100 per round, batch 10, 1
epoch, SGD 0.03. Runs take turns, and every contestant trains the same clients for the same steps.
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
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn
from torch import multiprocessing as mp
from torch.nn import functional

from flightning.algorithms import FedAvg
from flightning.callbacks import Federation
from flightning.datamodules import MNIST, FashionMNIST, FederatedDataModule
from flightning.datamodules.partitioners import Dirichlet, Similarity
from flightning.strategies.assignment import assign


class SmallNet(nn.Sequential):
    """Small CNN as it is usually written down: 5x5 convolutions (10, 20), a hidden layer of 50."""

    def __init__(self) -> None:
        convs = [nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*convs, nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10))


class McMahanNet(nn.Sequential):
    """CNN of the FedAvg paper as it is usually written down."""

    def __init__(self) -> None:
        first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*first, *second, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))


class Regression(nn.Sequential):
    """Logistic regression."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 10))


@dataclass(frozen=True)
class Workload:
    """What is trained."""

    net: str
    plain: type[nn.Module]
    cohort: int
    batch_size: int
    epochs: int
    lr: float
    momentum: float
    rounds: int


WORKLOADS = {
    "A": Workload("SmallCNN", SmallNet, 10, 32, 1, 0.01, 0.9, 3),
    "B": Workload("McMahanCNN", McMahanNet, 100, 32, 2, 0.1, 0.0, 3),
    "C": Workload("LogisticRegression", Regression, 100, 10, 1, 0.03, 0.0, 12),
}


def make_data(name: str, root: str) -> FederatedDataModule:
    """The clients of a workload."""
    work = WORKLOADS[name]
    options: dict[str, Any] = {"root": root, "batch_size": work.batch_size, "seed": 0}
    if name == "A":
        return FashionMNIST(num_clients=10, partition=Dirichlet(alpha=0.5), **options)
    number, similarity = (500, 0.0) if name == "B" else (1000, 1.0)
    return MNIST(num_clients=number, partition=Similarity(similarity), **options)


# --- hand-written -------------------------------------------------------------------------------------------------


def train(net: nn.Module, work: Workload, inputs: Tensor, targets: Tensor) -> None:
    """Local steps of one client."""
    optimizer = torch.optim.SGD(net.parameters(), lr=work.lr, momentum=work.momentum)
    for _ in range(work.epochs):
        order = torch.randperm(len(targets))
        inputs, targets = inputs[order], targets[order]
        for start in range(0, len(order), work.batch_size):
            optimizer.zero_grad()
            logits = net(inputs[start : start + work.batch_size])
            functional.cross_entropy(logits, targets[start : start + work.batch_size]).backward()
            optimizer.step()


def train_clients(net: nn.Module, work: Workload, clients: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Sum of the weights of clients, each times its samples."""
    received = {n: w.detach().clone() for n, w in net.state_dict().items()}
    total = {n: torch.zeros_like(w) for n, w in received.items()}
    for inputs, targets in clients:
        net.load_state_dict(received)
        train(net, work, inputs, targets)
        for n, w in net.state_dict().items():
            total[n].add_(w, alpha=float(len(targets)))
    net.load_state_dict(received)
    return total


def _worker(work: Workload, clients: dict[int, tuple[Tensor, Tensor]], pipe: Connection) -> None:
    torch.set_num_threads(1)
    net = work.plain()
    while (job := pipe.recv()) is not None:
        weights, chosen = job
        net.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()})
        sums = train_clients(net, work, [clients[c] for c in chosen])
        pipe.send({n: w.numpy() for n, w in sums.items()})


def handwritten(work: Workload, data: FederatedDataModule, rounds: int, processes: int, evaluate: Any) -> list[float]:
    """Seconds of each round of a plain loop, in this process or in persistent workers with the same balancing."""
    federation = plan_of(work, data)
    clients = {c: read(data, c) for c in range(data.num_clients)}
    torch.manual_seed(0)
    net, seconds = work.plain(), []
    pipes: list[Connection] = []
    if processes > 1:
        context = mp.get_context("fork")
        for _ in range(processes):
            own, theirs = context.Pipe()
            context.Process(target=_worker, args=(work, clients, theirs), daemon=True).start()
            pipes.append(own)
    for index in range(rounds):
        start = time.perf_counter()
        cohort = federation[index]
        total = sum(len(clients[c][1]) for c in cohort)
        if processes == 1:
            sums = train_clients(net, work, [clients[c] for c in cohort])
        else:
            ranks = assign([len(clients[c][1]) for c in cohort], processes)
            weights = {n: w.numpy() for n, w in net.state_dict().items()}
            for rank, pipe in enumerate(pipes):
                pipe.send((weights, [c for c, r in zip(cohort, ranks, strict=True) if r == rank]))
            parts = [pipe.recv() for pipe in pipes]
            sums = {n: torch.from_numpy(sum(part[n] for part in parts)) for n in weights}
        net.load_state_dict({n: w / total for n, w in sums.items()})
        seconds.append(time.perf_counter() - start)
    for pipe in pipes:
        pipe.send(None)
    evaluate(net)
    return seconds


def read(data: FederatedDataModule, client: int) -> tuple[Tensor, Tensor]:
    """All samples of a client."""
    (batch,) = data.train_source.batches([data.parts[client]])
    return batch[0], batch[1]


def plan_of(work: Workload, data: FederatedDataModule) -> list[list[int]]:
    """The cohorts of the rounds; all contestants train as many clients of the same sizes."""
    rng = np.random.default_rng(0)
    return [rng.choice(data.num_clients, work.cohort, replace=False).tolist() for _ in range(100)]


# --- flightning ---------------------------------------------------------------------------------------------------


class Clock(pl.Callback):
    """Seconds of every round, from its start to the start of the next."""

    def __init__(self) -> None:
        self._starts: list[float] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A round begins."""
        self._starts.append(time.perf_counter())

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The last round has ended."""
        self._starts.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        """Of each round."""
        return [float(x) for x in np.diff(self._starts)]


def flightning(work: Workload, data: FederatedDataModule, rounds: int, processes: int, loop: str) -> tuple[Any, Any]:
    """Seconds of each round, and the trained module."""
    import flightning.nets

    class Plain(FedAvg):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=work.lr, momentum=work.momentum)

    torch.manual_seed(0)
    module = Plain(net=getattr(flightning.nets, work.net), input_shape=(1, 28, 28), num_classes=10)
    clock = Clock()
    federation = Federation(local_epochs=work.epochs, participation=work.cohort, local_loop=loop)
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
    return clock.seconds, module


# --- one contestant in a process of its own -----------------------------------------------------------------------

CONTESTANTS = {
    "hand-written, 1 process x 2 threads": ("handwritten", 1, 2),
    "hand-written, 2 processes x 1 thread": ("handwritten", 2, 1),
    "flightning fused, 1 process x 2 threads": ("fused", 1, 2),
    "flightning fused, 2 processes x 1 thread": ("fused", 2, 1),
    "flightning lightning, 2 processes x 1 thread": ("lightning", 2, 1),
}


def contest(name: str, root: str, kind: str, processes: int, threads: int, rounds: int, target: str) -> None:
    """Run one contestant and write what it took."""
    torch.set_num_threads(threads)
    work, data = WORKLOADS[name], make_data(name, root)
    data.prepare_data()
    data.setup("fit")
    accuracy: list[float] = []

    def evaluate(net: nn.Module) -> None:
        with torch.no_grad():
            correct = [(net(x).argmax(1) == y).double().mean().item() * len(y) for x, y in data.val_dataloader()]
        accuracy.append(sum(correct) / 10_000)

    if kind == "handwritten":
        seconds = handwritten(work, data, rounds, processes, evaluate)
    else:
        seconds, module = flightning(work, data, rounds, processes, kind)
        if int(os.environ.get("LOCAL_RANK", "0")):
            return
        data.evaluation_shard = (0, 1)
        evaluate(module.eval())
    Path(target).write_text(json.dumps({"seconds": seconds, "accuracy": accuracy[0]}))


def tree_memory(pid: int) -> float:
    """Proportional set size of a process and its children in GiB."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    own = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return own / 2**20 + sum(tree_memory(int(child)) for child in children)


def measure(name: str, root: str, contestant: str, rounds: int) -> dict[str, float]:
    """Median seconds per round after the first, start-up, peak memory of the process tree, accuracy."""
    kind, processes, threads = CONTESTANTS[contestant]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        command = ["--contest", name, root, kind, str(processes), str(threads), str(rounds), str(target)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.workloads", *command], env=environment)
        peak = 0.0
        while process.poll() is None:
            with suppress(OSError, StopIteration):  # a process ended while it was looked at
                peak = max(peak, tree_memory(process.pid))
            time.sleep(0.3)
        took = time.perf_counter() - began
        result = json.loads(target.read_text())
    return {
        "seconds": statistics.median(result["seconds"][1:]),
        "start-up": took - sum(result["seconds"]),
        "PSS GiB": peak,
        "accuracy": result["accuracy"],
    }


def main() -> None:
    """Print a table for each workload."""
    if sys.argv[1:2] == ["--contest"]:
        warnings.filterwarnings("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        name, root, kind, processes, threads, rounds, target = sys.argv[2:]
        contest(name, root, kind, int(processes), int(threads), int(rounds), target)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with MNIST and FashionMNIST")
    parser.add_argument("--only", nargs="+", choices=[*WORKLOADS], default=[*WORKLOADS])
    parser.add_argument("--contestants", nargs="+", default=[*CONTESTANTS], help="parts of their names")
    parser.add_argument("--rounds", type=int, help="steady rounds of each contestant")
    parser.add_argument("--turns", type=int, default=1, help="how often all contestants run, one after the other")
    arguments = parser.parse_args()
    chosen = [c for c in CONTESTANTS if any(part in c for part in arguments.contestants)]
    for name in arguments.only:
        rounds = 1 + (arguments.rounds or WORKLOADS[name].rounds)
        turns = [{c: measure(name, arguments.data, c, rounds) for c in chosen} for _ in range(arguments.turns)]
        plain = statistics.median(turn[chosen[0]]["seconds"] for turn in turns)
        for contestant in chosen:
            figures = {k: statistics.median(t[contestant][k] for t in turns) for k in turns[0][contestant]}
            ratio = figures["seconds"] / plain
            shown = "  ".join(f"{key} {value:.3f}" for key, value in figures.items())
            print(f"{name}  {contestant:46s} ratio {ratio:.2f}  {shown}", flush=True)


if __name__ == "__main__":
    main()
