"""FedAvg in pfl: its simulated backend, in one process or under `torchrun`.

Local optimizers begin anew with each client. In the first round pfl evaluates every client before and after its
training, which no setting avoids; it is part of the first round and so of the start-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.contestant import Layout
from benchmarks.peers.task import Task
from benchmarks.plain import RoundClock, batches, load_flat


class Model(nn.Module):
    """A network with the methods that pfl calls."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """What is minimised."""
        return functional.cross_entropy(self.net(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """What the first round evaluates."""
        return {"loss": Weighted(float(self.loss(inputs, targets)) * len(targets), len(targets))}


class Shuffled(PyTorchTensorDataset):
    """Samples in new random order in each pass; pfl's own keep the stored order."""

    def iter(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of a pass."""
        inputs, targets = self.raw_data
        return batches(inputs, targets, batch_size, shuffle=True)


class Clock(TrainingProcessCallback):
    """Ticks before the first round and after each."""

    def __init__(self) -> None:
        self.clock = RoundClock()

    def on_train_begin(self, *, model: Any) -> Metrics:
        """The first round begins."""
        self.clock.tick()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """A round has ended."""
        self.clock.tick()
        return False, Metrics()


def make_clients(task: Task, shuffle: bool) -> FederatedDataset:
    """The clients, drawn in the order of the cohorts.

    Processes share a cohort by the weights of its clients; pfl asks for these only where clients differ in size.
    """
    clients, kind = task.clients(), Shuffled if shuffle else PyTorchTensorDataset
    members = cycle([c for cohort in task.cohorts.tolist() for c in cohort])
    sizes = dict(enumerate(task.sizes.tolist()))
    weights = sizes if len({*sizes.values()}) > 1 else None
    return FederatedDataset(lambda client: kind(clients[client], user_id=client), lambda: next(members), weights)


def run(task: Task, layout: Layout) -> tuple[RoundClock, nn.Module] | None:
    """Time of each round and the trained network; nothing in the processes after the first."""
    work, clock = task.work, Clock()
    model = Model(work.plain())
    load_flat(model, task.initial)
    asyncio.set_event_loop(asyncio.new_event_loop())
    clients = make_clients(task, layout.shuffle)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=layout.rounds,
            evaluation_frequency=layout.rounds + 1,
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=clients, val_data=clients, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(
            model, partial(torch.optim.SGD, momentum=work.momentum), torch.optim.SGD(model.parameters(), lr=1.0)
        ),
        NNTrainHyperParams(local_batch_size=work.batch_size, local_num_epochs=work.epochs, local_learning_rate=work.lr),
        NNEvalHyperParams(local_batch_size=1000),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    is_first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    return (clock.clock, model.net) if is_first else None
