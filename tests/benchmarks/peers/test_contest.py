import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.__main__ import ALL, PEER_CONTESTANTS, peer_command
from benchmarks.peers.check import compare
from benchmarks.peers.environments import FOLDER, PEERS, interpreter
from benchmarks.peers.task import Task
from benchmarks.plain import WORKLOADS, initial_weights, load_flat, train
from benchmarks.workloads import Setting, measure


def test_every_peer_and_every_loop_runs_in_one_and_in_two_processes():
    layouts = {}
    for kind, processes, threads in ALL.values():
        layouts.setdefault(kind, []).append((processes, threads))
    assert set(layouts) == {"handwritten", "own nets", "fused", "lightning", *PEERS}
    assert all(found == [(1, 2), (2, 1)] for found in layouts.values())


def test_a_peer_runs_in_its_own_environment(tmp_path):
    command = peer_command(
        "FedLab 1.3.0, 2 processes x 1 thread", Path("peers"), Path("C.npz"), Setting(1, 3, False), tmp_path
    )
    assert command[0] == "peers/fedlab/bin/python"
    assert command[-7:] == ["fedlab", "C.npz", "2", "1", "3", "0", str(tmp_path)]


def test_processes_of_pfl_are_started_by_torchrun(tmp_path):
    one, two = (
        peer_command(f"pfl 0.6.0, {layout}", Path("peers"), Path("C.npz"), Setting(1, 3), tmp_path)
        for layout in ("1 process x 2 threads", "2 processes x 1 thread")
    )
    assert "torch.distributed.run" not in one
    assert two[two.index("--nproc-per-node") + 1] == "2"


def small_task():
    rng = np.random.default_rng(0)
    number, cohort = 120, WORKLOADS["C"].cohort
    sizes = rng.integers(5, 25, size=number)
    return Task(
        "C",
        inputs=rng.normal(size=(sizes.sum(), 1, 28, 28)).astype("float32"),
        targets=rng.integers(10, size=sizes.sum()),
        sizes=sizes,
        cohorts=np.stack([rng.permutation(number)[:cohort] for _ in range(2)]),
        weights=initial_weights(WORKLOADS["C"]).numpy(),
        test_inputs=rng.normal(size=(20, 1, 28, 28)).astype("float32"),
        test_targets=rng.integers(10, size=20),
    )


def by_hand(task):
    """Global weights after all cohorts, in double precision."""
    weights, clients = task.initial.double(), task.clients()
    for cohort in task.cohorts:
        total, net = 0.0, task.work.plain().double()
        for client in cohort:
            inputs, targets = clients[client]
            load_flat(net, weights)
            train(net, task.work, inputs.double(), targets, shuffle=False)
            total = total + len(targets) * np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])
        weights = task.initial.new_tensor(total / task.sizes[cohort].sum()).double()
    return weights.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("contestant", PEER_CONTESTANTS)
def test_a_peer_trains_what_it_is_given(contestant, tmp_path):
    peers = Path(os.environ.get("FLIGHTNING_PEERS", FOLDER))
    if not interpreter(peers, PEER_CONTESTANTS[contestant][0]).exists():
        pytest.skip(f"no environment below `{peers}`: python -m benchmarks.peers.environments, or FLIGHTNING_PEERS")
    task = small_task()
    task.save(tmp_path / "C.npz")
    measure(peer_command(contestant, peers, tmp_path / "C.npz", Setting(1, 2, False), tmp_path), 1, tmp_path)
    found = {"by hand": by_hand(task), contestant: np.load(tmp_path / "weights.npy")}
    assert compare(found, task.weights)[contestant] < 1e-5
