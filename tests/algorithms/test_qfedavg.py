import pytest
import torch

from flightning.algorithms import FedAvg, FedAvgMixin, FedAvgMMixin, QFedAvg, QFedAvgMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import CompositionError, ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, make_data, make_module, run
from tests.problems import QuadraticModule, fit, fit_quadratic

H, B, ETA = (1, 3, 10), (-1, 0.5, 2), 0.02


def by_hand(rounds, q, k=5, lipschitz=None, eta=ETA, w=0.0, scale=1.0):
    """Algorithm 2 in scalars."""
    lip = lipschitz or 1 / eta
    for _ in range(rounds):
        deltas, hs = [], []
        for h, b in zip(H, B, strict=True):
            loss = scale * h / 2 * (w - b) ** 2 + 1e-10
            y = b + (1 - eta * scale * h) ** k * (w - b)
            delta = lip * (w - y)
            deltas.append(loss**q * delta)
            hs.append(q * loss ** (q - 1) * delta**2 + lip * loss**q)
        w -= sum(deltas) / sum(hs)
    return w


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("lipschitz", [None, 3.0])
def test_rounds_match_closed_form(q, lipschitz):
    module = fit_quadratic(QFedAvgMixin, 3, q=q, L=lipschitz)
    assert module.w.item() == pytest.approx(by_hand(3, q, lipschitz=lipschitz), rel=1e-10)


@pytest.mark.parametrize("lipschitz", [None, 0.1, 100.0])
def test_q_zero_is_uniform_fedavg_for_any_l(lipschitz):
    federation = {"weighting": "uniform", "local_steps": 5}
    data = {"copies": [4, 1, 2]}
    ours = fit_quadratic(QFedAvgMixin, 3, q=0.0, L=lipschitz, data=Quadratic(**data))
    theirs = fit_quadratic(FedAvgMixin, 3, data=Quadratic(**data), federation=Federation(**federation))
    assert ours.w.item() == pytest.approx(theirs.w.item(), rel=1e-12)


def test_clients_of_unequal_size_count_equally():
    # also in the sum of h_k: the same clients with one sample each
    module = fit_quadratic(QFedAvgMixin, 2, q=1.0, data=Quadratic(copies=[4, 1, 2]))
    assert module.w.item() == pytest.approx(by_hand(2, 1.0), rel=1e-10)
    assert module.w.item() == pytest.approx(0.4478758, abs=1e-7)


def test_a_client_without_loss_is_no_division_by_zero():
    # at -1 the first client has loss 0 and gradient 0; with q below 1 its h_k is 0 / 0
    module = fit_quadratic(QFedAvgMixin, 1, q=0.5, module_kwargs={"start": -1.0})
    assert module.w.item() == pytest.approx(by_hand(1, 0.5, w=-1.0), rel=1e-10)
    assert module.w.item() == pytest.approx(-0.4487418507, abs=1e-9)


def test_q_zero_is_uniform_fedavg_on_a_network_with_batch_norm():
    data = {"per_class": [4, 8, 16]}
    federation = Federation(local_epochs=1, weighting="uniform")
    theirs = run(FedAvg, 2, make_data(**data), federation, net=BatchNormNet)[0]
    ours = run(QFedAvg, 2, make_data(**data), Federation(local_epochs=1), net=BatchNormNet, q=0.0)[0]
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], weight, rtol=1e-5, atol=1e-6)


def test_equal_losses_and_tiny_updates_go_where_fedavg_goes():
    # two clients with the same loss at w = 0: weights F^q cancel in the direction; here F = 2 for both
    data = {"curvatures": (1.0, 4.0), "centers": (2.0, 1.0)}
    options = {"local_steps": 1, "module_kwargs": {"lr": 1e-6}}
    ours = fit_quadratic(QFedAvgMixin, 1, q=2.0, data=Quadratic(**data), **options).w.item()
    theirs = fit_quadratic(FedAvgMixin, 1, data=Quadratic(**data), **options).w.item()
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_step_gets_shorter_with_longer_updates():
    # one client: step / update = 1 / (q |Dw|^2 / (F L) + 1)
    ratios = []
    for k in (1, 5, 20):
        data = Quadratic((1.0,), (2.0,))
        ours = fit_quadratic(QFedAvgMixin, 1, local_steps=k, q=1.0, data=data).w.item()
        ratios.append(ours / (2 - 2 * (1 - ETA) ** k))
    assert 1 > ratios[0] > ratios[1] > ratios[2]


