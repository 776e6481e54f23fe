import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from flightning.algorithms import DSFL, DSFLMixin
from flightning.algorithms.base import FederatedMixin
from flightning.callbacks import Federation
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, make_data, make_module, run

C = 3


class Probe(DSFL):
    def on_federation_start(self):
        super().on_federation_start()
        self.sent, self.received, self.starts, self.imitated = {}, {}, {}, {}

    def on_client_start(self, download):
        who = self.round_index, self.client.id
        self.starts[who] = {n: w.clone() for n, w in self.net.state_dict().items()}
        super().on_client_start(download)
        self.received[who] = download.get("targets")
        self.imitated[who] = {n: w.clone() for n, w in self.net.state_dict().items()}

    def on_client_end(self):
        upload = super().on_client_end()
        self.sent[self.round_index, self.client.id] = upload["probabilities"].clone()
        return upload


def data(**kwargs):
    return make_data(per_class=10, **{"shared_fraction": 0.3, **kwargs})


def one_client():
    return make_data(classes=((0, 1, 2),), per_class=10, shared_fraction=0.3)


def probe(rounds=2, **kwargs):
    return run(Probe, rounds, data=kwargs.pop("data", None) or data(), **kwargs)


def entropy(p):
    return -(p * p.log()).sum(1)


def test_targets_are_the_sharpened_mean():
    module, _ = probe(1, T=0.5)
    mean = torch.stack([module.sent[0, k] for k in range(3)]).double().mean(0)
    torch.testing.assert_close(module.server_state.targets["probabilities"], (mean / 0.5).softmax(1).float())


def test_one_client_without_sharpening_gives_its_own_predictions():
    module, _ = probe(1, data=one_client(), aggregation="sa")
    torch.testing.assert_close(module.server_state.targets["probabilities"], module.sent[0, 0])


def test_infinite_temperature_is_uniform():
    module, _ = probe(1, T=math.inf)
    torch.testing.assert_close(module.server_state.targets["probabilities"], torch.full_like(module.sent[0, 0], 1 / C))


def test_small_temperature_lowers_the_entropy():
    era, _ = probe(1, T=0.1)
    sa, _ = probe(1, aggregation="sa")
    sharp, plain = (entropy(m.server_state.targets["probabilities"]) for m in (era, sa))
    assert (sharp <= plain).all()


def test_clients_keep_their_weights_and_the_server_its_own_model():
    module, _ = probe(2)
    kept = {k: v["weights"]["net.head.weight"] for k, v in module.client_states.state_dict().items()}
    assert len(kept) == 3
    assert not torch.equal(kept[0], kept[1])
    assert all(not torch.equal(w, module.global_weights["net.head.weight"]) for w in kept.values())
    starts = {who: weights["head.weight"] for who, weights in module.starts.items()}
    assert torch.equal(starts[0, 0], starts[0, 1])  # the first round starts from common weights
    assert not torch.equal(starts[1, 0], starts[1, 1])


def test_the_evaluated_model_is_the_servers():
    module, rounds = probe(1)
    assert "val/accuracy_std" not in rounds[0]
    assert torch.equal(module.net.head.weight, module.global_weights["net.head.weight"])


def descend(start, inputs, targets):
    """Weights after three steps of SGD with momentum 0.9 and rate 0.1 on soft targets."""
    net = make_module(Probe).net
    net.load_state_dict(start)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        (-(targets * F.log_softmax(net(inputs), 1)).sum(1)).mean().backward()
        optimizer.step()
    return net.state_dict()


#: All open samples in one batch, so that an epoch is a step.
ONE_BATCH = {"distill_epochs": 3, "distill_lr": 0.1}


def test_the_server_descends_on_soft_targets():
    federated = data(batch_size=64)
    module, _ = probe(1, data=federated, **ONE_BATCH)
    inputs, _ = next(federated.train_source.batches([module.open_subset(0)]))
    expected = descend(make_module(Probe).net.state_dict(), inputs, module.server_state.targets["probabilities"])
    for name, weight in expected.items():
        torch.testing.assert_close(module.global_weights[f"net.{name}"], weight, rtol=1e-4, atol=1e-6)


def test_clients_descend_on_the_targets_of_the_last_round():
    federated = data(batch_size=64)
    module, _ = probe(2, data=federated, **ONE_BATCH)
    inputs, _ = next(federated.train_source.batches([module.open_subset(0)]))
    expected = descend(module.starts[1, 2], inputs, module.received[1, 2])
    for name, weight in expected.items():
        torch.testing.assert_close(module.imitated[1, 2][name], weight, rtol=1e-4, atol=1e-6)


