import pytest

from flightning.algorithms import FedAvgMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from tests.problems import fit_quadratic


def test_rounds_match_closed_form():
    # one round from w: mean_i [b_i + a_i (w - b_i)], a_i = (1 - eta h_i)^K
    h, b, eta, k, w = (1, 3, 10), (-1, 0.5, 2), 0.02, 5, 0.0
    for _ in range(3):
        w = sum(bi + (1 - eta * hi) ** k * (w - bi) for hi, bi in zip(h, b, strict=True)) / 3
    assert fit_quadratic(FedAvgMixin, rounds=3).w.item() == pytest.approx(w, rel=1e-12)


def test_fixed_point_is_biased_as_derived():
    # reference value of sum (1 - a_i) b_i / sum (1 - a_i): not the optimum 1.4642857
    assert fit_quadratic(FedAvgMixin, rounds=150).w.item() == pytest.approx(1.3355391, abs=1e-7)


def test_mean_is_weighted_by_samples():
    # sizes 1, 2, 5; one step of size eta from 0: w_i = eta h_i b_i; mean weighted 1/8, 2/8, 5/8
    data = Quadratic(copies=[1, 2, 5])
    expected = 0.02 * (1 * 1 * -1 + 2 * 3 * 0.5 + 5 * 10 * 2) / 8
    assert fit_quadratic(FedAvgMixin, 1, local_steps=1, data=data).w.item() == pytest.approx(expected, rel=1e-12)


def test_uniform_weighting_ignores_samples():
    federation = Federation(local_steps=1, weighting="uniform")
    module = fit_quadratic(FedAvgMixin, 1, data=Quadratic(copies=[1, 2, 5]), federation=federation)
    assert module.w.item() == pytest.approx(0.02 * (-1 + 1.5 + 20) / 3, rel=1e-12)