class Scaled(QuadraticModule):
    """All losses times 100, and a rate that keeps the local steps."""

    def training_step(self, batch, batch_idx):
        return 100 * super().training_step(batch, batch_idx)


def test_scaling_all_losses_keeps_the_direction_for_q_one():
    # local steps kept by the rate, so Dw / L is kept; F scales by s: with L fixed, D_k scales by s and h_k by
    # (|Dw|^2 + s L F): the ratio of any two clients' D_k stays
    module = type("S", (QFedAvgMixin, Scaled), {})(q=1.0, L=50.0, lr=ETA / 100)
    fit(module, Quadratic(), 1, Federation(local_steps=5))
    deltas = [h / 2 * b**2 * 50 * -(b - b * (1 - ETA * h) ** 5) for h, b in zip(H, B, strict=True)]
    squares = [(50 * (b - b * (1 - ETA * h) ** 5)) ** 2 for h, b in zip(H, B, strict=True)]
    losses = [h / 2 * b**2 for h, b in zip(H, B, strict=True)]
    expected = -100 * sum(deltas) / (sum(squares) + 100 * 50 * sum(losses))
    assert module.w.item() == pytest.approx(expected, rel=1e-8)


def test_loss_is_of_the_received_model_over_all_samples():
    class Probe(QFedAvg):
        def on_client_end(self):
            self.seen = {**getattr(self, "seen", {}), self.client.id: self._loss}
            return super().on_client_end()

    data = make_data(per_class=[3, 6, 9], eval_batch_size=5)
    module, _ = run(Probe, 1, data)
    reference = make_module(FedAvg)  # the same initial weights
    inputs, targets = data.train_source.inputs, torch.as_tensor(data.train_source.labels)
    for client, part in enumerate(data.parts):
        loss = torch.nn.functional.cross_entropy(reference(inputs[part]), targets[part])
        assert module.seen[client] == pytest.approx(loss.item(), rel=1e-5)


def test_weak_clients_weigh_more():
    # at FedAvg's optimum the losses are 3.04, 1.40, 1.43: q > 0 gives way to the first client, whose center is -1
    options = {"local_steps": 1, "module_kwargs": {"start": 20.5 / 14}}
    assert fit_quadratic(QFedAvgMixin, 2, q=0.0, **options).w.item() == pytest.approx(20.5 / 14, rel=1e-12)
    assert fit_quadratic(QFedAvgMixin, 2, q=2.0, **options).w.item() < 20.5 / 14 - 0.01


def test_extra_is_one_number_up():
    module, rounds = run(QFedAvg, 1)
    assert rounds[0]["round/extra_bytes_up"] == 3 * 4
    assert rounds[0]["round/extra_bytes_down"] == 0
    assert rounds[0]["round/bytes_up"] == 3 * 4 * (1 + sum(p.numel() for p in module.parameters()))


class Scheduled(QuadraticModule):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def test_l_follows_the_rate_of_the_round_also_for_the_last_client():
    module = type("S", (QFedAvgMixin, Scheduled), {})(q=1.0)
    fit(module, Quadratic(), 2, Federation(local_steps=5))
    assert module.w.item() == pytest.approx(by_hand(1, 1.0, eta=ETA / 2, w=by_hand(1, 1.0)), rel=1e-10)


def test_resumes_in_the_middle(tmp_path):
    assert_resumes(QFedAvg, tmp_path, lambda: Federation(participation=2, sampler="weighted"))


def test_wrong_order_of_mixins_is_refused():
    with pytest.raises(CompositionError, match=r"puts `FedAvgMMixin` before `QFedAvgMixin`"):
        type("Wrong", (FedAvgMMixin, QFedAvgMixin, QuadraticModule), {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"q": -1}, r"`q=-1` must be at least 0: use 0 for FedAvg with uniform weights"),
        ({"L": 0.0}, r"`L=0.0` must be above 0: leave it out"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ConfigurationError, match=message):
        QFedAvg(**options)
