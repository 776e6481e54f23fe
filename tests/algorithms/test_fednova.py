import pytest
import torch

from flightning.algorithms import FedAvg, FedAvgMixin, FedAvgMMixin, FedNova, FedNovaMixin, FedProxMixin, SCAFFOLDMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import CompositionError, ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, make_data, run
from tests.problems import QuadraticModule, TwoGroups, fit, fit_quadratic

H, B, K = (1, 3, 10), (-1, 0.5, 2), (2, 8, 20)
OPTIMUM = 20.5 / 14


def uneven():
    """Clients that take 2, 8 and 20 local steps, with equal weights."""
    return {
        "data": Quadratic(copies=K, batch_size=1),
        "federation": Federation(local_epochs=1, weighting="uniform"),
    }


def work(k, rho=0.0, eta_mu=0.0):
    """Sum of the weights a: the recursions of the paper."""
    c = total = 0.0
    for _ in range(k):
        c = rho * c + 1
        total = total * (1 - eta_mu) + c if rho == 0 else total + c
    return total


def ends(w, eta, rho=0.0, mu=0.0):
    found = []
    for h, b, k in zip(H, B, K, strict=True):
        y, buffer = w, 0.0
        for _ in range(k):
            buffer = rho * buffer + h * (y - b) + mu * (y - w)
            y -= eta * buffer
        found.append(y)
    return found


@pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 2.0)])
def test_rounds_match_closed_form(rho, mu):
    eta, w = 0.005, 0.0
    for _ in range(3):
        d = [(w - y) / work(k, rho, eta * mu) for y, k in zip(ends(w, eta, rho, mu), K, strict=True)]
        effective = sum(work(k, rho) for k in K) / 3  # with a proximal term: the mean of K
        w -= effective * sum(d) / 3
    module = fit_quadratic(FedNovaMixin, 3, mu=mu, module_kwargs={"lr": eta, "momentum": rho}, **uneven())
    assert module.w.item() == pytest.approx(w, rel=1e-10)


def test_fixed_points_of_fednova_and_fedavg():
    # 0 = sum_i r_i (w - b_i) with r_i = 1 - (1 - eta h_i)^K_i for FedAvg, r_i / K_i for FedNova: 1.7997 and 1.4300
    r = [1 - (1 - 1e-3 * h) ** k for h, k in zip(H, K, strict=True)]
    fedavg = sum(x * b for x, b in zip(r, B, strict=True)) / sum(r)
    fednova = sum(x / k * b for x, k, b in zip(r, K, B, strict=True)) / sum(x / k for x, k in zip(r, K, strict=True))
    assert (fednova, fedavg) == pytest.approx((1.4300, 1.7997), abs=5e-5)
    for mixin, point in ((FedNovaMixin, fednova), (FedAvgMixin, fedavg)):
        module = fit_quadratic(mixin, 3, module_kwargs={"lr": 1e-3, "start": point}, **uneven())
        assert module.w.item() == pytest.approx(point, rel=1e-12)


@pytest.mark.slow
def test_run_ends_at_the_fixed_point():
    for mixin, point in ((FedNovaMixin, 1.4300), (FedAvgMixin, 1.7997)):
        module = fit_quadratic(mixin, 250, module_kwargs={"lr": 1e-3}, **uneven())
        assert module.w.item() == pytest.approx(point, abs=1e-4)


def test_gap_vanishes_with_the_learning_rate():
    gaps = []
    for eta in (1e-2, 1e-3):
        r = [(1 - (1 - eta * h) ** k) / k for h, k in zip(H, K, strict=True)]
        point = sum(x * b for x, b in zip(r, B, strict=True)) / sum(r)
        module = fit_quadratic(FedNovaMixin, 1, module_kwargs={"lr": eta, "start": point}, **uneven())
        gaps.append(abs(module.w.item() - OPTIMUM))
    assert gaps[1] < gaps[0] / 5


@pytest.mark.parametrize("rho", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_equal_steps_are_fedavg_or_fedprox(rho, mu):
    # with a proximal term the normalised mean is moved by K in place of the shorter proximal work
    eta, k = 0.02, 5
    ours = fit_quadratic(FedNovaMixin, 1, mu=mu, module_kwargs={"momentum": rho})
    plain = fit_quadratic(FedProxMixin, 1, mu=mu, module_kwargs={"momentum": rho})
    ratio = 1.0 if mu == 0 else work(k, rho) / measured(k, eta, rho, mu)
    assert ours.w.item() == pytest.approx(ratio * plain.w.item(), rel=1e-10)


def measured(k, eta, rho, mu):
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=eta, momentum=rho)
    for _ in range(k):
        weight.grad = 1 + mu * weight.detach()
        sgd.step()
    return -weight.item() / eta


def test_equal_steps_are_fedavg_on_a_network():
    a, b = run(FedNova, 3)[0], run(FedAvg, 3)[0]
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


