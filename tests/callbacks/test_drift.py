"""Numbers of client drift against pen and paper, and pictures of features."""

import itertools
import math
import time

import pytest
import torch
from torch import nn

from flightning.algorithms import FedAvg, FedAvgMixin
from flightning.callbacks import Drift, Federation, RoundListener
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import ConfigurationError
from tests.classification import RoundMemory, make_data, make_module, small_net
from tests.problems import QuadraticModule, fit


class FedAvgQuadratic(FedAvgMixin, QuadraticModule):
    pass


class AllUpdates(RoundListener):
    """Keep every update of every round, as the callback must not."""

    def __init__(self):
        self.rounds = [{}]

    def on_client_trained(self, module, client):
        update = {n: (w.detach() - module.global_weights[n]).clone() for n, w in module.trainable().items()}
        self.rounds[-1][client.id] = update

    def on_cohort_trained(self, module, processes):
        self.rounds.append({})


def logged(callback, rounds=1, module=None, data=None, federation=None, callbacks=()):
    memory = RoundMemory()
    module = module or FedAvgQuadratic()
    fit(
        module,
        data or Quadratic(),
        rounds,
        federation or Federation(local_steps=5),
        [callback, *callbacks],
        logger=memory,
    )
    return memory.rounds, module


def test_norms_and_cosine_of_quadratic_clients():
    # w starts at 0: after K steps, w_i = b_i (1 - a_i) with a_i = (1 - lr h_i)^K, here lr = 0.02 and K = 5
    lengths = [abs(b) * (1 - (1 - 0.02 * h) ** 5) for h, b in ((1, -1.0), (3, 0.5), (10, 2.0))]
    mean = sum(lengths) / 3
    rounds, _ = logged(Drift())
    assert rounds[1]["drift/norm"] == pytest.approx(mean, rel=1e-6)
    assert rounds[1]["drift/norm_max"] == pytest.approx(max(lengths), rel=1e-6)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in lengths) / 3)
    assert rounds[1]["drift/norm_std"] == pytest.approx(deviation, rel=1e-6)
    assert rounds[1]["drift/distance/w"] == pytest.approx(mean, rel=1e-6)
    # one client goes left, two go right: cosines -1, -1 and 1
    assert rounds[1]["drift/cosine"] == pytest.approx(-1 / 3, abs=1e-6)


def test_the_streamed_cosine_is_that_of_all_pairs():
    everything = AllUpdates()
    rounds, _ = logged(Drift(), 2, make_module(FedAvg), make_data(), Federation(seed=3), [everything])
    for finished, updates in enumerate(everything.rounds[:2], start=1):
        flat = [torch.cat([u.flatten() for u in update.values()]) for update in updates.values()]
        cosines = [torch.cosine_similarity(a, b, dim=0) for a, b in itertools.combinations(flat, 2)]
        assert rounds[finished]["drift/cosine"] == pytest.approx(float(torch.stack(cosines).mean()), abs=1e-5)
        layer = [torch.cat([u["net.head.weight"].flatten(), u["net.head.bias"]]).norm() for u in updates.values()]
        assert rounds[finished]["drift/distance/head"] == pytest.approx(float(torch.stack(layer).mean()), rel=1e-5)


def test_a_client_that_does_not_move_has_no_direction():
    # the second client is at its optimum, so that one pair is left and its cosine is -1
    data = Quadratic(curvatures=(1.0, 1.0, 1.0), centers=(-1.0, 0.0, 1.0))
    rounds, _ = logged(Drift(), data=data)
    assert rounds[1]["drift/cosine"] == pytest.approx(-1.0)
    alone, _ = logged(Drift(), data=Quadratic(curvatures=(1.0,), centers=(1.0,)))
    assert "drift/cosine" not in alone[1]


def test_rounds_in_between_are_not_measured():
    rounds, _ = logged(Drift(every=2), 4)
    assert [r for r, row in rounds.items() if "drift/norm" in row] == [2, 4]


