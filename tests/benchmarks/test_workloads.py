import os
import sys

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.plain import RoundClock, Workload, accuracy, batches, flat_weights, load_flat, train, write_result
from benchmarks.workloads import measure, tree_memory


class TwoByTwo(nn.Linear):
    def __init__(self):
        super().__init__(2, 2, bias=False)


def test_a_pass_takes_every_sample_once_and_pairs_stay_together():
    inputs = torch.arange(10.0)[:, None]
    found = list(batches(inputs, torch.arange(10), 4, shuffle=True))
    assert [len(y) for _, y in found] == [4, 4, 2]
    assert sorted(torch.cat([y for _, y in found]).tolist()) == list(range(10))
    assert all(torch.equal(x[:, 0], y.float()) for x, y in found)


def test_without_shuffling_batches_are_in_stored_order():
    found = [y.tolist() for _, y in batches(torch.zeros(5, 1), torch.arange(5), 2, shuffle=False)]
    assert found == [[0, 1], [2, 3], [4]]


def test_flat_weights_go_back_into_a_net_with_another_order_of_memory():
    plain, other = nn.Conv2d(2, 3, 3), nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    load_flat(other, flat_weights(plain))
    assert torch.equal(other.weight, plain.weight)
    assert torch.equal(flat_weights(other), flat_weights(plain))
    assert other.weight.is_contiguous(memory_format=torch.channels_last)


def test_momentum_begins_anew_with_each_client():
    work = Workload("", "", TwoByTwo, 1, 1, 2, 0.5, 0.9, 1)
    net, ends = TwoByTwo(), []
    for _ in range(2):  # the same client twice
        load_flat(net, torch.zeros(4))
        train(net, work, torch.tensor([[1.0, 0.0]]), torch.tensor([1]), shuffle=False)
        ends.append(flat_weights(net))
    assert torch.equal(*ends)
    assert ends[0].abs().sum() > 0


def test_accuracy_is_the_share_of_right_answers():
    net = TwoByTwo()
    load_flat(net, torch.tensor([1.0, 0.0, 0.0, 1.0]))
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert accuracy(net, inputs, torch.tensor([0, 1, 1, 1])) == 0.5


def test_a_clock_counts_from_its_first_tick():
    clock = RoundClock()
    for _ in range(3):
        clock.tick()
    assert len(clock.seconds) == 2
    assert clock.began > 0


def test_a_result_holds_times_accuracy_and_weights(tmp_path):
    clock, net = RoundClock(), TwoByTwo()
    clock.tick()
    clock.tick()
    write_result(tmp_path, clock, net, (torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)))
    assert (tmp_path / "result.json").exists()
    np.testing.assert_array_equal(np.load(tmp_path / "weights.npy"), flat_weights(net).numpy())


CONTESTANT = """
import json, sys, time
from pathlib import Path
began = time.time()
time.sleep(0.5)
Path(sys.argv[1], "result.json").write_text(
    json.dumps({"began": began, "seconds": [3.0, 1.0, 2.0, 9.0], "accuracy": 0.5})
)
"""


def test_a_measurement_leaves_out_the_first_round_and_counts_what_it_took_more_as_start_up(tmp_path):
    figures = measure([sys.executable, "-c", CONTESTANT, str(tmp_path)], 1, tmp_path)
    assert figures["seconds"] == 2.0
    # the first round took 3 - 2 seconds more than a steady one, and the interpreter started before
    assert 1.0 < figures["start-up"] < 30.0
    assert figures["accuracy"] == 0.5
    assert figures["PSS GiB"] > 0


def test_a_contestant_that_fails_is_named_with_its_output(tmp_path):
    with pytest.raises(RuntimeError, match="no such peer"):
        measure([sys.executable, "-c", "raise SystemExit('no such peer')"], 1, tmp_path)


def test_memory_of_a_process_that_has_ended_is_nothing():
    assert tree_memory(os.getpid()) > 0
    assert tree_memory(2**22 + 1) == 0
