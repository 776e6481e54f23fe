import pytest

from flightning.algorithms import FedAvgMixin, FedBNMixin, FedProxMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from tests.classification import BatchNormNet, run
from tests.problems import QuadraticModule, fit_quadratic


@pytest.mark.parametrize("mu", [0.5, 2.0])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_local_steps_match_closed_form(mu, k):
    # d = w - w0: d_{j+1} = (1 - eta (h + mu)) d_j - eta h (w0 - b)
    #   =>  d_K = -(1 - (1 - eta (h + mu))^K) h (w0 - b) / (h + mu); FedAvg's mean over the three clients
    h, b, eta, w = (1, 3, 10), (-1, 0.5, 2), 0.02, 0.0
    for _ in range(2):
        w += sum(-(1 - (1 - eta * (hi + mu)) ** k) * hi * (w - bi) / (hi + mu) for hi, bi in zip(h, b, strict=True)) / 3
    assert fit_quadratic(FedProxMixin, 2, local_steps=k, mu=mu).w.item() == pytest.approx(w, rel=1e-6)


def test_fixed_point_with_mu_2():
    assert fit_quadratic(FedProxMixin, rounds=150, mu=2.0).w.item() == pytest.approx(1.3364433, abs=1e-6)


def test_mu_zero_is_fedavg_bit_for_bit():
    fedavg = fit_quadratic(FedAvgMixin, rounds=4)
    assert fit_quadratic(FedProxMixin, rounds=4, mu=0.0).w.item() == fedavg.w.item()


def test_anchor_does_not_alias_live_weights():
    module = fit_quadratic(FedProxMixin, rounds=1, mu=1.0)
    assert module.global_weights["w"].data_ptr() != module.w.data_ptr()


def test_negative_mu_is_refused():
    cls = type("Prox", (FedProxMixin, QuadraticModule), {})
    with pytest.raises(ConfigurationError, match=r"`mu=-1` must be at least 0: use 0 for plain FedAvg"):
        cls(mu=-1)


def test_weights_that_stay_with_the_client_are_not_pulled():
    # at the first step of a round all weights that travel are those that were received
    class Recording(FedProxMixin, FedBNMixin, Classifier):
        def regularization(self, batch):
            terms = super().regularization(batch)
            if self.client.steps == 0:
                first.append(terms["prox"].item())
            return terms

    first = []
    run(Recording, 2, net=BatchNormNet, mu=1.0)
    assert first == [0.0] * 6
