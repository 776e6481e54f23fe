import pytest
import torch

from flightning.algorithms import RFedAvg, RFedAvgPlus, RFedAvgPlusMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from tests.algorithms.test_rfedavg import OneFeature
from tests.classification import make_data, make_module, run
from tests.problems import fit


class RFedAvgPlusOneFeature(RFedAvgPlusMixin, OneFeature): ...


def test_rounds_match_closed_form():
    # the feature is v itself, so every map of the aggregated model is w_t: from the second round on
    # v <- v - eta (h (v - b) + 2 lambda (v - w_t)), which is FedProx with mu = 2 lambda
    h, b, eta, lam, k, w = (1, 3, 10), (-1, 0.5, 2), 0.02, 0.8, 4, 0.0
    for t in range(3):
        mu = 2 * lam if t else 0.0
        w += sum(-(1 - (1 - eta * (hi + mu)) ** k) * hi * (w - bi) / (hi + mu) for hi, bi in zip(h, b, strict=True)) / 3
    module = RFedAvgPlusOneFeature(lambda_=lam)
    fit(module, Quadratic(), 3, Federation(local_steps=k))
    assert module.net[0].weight.item() == pytest.approx(w, rel=1e-6)


@pytest.mark.parametrize("cls", [RFedAvg, RFedAvgPlus])
def test_identical_clients_feel_nothing_at_the_global_weights(cls):
    # full batches and one step: the mean feature of the batch is the map of every other client
    data = make_data(classes=((0, 1), (0, 1)), batch_size=100)
    for part in data._parts[1:]:
        data._train.inputs[part] = data._train.inputs[data._parts[0]]
    _, rounds = run(cls, 3, data, Federation(local_steps=1), lambda_=1.0)
    assert [r["round/mmd"] for r in rounds[1:]] == pytest.approx([0, 0], abs=1e-10)


def test_maps_come_from_the_aggregated_model():
    class Checked(RFedAvgPlus):
        def after_aggregation(self):
            upload = super().after_aggregation()
            inputs = torch.cat([x for x, _ in self.client_batches()])
            hidden = self.global_weights["net.fc1.1.weight"], self.global_weights["net.fc1.1.bias"]
            expected = torch.relu(inputs @ hidden[0].T + hidden[1]).mean(dim=0)
            torch.testing.assert_close(upload["map"], expected)
            return upload

    module, _ = run(Checked, 3)
    assert len(module.server_state.maps) == 3


def test_target_is_the_mean_of_the_others():
    module = make_module(RFedAvgPlus)
    module.server_state.maps = {0: torch.tensor([1.0]), 1: torch.tensor([2.0]), 2: torch.tensor([6.0])}
    assert [module.download(k)["target"].item() for k in range(3)] == [4.0, 3.5, 1.5]


def test_target_of_the_published_code_includes_the_client_itself():
    # ((N - 1) delta^-k + delta^k) / N
    module = make_module(RFedAvgPlus, exclude_self=False)
    module.server_state.maps = {0: torch.tensor([1.0]), 1: torch.tensor([2.0]), 2: torch.tensor([6.0])}
    assert [module.download(k)["target"].item() for k in range(3)] == [3.0, 3.0, 3.0]


def test_bytes_are_one_map_each_way():
    # d = 5 floats, 3 clients; nobody needs maps after the last round, nobody has them in the first
    _, rounds = run(RFedAvgPlus, 3)
    assert [r["round/extra_bytes_up"] for r in rounds] == [60, 60, 0]
    assert [r["round/extra_bytes_down"] for r in rounds] == [0, 60, 60]


def test_only_the_next_cohort_sends_maps():
    _, rounds = run(RFedAvgPlus, 3, federation=Federation(local_steps=1, participation=1))
    assert [r["round/extra_bytes_up"] for r in rounds] == [20, 20, 0]
