import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from flightning.algorithms import FedAvg, FedProxMixin, RFedAvg, RFedAvgMixin, RFedAvgPlus
from flightning.callbacks import Federation
from flightning.classifier import Classifier
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import num_bytes
from tests.classification import (
    BatchNormNet,
    assert_resumes,
    assert_same,
    make_data,
    make_module,
    run,
    small_net,
    weights_of,
)
from tests.problems import fit


class OneFeature(LightningModule):
    """Loss h/2 (v - b)^2 where v is both the only feature and the output: the classifier multiplies by a fixed 1."""

    def __init__(self, lr=0.02):
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(1, 1, bias=False, dtype=torch.float64) for _ in range(2)))
        nn.init.zeros_(self.net[0].weight)
        nn.init.ones_(self.net[1].weight).requires_grad_(False)
        self.lr = lr

    def split_batch(self, batch):
        return torch.ones_like(batch[0][:, :1]), batch[1]

    def training_step(self, batch, batch_idx):
        h, b = batch[0].unbind(1)
        return (h / 2 * (self.net(self.split_batch(batch)[0])[:, 0] - b) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=self.lr)


class RFedAvgOneFeature(RFedAvgMixin, OneFeature): ...


def test_rounds_match_closed_form():
    # v <- v - eta (h (v - b) + 2 lambda (v - mean of the others' maps)); a map is the v that its client ended with
    h, b, eta, lam, k, w, maps = (1, 3, 10), (-1, 0.5, 2), 0.02, 0.8, 4, 0.0, None
    for _ in range(3):
        ended = []
        for i in range(3):
            v, others = w, [m for j, m in enumerate(maps or []) if j != i]
            for _ in range(k):
                pull = 2 * lam * (v - sum(others) / 2) if others else 0.0
                v -= eta * (h[i] * (v - b[i]) + pull)
            ended.append(v)
        w, maps = sum(ended) / 3, ended
    module = RFedAvgOneFeature(lambda_=lam)
    fit(module, Quadratic(), 3, Federation(local_steps=k))
    assert module.net[0].weight.item() == pytest.approx(w, rel=1e-6)  # maps are sent in single precision
    assert [m.item() for m in module.server_state.maps.values()] == pytest.approx(maps, rel=1e-6)


@pytest.mark.parametrize("cls", [RFedAvg, RFedAvgPlus])
class TestBoth:
    def test_lambda_zero_is_fedavg_bit_for_bit(self, cls):
        module, rounds = run(cls, lambda_=0.0)
        assert_same(module, run(FedAvg)[0])
        assert {r[f"round/extra_bytes_{way}"] for r in rounds for way in ("up", "down")} == {0}

    def test_first_round_has_no_term(self, cls):
        module, rounds = run(cls, 1, lambda_=10.0)
        assert_same(module, run(FedAvg, 1)[0])
        assert "round/mmd" not in rounds[0]

    def test_later_rounds_have_one(self, cls):
        _, rounds = run(cls, 2, lambda_=0.1)
        assert rounds[1]["round/mmd"] > 0

    def test_single_client_has_no_term(self, cls):
        data = {"classes": ((0, 1, 2),)}
        module, _ = run(cls, 3, make_data(**data), lambda_=10.0)
        assert_same(module, run(FedAvg, 3, make_data(**data))[0])

    def test_maps_leave_batch_norm_alone(self, cls):
        # a pull of 1e-30 is lost in rounding, so any difference would come from computing the maps
        assert_same(run(cls, net=BatchNormNet, lambda_=1e-30)[0], run(FedAvg, net=BatchNormNet)[0])

    def test_maps_do_not_alias_live_weights_and_are_means_over_all_samples(self, cls):
        module, _ = run(cls, 2, lambda_=0.01)
        assert sorted(module.server_state.maps) == [0, 1, 2]
        assert all(m.shape == (5,) and not m.requires_grad for m in module.server_state.maps.values())

    def test_noise_has_the_declared_deviation(self, cls):
        # features of 3000 units: the deviation of the noise is known to 3000^-1/2, about 2 %
        wide = {"net": lambda *shape: small_net(*shape, hidden=(3000,)), "lambda_": 1e-12}
        clean, noisy = (run(cls, 2, federation=Federation(local_steps=1), **wide, **o)[0] for o in ({}, {"sigma": 6.0}))
        difference = noisy.server_state.maps[1] - clean.server_state.maps[1]
        assert difference.std().item() == pytest.approx(6.0 / 4, rel=0.07)  # batches of 4
        difference = run(cls, 2, federation=Federation(local_steps=1), **wide, sigma=6.0, L=100)[0]
        assert (difference.server_state.maps[1] - clean.server_state.maps[1]).std().item() == pytest.approx(
            0.06, rel=0.07
        )

    def test_noise_is_reproducible_and_differs_between_clients(self, cls):
        a, b = (run(cls, 3, lambda_=0.01, sigma=1.0)[0] for _ in range(2))
        assert_same(a, b)
        noise = [run(cls, 2, lambda_=1e-30, sigma=s)[0].server_state.maps for s in (0.0, 1.0)]
        assert not torch.allclose(noise[1][0] - noise[0][0], noise[1][1] - noise[0][1], atol=1e-2)

    def test_clipping_bounds_the_map_and_scales_the_noise(self, cls):
        module, _ = run(cls, 2, lambda_=0.01, sigma=1e-9, C_0=0.25)
        assert max(m.norm().item() for m in module.server_state.maps.values()) <= 0.25 + 1e-6
        wide = {"net": lambda *shape: small_net(*shape, hidden=(3000,)), "lambda_": 1e-12, "C_0": 0.25}
        clean, noisy = (run(cls, 2, federation=Federation(local_steps=1), **wide, sigma=s)[0] for s in (1e-9, 6.0))
        difference = noisy.server_state.maps[1] - clean.server_state.maps[1]
        assert difference.std().item() == pytest.approx(6.0 * 0.25 / 4, rel=0.07)  # batches of 4

    def test_noise_differs_between_rounds(self, cls):
        class Still(cls):
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.0)

        quiet, noisy = ([run(Still, n, lambda_=0.01, sigma=s)[0].server_state.maps[0] for n in (2, 3)] for s in (0, 1))
        assert torch.equal(*quiet)
        assert not torch.allclose(*noisy, atol=1e-2)

    def test_clients_that_are_not_sampled_keep_their_map(self, cls):
        federation = {"local_steps": 1, "participation": 1}
        stale, _ = run(cls, 8, federation=Federation(**federation), lambda_=0.01)
        fresh, _ = run(cls, 8, federation=Federation(**federation), lambda_=0.01, keep_stale=False)
        assert len(stale.server_state.maps) == 3
        assert len(fresh.server_state.maps) == 1

    def test_resumes_in_the_middle(self, cls, tmp_path):
        partial = lambda: Federation(local_epochs=1, participation=2)  # noqa: E731
        assert_resumes(cls, tmp_path, partial, lambda_=0.1, sigma=0.1)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"lambda_": -1}, r"`lambda_=-1` must be at least 0: use 0 for plain FedAvg"),
            ({"sigma": -1}, r"`sigma=-1` must be at least 0: use 0 for maps without noise"),
            ({"sigma": 1, "C_0": 0}, r"`C_0=0` must be above 0: leave it out for its default"),
            ({"L": 5}, r"`L=5` belongs to the noise, but `sigma` is 0: set `sigma` too"),
        ],
    )
    def test_refusals(self, cls, options, message):
        with pytest.raises(ConfigurationError, match=message):
            make_module(cls, **options)