class Adaptive(QuadraticModule):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Nesterov(QuadraticModule):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, nesterov=True)


@pytest.mark.parametrize("base", [Adaptive, Nesterov])
def test_any_optimizer_with_equal_steps_is_fedavg(base):
    results = []
    for mixin in (FedNovaMixin, FedAvgMixin):
        module = type("X", (mixin, base), {})()
        fit(module, Quadratic(), 3, Federation(local_steps=4))
        results.append(module.w.item())
    assert results[0] == pytest.approx(results[1], rel=1e-6)


class Scheduled(QuadraticModule):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def test_schedule_that_has_stepped_when_the_last_client_ends():
    # three rounds with rates 0.005, 0.0025, 0.00125, and slow momentum in units of the gradient
    w, u, gamma = 0.0, 0.0, 0.5
    for eta in (0.005, 0.0025, 0.00125):
        d = [(w - y) / k for y, k in zip(ends(w, eta), K, strict=True)]
        u = gamma * u + sum(K) / 3 * sum(d) / 3 / eta
        w -= eta * u
    module = type("S", (FedNovaMixin, Scheduled), {})(gamma=gamma, lr=0.005)
    setting = uneven()
    fit(module, setting["data"], 3, setting["federation"])
    assert module.w.item() == pytest.approx(w, rel=1e-10)


def test_parameter_groups_are_normalised_separately():
    expected = []
    for eta, rho in ((0.005, 0.0), (0.002, 0.9)):
        d = [-y / work(k, rho) for y, k in zip(ends(0.0, eta, rho), K, strict=True)]
        expected.append(-sum(work(k, rho) for k in K) / 3 * sum(d) / 3)
    module = type("G", (FedNovaMixin, TwoGroups), {})(lr=0.005, second_lr=0.002)
    setting = uneven()
    fit(module, setting["data"], 1, setting["federation"])
    assert [module.w.item(), module.v.item()] == pytest.approx(expected, rel=1e-10)


def test_partial_participation_and_weights_by_samples():
    # p_k = n_k / n over the cohort
    module = fit_quadratic(
        FedNovaMixin,
        1,
        data=Quadratic(copies=K, batch_size=1),
        federation=Federation(local_epochs=1, participation=2),
        module_kwargs={"lr": 0.005},
    )
    p = {i: K[i] / sum(K[j] for j in module.cohort) for i in module.cohort}
    found = ends(0.0, 0.005)
    effective = sum(p[i] * K[i] for i in p)
    assert module.w.item() == pytest.approx(effective * sum(p[i] * found[i] / K[i] for i in p), rel=1e-10)


def test_extra_is_one_number_up():
    module, rounds = run(FedNova, 1)
    assert rounds[0]["round/extra_bytes_up"] == 3 * 4
    assert rounds[0]["round/extra_bytes_down"] == 0
    assert rounds[0]["round/bytes_down"] == 3 * 4 * sum(p.numel() for p in module.parameters())


def test_batch_norm_statistics_are_not_normalised():
    data = {"per_class": [4, 8, 16]}
    nova = run(FedNova, 1, make_data(**data), net=BatchNormNet)[0]
    plain = run(FedAvg, 1, make_data(**data), net=BatchNormNet)[0]
    assert torch.equal(nova.net.fc1[1].running_var, plain.net.fc1[1].running_var)
    assert not torch.equal(nova.net.head.weight, plain.net.head.weight)


def test_resumes_in_the_middle(tmp_path):
    assert_resumes(FedNova, tmp_path, make=lambda: make_data(per_class=[3, 6, 12]), gamma=0.5)


def test_server_momentum_behind_fednova_works_and_before_it_is_refused():
    setting = {"module_kwargs": {"lr": 0.005}, "beta": 0.0}
    both = type("BothMixin", (FedNovaMixin, FedAvgMMixin), {})
    alone = fit_quadratic(FedNovaMixin, 2, module_kwargs={"lr": 0.005}, **uneven())
    assert fit_quadratic(both, 2, **setting, **uneven()).w.item() == pytest.approx(alone.w.item(), rel=1e-12)
    with pytest.raises(CompositionError, match=r"puts `FedAvgMMixin` before `FedNovaMixin`, .* `FedNovaMixin` first"):
        type("Wrong", (FedAvgMMixin, FedNovaMixin, QuadraticModule), {})


def test_scaffold_behind_fednova_reaches_the_optimum_with_uneven_steps():
    both = type("BothMixin", (FedNovaMixin, SCAFFOLDMixin), {})
    module = fit_quadratic(both, 40, module_kwargs={"lr": 0.01}, **uneven())
    assert module.w.item() == pytest.approx(OPTIMUM, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu": -1}, r"`mu=-1` must be at least 0"),
        ({"gamma": 1.0}, r"`gamma=1.0` must lie in \[0, 1\): use 0 for no server momentum"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ConfigurationError, match=message):
        FedNova(**options)