def test_clients_receive_the_targets_of_the_last_round():
    module, _ = probe(2)
    assert all(module.received[0, k] is None for k in range(3))
    assert all(torch.equal(module.received[1, 0], module.received[1, k]) for k in (1, 2))


class Starts(FederatedMixin):
    """What stands in the module when a client begins for the first time."""

    def on_client_start(self, download):
        super().on_client_start(download)
        weights = {n: w.detach().clone() for n, w in self.named_parameters()}
        self.starts = {self.client.id: weights, **getattr(self, "starts", {})}


class Late(DSFLMixin, Starts, Classifier): ...


def test_a_client_that_joins_late_begins_with_the_initial_weights():
    # one client per round: the others join when the server's model, which is never sent, has been trained
    module, _ = run(Late, 6, data=data(), federation=Federation(local_epochs=1, participation=1))
    initial = dict(make_module(DSFL).named_parameters())
    assert len(module.starts) > 1
    for weights in module.starts.values():
        assert all(torch.equal(weights[n], w) for n, w in initial.items())


def test_targets_of_an_earlier_round_are_not_sent():
    # no good update in the second round, so there are no new targets in the third
    class Broken(Probe):
        def on_client_end(self):
            upload = super().on_client_end()
            return {"probabilities": upload["probabilities"] * (math.nan if self.round_index == 1 else 1)}

    module, _ = run(Broken, 3, data=data())
    assert module.received[1, 0] is not None
    assert all(module.received[2, k] is None for k in range(3))


def test_imitation_leaves_batch_norm_as_it_is():
    class Statistics(DSFL):
        def _distil(self, round_index, targets):
            before = self.net.fc1[1].running_mean.clone()
            super()._distil(round_index, targets)
            self.same = [*getattr(self, "same", []), torch.equal(before, self.net.fc1[1].running_mean)]

    module, _ = run(Statistics, 2, data=data(), net=BatchNormNet)
    assert len(module.same) == 5  # the server twice, each client once
    assert all(module.same)


def test_a_frozen_layer_stays_frozen():
    class Frozen(DSFL):
        def on_client_end(self):
            self.net.fc1[1].eval()
            upload = super().on_client_end()
            self.modes = self.net.training, self.net.fc1[1].training
            return upload

    assert run(Frozen, 1, data=data(), net=BatchNormNet)[0].modes == (True, False)


def test_bytes_are_predictions_in_place_of_weights_and_the_open_set_once():
    federated = data()
    _, rounds = probe(2, data=federated, open_size=7)
    table = 3 * 4 * 7 * C
    assert [r["round/bytes_up"] for r in rounds] == [table, table]
    assert [r["round/bytes_down"] for r in rounds] == [0, table]
    assert rounds[0]["round/setup_bytes"] == 3 * len(federated.shared) * 4 * 4  # inputs of 4 floats, no labels


def test_the_open_subset_changes_and_holds_no_sample_of_a_client():
    federated = data()
    module, _ = probe(1, data=federated, open_size=5)
    first, second = module.open_subset(0), module.open_subset(1)
    assert not np.array_equal(np.sort(first), np.sort(second))
    assert not np.isin(first, np.concatenate(federated.parts)).any()


def test_partial_participation_and_batch_norm():
    federation = Federation(local_epochs=1, participation=2)
    module, _ = run(DSFL, 4, data=data(), federation=federation, net=BatchNormNet)
    assert all(torch.isfinite(w).all() for w in module.state_dict().values())


def test_resume_is_bit_identical(tmp_path):
    assert_resumes(DSFL, tmp_path, make=data)


def test_without_an_option_the_server_takes_a_fifth():
    federated = data(shared_fraction=0.0)
    run(DSFL, 1, data=federated)
    assert federated.shared_fraction == 0.2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"T": 0.0}, "`T=0.0` must be above 0: the default is 0.1"),
        ({"distill_lr": 0.0}, "`distill_lr=0.0` must be above 0"),
        ({"open_size": 0}, "`open_size=0` must be at least 1: the default is 1000"),
        ({"distill_epochs": 0}, "`distill_epochs=0` must be at least 1"),
        ({"aggregation": "mean"}, "`aggregation='mean'` must be one of `era`, `sa`"),
    ],
)
def test_refusals(option, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(DSFL, **option)