@pytest.mark.parametrize("local_loop", ["lightning", "fused"])
def test_looking_changes_nothing(tmp_path, local_loop):
    def weights(callbacks):
        torch.manual_seed(0)
        module = make_module(FedAvg)
        federation = Federation(local_epochs=2, local_loop=local_loop, seed=1)
        fit(module, make_data(), 2, federation, callbacks, default_root_dir=tmp_path)
        return module.state_dict()

    plain, watched = weights([]), weights([Drift(tsne_every=1)])
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_pictures_of_features(tmp_path):
    drift = Drift(tsne_every=2, tsne_clients=2, tsne_samples=5)
    fit(make_module(FedAvg), make_data(), 3, Federation(), [drift], default_root_dir=tmp_path)
    pictures = sorted((tmp_path / "tsne").iterdir())
    assert [p.name for p in pictures] == ["round_0002.png"]
    assert pictures[0].read_bytes().startswith(b"\x89PNG")


def test_of_fewer_than_three_samples_there_is_no_picture(tmp_path):
    drift = Drift(tsne_every=1, tsne_clients=1, tsne_samples=2)
    fit(make_module(FedAvg), make_data(), 1, Federation(), [drift], default_root_dir=tmp_path)
    assert not (tmp_path / "tsne").exists()


def test_features_are_those_of_the_local_models(tmp_path):
    class Keep(Drift):
        def on_train_epoch_end(self, trainer, pl_module):
            self.kept = self._features

    local = {}

    class Locals(RoundListener):
        def on_client_trained(self, module, client):
            local[client.id] = {n: w.detach().clone() for n, w in module.trainable().items()}

    drift, data = Keep(tsne_every=1, tsne_clients=2, tsne_samples=4), make_data()
    fit(make_module(FedAvg), data, 1, Federation(), [drift, Locals()], default_root_dir=tmp_path)
    assert sorted(drift.kept) == [0, 1]
    inputs, targets = data.train_source.inputs, data.train_source.targets
    # 12 samples of a client: 4 evenly spaced ones are its first, 5th, 8th (7.33 rounded) and last
    own = torch.as_tensor(data.parts[1][[0, 4, 7, 11]])
    weights = local[1]
    hidden = torch.relu(inputs[own] @ weights["net.fc1.1.weight"].T + weights["net.fc1.1.bias"])
    assert torch.allclose(drift.kept[1]["features"], hidden, atol=1e-6)
    assert torch.equal(drift.kept[1]["targets"], targets[own])


def test_pictures_need_features(tmp_path):
    class Convolution(nn.Module):
        def __init__(self, *args):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4, 3))

        def forward(self, x):
            return x @ self.w

    with pytest.raises(ConfigurationError, match="Linear"):
        fit(
            FedAvg(net=Convolution, input_shape=(4,), num_classes=3),
            make_data(),
            1,
            Federation(),
            [Drift(tsne_every=1)],
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "`every=0` must be at least 1"),
        ({"tsne_every": -1}, "`tsne_every=-1` must be at least 0"),
        ({"tsne_clients": 0}, "`tsne_clients=0` must be at least 1"),
        ({"tsne_samples": 1}, "`tsne_samples=1` must be at least 2"),
    ],
)
def test_arguments_that_cannot_work(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Drift(**arguments)


def test_it_costs_little():
    """Processor time in the callback against that of the run, which other processes do not lengthen."""
    spent = [0.0]

    class Timed(Drift):
        def on_client_trained(self, module, client):
            began = time.process_time()
            super().on_client_trained(module, client)
            spent[0] += time.process_time() - began

        def on_cohort_trained(self, module, processes):
            began = time.process_time()
            super().on_cohort_trained(module, processes)
            spent[0] += time.process_time() - began

    data = make_data(per_class=40, size=64, batch_size=8)
    module = FedAvg(net=lambda i, c: small_net(i, c, hidden=(200,)), input_shape=(64,), num_classes=3)
    began = time.process_time()
    logged(Timed(), 6, module, data, Federation(local_epochs=5))
    assert 0 < spent[0] < 0.03 * (time.process_time() - began)