def with_maps(cls, maps, **kwargs):
    module = make_module(cls, **kwargs)
    module.server_state.maps = maps
    return module


def test_gradient_is_that_of_the_plus_variant_for_the_same_maps():
    maps = {k: torch.randn(5, generator=torch.Generator().manual_seed(k)) for k in range(3)}
    one, two = (run(with_maps(cls, maps, lambda_=0.5), 1)[0] for cls in (RFedAvg, RFedAvgPlus))
    assert_same(one, two)
    assert not torch.equal(weights_of(one)["net.fc1.1.weight"], weights_of(run(FedAvg, 1)[0])["net.fc1.1.weight"])


def test_term_is_the_mean_of_squared_distances_to_the_others():
    class Checked(RFedAvg):
        def regularization(self, batch):
            terms = super().regularization(batch)
            mine = self.penultimate.mean(dim=0)
            others = [m for k, m in self.server_state.maps.items() if k != self.client.id]
            expected = sum((mine - m).square().sum() for m in others) / len(others)
            torch.testing.assert_close(terms["mmd"], 0.5 * expected)
            return terms

    maps = {k: torch.randn(5, generator=torch.Generator().manual_seed(k)) for k in range(3)}
    run(with_maps(Checked, maps, lambda_=0.5), 1)


class Twice(Classifier):
    """Looks at its training accuracy in a second pass."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        with torch.no_grad():
            self.log("train/accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())
        return loss


def test_a_second_pass_of_the_users_changes_nothing():
    class Both(RFedAvgMixin, Twice): ...

    assert_same(run(Both, 3, lambda_=0.5)[0], run(RFedAvg, 3, lambda_=0.5)[0])


def test_bytes_are_one_map_up_and_the_table_down():
    # d = 5 floats; 3 clients; the table has 0, then 3 maps
    _, rounds = run(RFedAvg, 3)
    assert [r["round/extra_bytes_up"] for r in rounds] == [3 * 5 * 4] * 3
    assert [r["round/extra_bytes_down"] for r in rounds] == [0, 3 * 3 * 5 * 4, 3 * 3 * 5 * 4]


def test_composes_with_fedprox():
    class Both(RFedAvgMixin, FedProxMixin, Classifier): ...

    _, rounds = run(Both, 2, mu=0.5, lambda_=0.1)
    assert rounds[1]["round/mmd"] > 0
    assert rounds[1]["round/prox"] > 0


@pytest.mark.parametrize(
    ("cls", "clients", "participation", "d", "size"),
    [
        (RFedAvg, 20, 1.0, 512, 56160),
        (RFedAvg, 20, 1.0, 256, 35680),
        (RFedAvg, 500, 0.2, 512, 280800),
        (RFedAvg, 500, 0.2, 256, 178400),
        (RFedAvgPlus, 20, 1.0, 512, 2808),
        (RFedAvgPlus, 500, 0.2, 256, 1784),
    ],
)
def test_table_3_of_the_paper(cls, clients, participation, d, size):
    # bytes of what a client downloads beside the weights; the first cohort has filled the table, 760 bytes a tensor
    data = make_data(classes=[(k % 3,) for k in range(clients)], per_class=1)
    federation = Federation(local_epochs=1, participation=participation, serialisation_overhead=760)
    _, rounds = run(cls, 2, data, federation, net=lambda *shape: small_net(*shape, hidden=(d,)))
    assert rounds[1]["round/extra_bytes_down"] / rounds[1]["round/clients"] == size


def test_table_3_counts_an_overhead_per_map():
    table = {"maps": {str(k): torch.zeros(512) for k in range(20)}}
    assert num_bytes(table, overhead=760) == 56160
