import math

import pytest
import torch

from flightning.algorithms import FedDC, FedDCMixin, FedProxMixin, SCAFFOLDMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, make_data, run
from tests.problems import QuadraticModule, fit, fit_quadratic

H, B, ETA = (1.0, 3.0, 10.0), (-1.0, 0.5, 2.0), 0.02


def by_hand(rounds, k, alpha, rho=0.0, relative=(1.0, 1.0, 1.0)):
    """The authors' round in scalars, with the divisor A eta of heavy-ball steps."""
    a = (k - rho * (1 - rho**k) / (1 - rho)) / (1 - rho)
    w, g, own, drift = 0.0, 0.0, [0.0] * 3, [0.0] * 3
    for _ in range(rounds):
        thetas, new = [], []
        for i in range(3):
            theta, buffer = w, 0.0
            linear = g / relative[i] - own[i]
            for _ in range(k):
                prox = alpha / relative[i] * (theta - (w - drift[i]))
                buffer = rho * buffer + H[i] * (theta - B[i]) + prox + linear
                theta -= ETA * buffer
            thetas.append(theta)
            new.append((w - theta) / (a * ETA) - linear)
        g += sum(r * (n - o) for r, n, o in zip(relative, new, own, strict=True)) / 3
        own, drift = new, [d + t - w for d, t in zip(drift, thetas, strict=True)]
        w = sum(thetas) / 3 + sum(drift) / 3
    return w, g, own, drift


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_rounds_match_the_authors_written_out(rho):
    w, g, own, drift = by_hand(4, 5, 0.7, rho)
    module = fit_quadratic(FedDCMixin, 4, alpha=0.7, module_kwargs={"momentum": rho})
    assert module.w.item() == pytest.approx(w, rel=1e-11)
    assert module.server_state.gradient["w"].item() == pytest.approx(g, rel=1e-10)
    states = [module.client_states.state_dict()[i] for i in range(3)]
    assert [s["gradient"]["w"].item() for s in states] == pytest.approx(own, rel=1e-10)
    assert [s["drift"]["w"].item() for s in states] == pytest.approx(drift, rel=1e-10)


def test_clients_of_unequal_size():
    # relative weights n_k N / n of sizes 1, 2, 5
    relative = (3 / 8, 6 / 8, 15 / 8)
    module = fit_quadratic(FedDCMixin, 4, data=Quadratic(copies=[1, 2, 5]), alpha=0.7)
    assert module.w.item() == pytest.approx(by_hand(4, 5, 0.7, relative=relative)[0], rel=1e-11)
    uniform = Federation(local_steps=5, weighting="uniform")
    module = fit_quadratic(FedDCMixin, 4, data=Quadratic(copies=[1, 2, 5]), alpha=0.7, federation=uniform)
    assert module.w.item() == pytest.approx(by_hand(4, 5, 0.7)[0], rel=1e-11)


@pytest.mark.parametrize("alpha", [0.1, 5.0])
def test_reaches_the_optimum(alpha):
    module = fit_quadratic(FedDCMixin, 40, alpha=alpha)
    assert module.w.item() == pytest.approx(1.4642857, abs=1e-3)
    assert module.server_state.drift["w"].item() == pytest.approx(0.0, abs=1e-3)


def test_first_round_trains_as_fedprox():
    # the cohort's mean plus the mean drift of the same movements: twice FedProx's step from 0
    prox = fit_quadratic(FedProxMixin, 1, mu=0.7).w.item()
    assert fit_quadratic(FedDCMixin, 1, alpha=0.7).w.item() == pytest.approx(2 * prox, rel=1e-12)


class WithoutDrift(FedDCMixin):
    """The gradient states alone; drift_strength is 0 with alpha 0."""

    def aggregate(self, uploads):
        super().aggregate(uploads)
        self.set_global_weights({"w": uploads["weights"]["w"]})


class WithoutGradient(WithoutDrift):
    """Neither gradient states nor shift."""

    def on_client_start(self, download):
        self.client_state.replace({})
        super().on_client_start(download)
        self._linear = {n: torch.zeros_like(t) for n, t in self._linear.items()}


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_without_alpha_and_drift_it_is_scaffold(rho):
    ours = fit_quadratic(WithoutDrift, 4, alpha=0.0, module_kwargs={"momentum": rho})
    theirs = fit_quadratic(SCAFFOLDMixin, 4, module_kwargs={"momentum": rho})
    assert ours.w.item() == pytest.approx(theirs.w.item(), rel=1e-11)


def test_without_gradient_and_drift_it_is_fedprox():
    ours, theirs = fit_quadratic(WithoutGradient, 4, alpha=0.7), fit_quadratic(FedProxMixin, 4, mu=0.7)
    assert ours.w.item() == pytest.approx(theirs.w.item(), rel=1e-12)


def test_server_states_are_means_of_all_clients_under_partial_participation():
    module = fit_quadratic(FedDCMixin, 6, alpha=0.7, federation=Federation(local_steps=5, participation=2))
    states = module.client_states.state_dict().values()
    assert len(states) == 3
    for name in ("drift", "gradient"):
        mean = sum(s[name]["w"].item() for s in states) / 3
        assert module.server_state.values[name]["w"].item() == pytest.approx(mean, rel=1e-10)


def test_length_of_the_mean_drift_is_logged():
    module, rounds = run(FedDC, 2)
    length = math.sqrt(sum(d.square().sum().item() for d in module.server_state.drift.values()))
    assert rounds[1]["round/drift"] == pytest.approx(length, rel=1e-5)


def test_bytes_are_one_model_more_down_and_none_up():
    # the server knows the number of local steps and rebuilds the change of the gradient state
    module, rounds = run(FedDC, 2)
    size = 4 * sum(p.numel() for p in module.parameters()) * 3
    for logged in rounds:
        assert (logged["round/extra_bytes_up"], logged["round/extra_bytes_down"]) == (0, size)
        assert (logged["round/bytes_up"], logged["round/bytes_down"]) == (size, 2 * size)


def test_empty_client_does_not_count():
    data = Quadratic((*H, 5.0), (*B, 9.0), copies=[1, 1, 1, 0])
    assert fit_quadratic(FedDCMixin, 3, data=data, alpha=0.7).w.item() == pytest.approx(
        by_hand(3, 5, 0.7)[0], rel=1e-11
    )


def test_batch_norm_statistics_are_averaged_without_drift():
    module, _ = run(FedDC, 3, make_data(per_class=8), net=BatchNormNet)
    assert set(module.server_state.drift) == {n for n, _ in module.named_parameters()}
    assert (module.net.fc1[1].running_var > 0).all()


def test_state_does_not_alias_weights():
    module = fit_quadratic(FedDCMixin, 2)
    kept = [
        s[name]["w"].data_ptr() for s in module.client_states.state_dict().values() for name in ("drift", "gradient")
    ]
    assert len({*kept, module.w.data_ptr(), module.global_weights["w"].data_ptr()}) == 8


def test_resumes_in_the_middle(tmp_path):
    assert_resumes(FedDC, tmp_path, lambda: Federation(local_epochs=2, participation=2))


def test_nesterov_is_refused():
    module = type("N", (FedDCMixin, QuadraticModule), {})(momentum=0.9, nesterov=True)
    with pytest.raises(ConfigurationError, match=r"which those of `SGD` do not tell: use SGD, .* without `nesterov`"):
        fit(module, Quadratic(), 1)


def test_negative_alpha_is_refused():
    with pytest.raises(ConfigurationError, match=r"`alpha=-1` must be at least 0"):
        FedDC(alpha=-1)
