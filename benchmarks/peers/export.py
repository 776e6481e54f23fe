"""Make the task of a workload from the data module that flightning trains on."""

from __future__ import annotations

import numpy as np

from benchmarks.peers.task import Task
from benchmarks.plain import WORKLOADS, initial_weights
from benchmarks.workloads import cohorts_of, make_data, read, read_test
from flightning.datamodules import FederatedDataModule


def make_task(name: str, data: FederatedDataModule, rounds: int) -> Task:
    """What flightning trains, as arrays.

    Args:
        name: The workload.
        data: Its clients, set up.
        rounds: How many cohorts.
    """
    work = WORKLOADS[name]
    clients = [read(data, c) for c in range(data.num_clients)]
    test_inputs, test_targets = read_test(data)
    return Task(
        name=name,
        inputs=np.concatenate([inputs.numpy() for inputs, _ in clients]),
        targets=np.concatenate([targets.numpy() for _, targets in clients]),
        sizes=np.array([len(targets) for _, targets in clients]),
        cohorts=np.array(cohorts_of(work, data, rounds)),
        weights=initial_weights(work).numpy(),
        test_inputs=test_inputs.numpy(),
        test_targets=test_targets.numpy(),
    )


def export(name: str, root: str, rounds: int, share: float = 1.0) -> Task:
    """The task of a workload whose data lies below `root`; each client keeps a part of its samples."""
    return make_task(name, make_data(name, root, share=share), rounds)
