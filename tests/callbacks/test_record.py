import numpy as np
import pytest
import torch

from flightning.algorithms.base import Client
from flightning.callbacks.record import RoundRecord


def finished(number, steps, **losses):
    client = Client(number, 10, 1.0, steps=steps, step_sizes=[0.1] * steps)
    client.losses = {name: torch.tensor(float(total)) for name, total in losses.items()}
    return client


def test_losses_are_means_over_local_steps():
    record = RoundRecord()
    record.add_client(finished(0, 2, task=2.0, prox=0.5))  # 1 and 0.25 per step
    record.add_client(finished(1, 6, task=18.0))  # 3 per step, no term
    metrics = record.metrics()
    assert metrics["round/task"] == pytest.approx((2.0 + 18.0) / 8)
    assert metrics["round/prox"] == pytest.approx(0.5 / 8)
    assert metrics["round/loss"] == pytest.approx(20.5 / 8)
    assert metrics["round/loss_std"] == pytest.approx(np.std([1.25, 3.0]))
    assert (metrics["round/loss_min"], metrics["round/loss_max"]) == (1.25, 3.0)


def test_a_client_without_a_step_does_not_divide_by_zero():
    record = RoundRecord()
    record.add_client(finished(0, 0))
    assert record.metrics()["round/clients"] == 1
    assert record.metrics()["round/lr"] == 0.0


def test_parts_of_the_model_count_as_weights():
    record = RoundRecord()
    payload = {"weights": {"w": torch.ones(2)}, "weights.norm": {"b": torch.ones(3)}, "control": torch.ones(5)}
    record.count("up", payload)
    assert record.bytes["up"] == 40
    assert record.bytes["extra_up"] == 20


def test_overhead_is_per_tensor():
    record = RoundRecord(overhead=100)
    record.count("down", {"weights": {"w": torch.ones(2)}, "control": torch.ones(1)})
    assert record.bytes["down"] == 212
    assert record.bytes["extra_down"] == 104


def test_an_empty_round_has_no_loss():
    assert "round/loss" not in RoundRecord().metrics()
