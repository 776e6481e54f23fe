"""FedAvg in FedLab: its standalone pipeline in one process, its server and client managers in several.

In several processes the server is one more, and clients belong to processes by their number: each process gets a
range of them with about as many samples as the others, which does not balance a cohort. Every client's weights go to
the server in a message of their own, over `torch.distributed`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.client.manager import PassiveClientManager
from fedlab.core.network import DistNetwork
from fedlab.core.server.manager import SynchronousServerManager
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Aggregators, SerializationTool
from torch import Tensor, nn

from benchmarks.peers.contestant import Layout
from benchmarks.peers.task import Task, cuts
from benchmarks.plain import RoundClock, batches, load_flat


class Loader:
    """The batches of a client, iterated once per epoch."""

    def __init__(self, samples: tuple[Tensor, Tensor], batch_size: int, shuffle: bool) -> None:
        self.inputs, self.targets = samples
        self.batch_size, self.shuffle = batch_size, shuffle

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return batches(self.inputs, self.targets, self.batch_size, self.shuffle)


class Samples:
    """The data of all clients, as FedLab asks for it."""

    def __init__(self, task: Task, shuffle: bool) -> None:
        self._clients, self._shuffle = task.clients(), shuffle

    def get_dataloader(self, client: int, batch_size: int) -> Loader:
        """The batches of a client."""
        return Loader(self._clients[client], batch_size, self._shuffle)


class Trainer(SGDSerialClientTrainer):
    """Local SGD with momentum, which begins anew with each client; sends the number of samples along."""

    def prepare(self, task: Task, shuffle: bool) -> Trainer:
        """Take over data and hyperparameters."""
        self._work = task.work
        self.setup_dataset(Samples(task, shuffle))
        self.setup_optim(self._work.epochs, self._work.batch_size, self._work.lr)
        return self

    def train(self, model_parameters: Tensor, train_loader: Loader) -> list[Tensor]:
        """Train a client; its weights and its number of samples."""
        if self._work.momentum:  # FedLab keeps one optimizer for all clients, and with it their momentum
            self.optimizer = torch.optim.SGD(self._model.parameters(), self._work.lr, self._work.momentum)
        sent: list[Tensor] = super().train(model_parameters, train_loader)
        return [*sent, torch.tensor([float(len(train_loader.targets))])]


class Server(SyncServerHandler):
    """Mean over given cohorts, weighted by samples; FedLab's own is not weighted and samples by itself."""

    def follow(self, task: Task, clock: RoundClock) -> Server:
        """Take over the cohorts and a clock."""
        self._task, self._clock = task, clock
        self.num_clients = task.num_clients
        return self

    def sample_clients(self) -> list[int]:
        """A round begins."""
        self._clock.tick()
        return self._task.cohort(self.round)

    def global_update(self, buffer: list[list[Tensor]]) -> None:
        """The weighted mean."""
        mean = Aggregators.fedavg_aggregate([sent[0] for sent in buffer], [float(sent[1]) for sent in buffer])
        SerializationTool.deserialize_model(self._model, mean)


class Pipeline(StandalonePipeline):
    """Rounds without an evaluation."""

    def evaluate(self) -> None:
        """Nothing: it comes after the last round."""


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _run_processes(task: Task, layout: Layout, server: Server, net: nn.Module) -> None:
    """The server in this process, clients in others."""
    address, count = ("127.0.0.1", _free_port()), layout.processes + 1
    ends = cuts(task.sizes.tolist(), layout.processes)
    managers = []
    for rank in range(1, count):
        trainer = Trainer(net, ends[rank] - ends[rank - 1]).prepare(task, layout.shuffle)
        managers.append(PassiveClientManager(DistNetwork(address, count, rank), trainer))
        managers[-1].start()
    SynchronousServerManager(DistNetwork(address, count, 0), server, mode="GLOBAL").run()
    for manager in managers:
        manager.join()


def run(task: Task, layout: Layout) -> tuple[RoundClock, nn.Module]:
    """Time of each round, and the trained network."""
    logging.disable(logging.INFO)  # a line per message
    clock, net = RoundClock(), task.work.plain()
    load_flat(net, task.initial)
    server = Server(net, layout.rounds, task.work.cohort / task.num_clients).follow(task, clock)
    if layout.processes == 1:
        Pipeline(server, Trainer(net, task.num_clients).prepare(task, layout.shuffle)).main()
    else:
        _run_processes(task, layout, server, net)
    clock.tick()
    return clock, server.model
