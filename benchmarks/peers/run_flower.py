"""FedAvg in the simulation runtime of Flower: Ray actors train, a strategy averages.

A node of the simulation has no fixed data here: Flower draws as many nodes as the cohort has clients, and each message
names the client that the node is to be, which is how a given list of cohorts comes into an API that samples by itself.
Messages are serialised on their way to the actors and back, and both ends look for new ones every 0.1 seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")  # read while they are imported

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

from benchmarks.peers.contestant import Layout
from benchmarks.peers.task import Task
from benchmarks.plain import RoundClock, Workload, load_flat, train


@cache
def _held(path: str, threads: int) -> tuple[Workload, nn.Module, list[tuple[Tensor, Tensor]]]:
    """What an actor keeps between messages: the workload, one network and the samples of all clients."""
    torch.set_num_threads(threads)
    task = Task.load(Path(path))
    return task.work, task.work.plain(), task.clients()


client_app = ClientApp()


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train the client that the message names."""
    config = message.content["config"]
    work, net, clients = _held(config["path"], config["threads"])
    inputs, targets = clients[config["client"]]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(net, work, inputs, targets, config["shuffle"])
    metrics = MetricRecord({"num-examples": len(targets)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


class GivenCohorts(FedAvg):
    """FedAvg over given cohorts.

    Args:
        task: Whose cohorts.
        layout: What the actors need to know.
    """

    def __init__(self, task: Task, layout: Layout) -> None:
        cohort, number = task.work.cohort, task.num_clients
        super().__init__(
            fraction_train=cohort / number,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=number,
        )
        self.task, self.layout = task, layout

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to as many nodes, each with the client it is to be."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message, client in zip(messages, self.task.cohort(server_round - 1), strict=True):
            told = {"client": client, "path": str(self.layout.path), "threads": self.layout.threads}
            record = ConfigRecord({**told, "shuffle": self.layout.shuffle})
            message.content = RecordDict({"arrays": arrays, "config": record})
        return messages


def run(task: Task, layout: Layout) -> tuple[RoundClock, nn.Module]:
    """Time of each round, and the trained network."""
    server_app, clock, net = ServerApp(), RoundClock(), task.work.plain()
    load_flat(net, task.initial)

    def tick(server_round: int, arrays: ArrayRecord) -> None:
        clock.tick()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        result = GivenCohorts(task, layout).start(
            grid=grid,
            initial_arrays=ArrayRecord(net.state_dict()),
            num_rounds=layout.rounds,
            evaluate_fn=tick,  # called before the first round and after each
        )
        net.load_state_dict(result.arrays.to_torch_state_dict())

    resources = {"num_cpus": layout.threads, "num_gpus": 0.0}
    cluster = {"num_cpus": layout.processes * layout.threads, "include_dashboard": False}
    run_simulation(
        server_app,
        client_app,
        num_supernodes=task.num_clients,
        backend_config={"client_resources": resources, "init_args": cluster},
    )
    return clock, net
