"""The three workloads as plain PyTorch: what every contestant trains, with nothing but torch and NumPy.

The environments of the peers import this file, so it knows neither Lightning nor flightning.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


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
    """What is trained.

    Args:
        title: Said in one line.
        net: Its network in `flightning.nets`.
        plain: The same network as it is usually written down.
        cohort: Clients per round.
        batch_size: Samples per local step.
        epochs: Passes of a client over its samples in a round.
        lr: Learning rate of the local SGD.
        momentum: Its momentum; it begins anew with every client.
        rounds: Steady rounds to measure.
    """

    title: str
    net: str
    plain: type[nn.Module]
    cohort: int
    batch_size: int
    epochs: int
    lr: float
    momentum: float
    rounds: int


WORKLOADS = {
    "A": Workload(
        "Fashion-MNIST, 10 clients Dirichlet(0.5), small CNN, batch 32, 1 epoch, SGD 0.01 with momentum 0.9",
        *("SmallCNN", SmallNet, 10, 32, 1, 0.01, 0.9, 2),
    ),
    "B": Workload(
        "MNIST sorted by label, 500 clients, 100 per round, McMahan CNN, batch 32, 2 epochs, SGD 0.1",
        *("McMahanCNN", McMahanNet, 100, 32, 2, 0.1, 0.0, 1),
    ),
    "C": Workload(
        "MNIST, 1000 clients of 60 samples, 100 per round, logistic regression, batch 10, 1 epoch, SGD 0.03",
        *("LogisticRegression", Regression, 100, 10, 1, 0.03, 0.0, 12),
    ),
}


def batches(inputs: Tensor, targets: Tensor, size: int, shuffle: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Slices of one pass over the samples of a client.

    Args:
        inputs: One sample per row.
        targets: One label per row.
        size: Samples per slice; the last may have fewer.
        shuffle: Whether the pass is in new random order.
    """
    if shuffle:
        order = torch.randperm(len(targets))
        inputs, targets = inputs[order], targets[order]
    for start in range(0, len(targets), size):
        yield inputs[start : start + size], targets[start : start + size]


def train(net: nn.Module, work: Workload, inputs: Tensor, targets: Tensor, shuffle: bool = True) -> None:
    """Local steps of one client."""
    optimizer = torch.optim.SGD(net.parameters(), lr=work.lr, momentum=work.momentum)
    for _ in range(work.epochs):
        for x, y in batches(inputs, targets, work.batch_size, shuffle):
            optimizer.zero_grad()
            functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def flat_weights(net: nn.Module) -> Tensor:
    """All parameters in one vector, in their order."""
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@torch.no_grad()
def load_flat(net: nn.Module, weights: Tensor) -> None:
    """Give a network the parameters of such a vector; where its memory is in another order, it stays so."""
    parameters = list(net.parameters())
    for own, given in zip(parameters, torch.split(weights, [p.numel() for p in parameters]), strict=True):
        own.copy_(given.view(own.shape))


def initial_weights(work: Workload) -> Tensor:
    """What every contestant begins with."""
    torch.manual_seed(0)
    return flat_weights(work.plain())


@torch.no_grad()
def accuracy(net: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Share of right answers, 1000 samples at a time."""
    net.eval()
    chunks = zip(torch.split(inputs, 1000), torch.split(targets, 1000), strict=True)
    return sum(int((net(x).argmax(1) == y).sum()) for x, y in chunks) / len(targets)


class RoundClock:
    """Seconds of every round; a tick is the end of a round, the first one the start of all."""

    def __init__(self) -> None:
        #: When the first round began, in seconds of the epoch, so that another process can compare.
        self.began = 0.0
        self._ticks: list[float] = []

    def tick(self) -> None:
        """A round has ended, or the first one begins."""
        if not self._ticks:
            self.began = time.time()
        self._ticks.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        """Of each round."""
        return [float(x) for x in np.diff(self._ticks)]


def write_result(folder: Path, clock: RoundClock, net: nn.Module, test: tuple[Tensor, Tensor]) -> None:
    """Leave what a contestant took, and what it learned, where `benchmarks.workloads.measure` finds it."""
    np.save(folder / "weights.npy", flat_weights(net).numpy())
    figures = {"began": clock.began, "seconds": clock.seconds, "accuracy": accuracy(net, *test)}
    (folder / "result.json").write_text(json.dumps(figures))
