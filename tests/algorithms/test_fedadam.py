"""FedAdam, and what FedAdagrad and FedYogi share with it: the three differ in one line."""

import pytest
import torch

from flightning.algorithms import (
    FedAdagrad,
    FedAdagradMixin,
    FedAdam,
    FedAdamMixin,
    FedAvg,
    FedAvgMixin,
    FedYogi,
    FedYogiMixin,
)
from flightning.callbacks import Federation
from flightning.errors import ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, run
from tests.problems import QuadraticModule, fit_quadratic

H, B, ETA = (1, 3, 10), (-1, 0.5, 2), 0.02
ALL = {"adagrad": FedAdagradMixin, "adam": FedAdamMixin, "yogi": FedYogiMixin}
READY = [FedAdagrad, FedAdam, FedYogi]


def mean_update(w):
    """FedAvg's, K = 5: mean_i (a_i - 1)(w - b_i), a_i = (1 - eta h_i)^5."""
    return sum(((1 - ETA * h) ** 5 - 1) * (w - b) for h, b in zip(H, B, strict=True)) / 3


def by_hand(rule, rounds, lr=0.1, b1=0.9, b2=0.99, tau=1e-3):
    w, m, v = 0.0, 0.0, tau**2
    for _ in range(rounds):
        d = mean_update(w)
        m = b1 * m + (1 - b1) * d
        sign = (v > d * d) - (v < d * d)
        v = {"adagrad": v + d * d, "adam": b2 * v + (1 - b2) * d * d, "yogi": v - (1 - b2) * d * d * sign}[rule]
        w += lr * m / (v**0.5 + tau)
    return w


@pytest.mark.parametrize("rule", ALL)
@pytest.mark.parametrize("tau", [1e-3, 0.5])
def test_rounds_match_closed_form(rule, tau):
    module = fit_quadratic(ALL[rule], 5, server_lr=0.1, beta1=0.9, tau=tau)
    assert module.w.item() == pytest.approx(by_hand(rule, 5, tau=tau), rel=1e-10)


def test_first_adam_step_from_tau_squared():
    # eta (1 - b1) D / (sqrt(b2 tau^2 + (1 - b2) D^2) + tau): no bias correction
    d, tau = mean_update(0.0), 0.01
    expected = 0.1 * 0.1 * d / ((0.99 * tau**2 + 0.01 * d * d) ** 0.5 + tau)
    assert fit_quadratic(FedAdamMixin, 1, server_lr=0.1, tau=tau).w.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("rule", "factor"), [("adagrad", 2.0), ("adam", 1 + 0.99**0.5), ("yogi", 2.0)])
def test_large_tau_is_fedavg(rule, factor):
    tau = 1e6
    adaptive = fit_quadratic(ALL[rule], 1, server_lr=factor * tau, beta1=0.0, tau=tau)
    assert adaptive.w.item() == pytest.approx(fit_quadratic(FedAvgMixin, 1).w.item(), rel=1e-9)


def test_defaults_are_the_papers():
    assert FedAdagrad().hparams.beta1 == 0.0
    for module in (FedAdam(), FedYogi()):
        assert (module.hparams.beta1, module.hparams.beta2, module.hparams.tau) == (0.9, 0.99, 1e-3)


@pytest.mark.parametrize("cls", READY)
def test_batch_norm_statistics_are_averaged(cls):
    module, plain = run(cls, 1, net=BatchNormNet)[0], run(FedAvg, 1, net=BatchNormNet)[0]
    assert torch.equal(module.net.fc1[1].running_var, plain.net.fc1[1].running_var)
    assert set(module.server_state.variance) == {n for n, _ in module.named_parameters()}


@pytest.mark.parametrize("cls", READY)
def test_no_extra_bytes(cls):
    _, rounds = run(cls, 1)
    assert rounds[0]["round/extra_bytes_up"] == rounds[0]["round/extra_bytes_down"] == 0


@pytest.mark.parametrize("cls", READY)
def test_resumes_in_the_middle_of_partial_participation(tmp_path, cls):
    assert_resumes(cls, tmp_path, lambda: Federation(participation=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"server_lr": 0.0}, r"`server_lr=0.0` must be above 0"),
        ({"tau": 0.0}, r"`tau=0.0` must be above 0"),
        ({"beta1": 1.0}, r"`beta1=1.0` must lie in \[0, 1\): use 0 to forget at once"),
        ({"beta2": -0.1}, r"`beta2=-0.1` must lie in \[0, 1\)"),
    ],
)
def test_refusals(options, message):
    for mixin in (FedAdamMixin, FedYogiMixin):
        with pytest.raises(ConfigurationError, match=message):
            type("Refused", (mixin, QuadraticModule), {})(**options)
