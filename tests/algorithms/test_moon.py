import copy
import math

import pytest
import torch

from flightning.algorithms import MOON, FedAvgMixin, FedProxMixin, MOONMixin
from flightning.callbacks import Federation
from flightning.classifier import Classifier, ProjectedClassifier
from flightning.errors import ConfigurationError
from flightning.functional.losses import model_contrastive
from tests.classification import BatchNormNet, assert_resumes, assert_same, make_data, make_module, run


class HeadedFedAvg(FedAvgMixin, ProjectedClassifier):
    """FedAvg on the network of MOON."""


HEAD = {"projection": 6}


class Watched(MOON):
    """Keep the term of each step by round, and the weights that each client ends with."""

    def on_federation_start(self):
        super().on_federation_start()
        self.terms, self.ended = {}, {}

    def regularization(self, batch):
        terms = super().regularization(batch)
        self.terms.setdefault(self.round_index, []).append(terms.get("contrast"))
        return terms

    def on_client_end(self):
        upload = super().on_client_end()
        self.ended[self.round_index, self.client.id] = {n: w.clone() for n, w in upload["weights"].items()}
        return upload


def test_mu_zero_is_fedavg_on_the_headed_net_bit_for_bit():
    assert_same(run(MOON, mu=0.0, **HEAD)[0], run(HeadedFedAvg, **HEAD)[0])


def test_first_round_is_fedavg():
    module, _ = run(Watched, 1, mu=5.0, **HEAD)
    assert_same(module, run(HeadedFedAvg, 1, **HEAD)[0])
    assert set(module.terms[0]) == {None}


def test_later_rounds_are_not():
    _, rounds = run(MOON, 2, mu=5.0, **HEAD)
    assert rounds[1]["round/contrast"] > 0


@pytest.mark.parametrize("tau", [0.2, 0.5, 2.0])
def test_loss_lies_between_zero_and_its_bound(tau):
    # cosines lie in [-1, 1]: the loss is at most log(1 + e^(2 / tau))
    module, _ = run(Watched, 3, tau=tau, **HEAD)
    losses = [term.item() for t in (1, 2) for term in module.terms[t]]
    assert all(0 < loss <= math.log(1 + math.exp(2 / tau)) for loss in losses)


def test_swapping_global_and_previous_gives_complementary_probabilities():
    z, a, b = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0)).unbind()
    for i in range(4):
        row = slice(i, i + 1)
        one, two = (model_contrastive(z[row], p[row], [q[row]]) for p, q in ((a, b), (b, a)))
        assert math.exp(-one) + math.exp(-two) == pytest.approx(1.0, rel=1e-6)


def test_term_contrasts_with_the_received_and_the_own_previous_model():
    class Checked(MOON):
        def regularization(self, batch):
            terms = super().regularization(batch)
            if "contrast" in terms:
                features = []
                for weights in (self.global_weights, *self.client_state.previous):
                    teacher = copy.deepcopy(self.net).eval()
                    teacher.load_state_dict({n.removeprefix("net."): w for n, w in weights.items()})
                    features.append(teacher.features(batch[0]))
                expected = model_contrastive(self.net.features(batch[0]), features[0], features[1:], 0.5)
                torch.testing.assert_close(terms["contrast"], 3.0 * expected)
            return terms

    run(Checked, 3, mu=3.0, **HEAD)


def test_previous_model_is_the_local_one_of_the_last_participation():
    module, _ = run(Watched, 6, federation=Federation(local_steps=2, participation=1), **HEAD)
    last = {client: t for t, client in sorted(module.ended)}
    assert len(last) > 1
    for client, t in last.items():
        (previous,) = module.client_states.load(client, torch.device("cpu"))["previous"]
        assert_same(previous, module.ended[t, client])


def test_pool_keeps_the_newest_models():
    module, _ = run(Watched, 3, pool_size=2, **HEAD)
    old, new = module.client_states.load(1, torch.device("cpu"))["previous"]
    assert_same(old, module.ended[1, 1])
    assert_same(new, module.ended[2, 1])


def test_state_does_not_alias_live_weights():
    module, _ = run(MOON, 1, **HEAD)
    kept = module.client_states.load(0, torch.device("cpu"))["previous"][0]
    live = {w.data_ptr() for w in module.state_dict().values()}
    assert not live & {w.data_ptr() for w in kept.values()}


def test_teachers_leave_batch_norm_alone():
    # a term of 1e-30 is lost in rounding, so any difference would come from the teachers
    options = {"net": BatchNormNet, "projection": None}
    assert_same(run(MOON, mu=1e-30, **options)[0], run(HeadedFedAvg, **options)[0])


def test_batch_of_one_sample():
    _, rounds = run(MOON, 2, make_data(per_class=[2, 2, 2], batch_size=3), **HEAD)
    assert math.isfinite(rounds[1]["round/contrast"])


def test_nothing_extra_is_sent():
    _, rounds = run(MOON, 2, **HEAD)
    assert [(r["round/extra_bytes_up"], r["round/extra_bytes_down"]) for r in rounds] == [(0, 0)] * 2


def test_resumes_in_the_middle(tmp_path):
    assert_resumes(MOON, tmp_path, lambda: Federation(local_epochs=1, participation=2), **HEAD)


def test_head_is_added_to_a_net_without_one():
    assert [name for name, _ in make_module(MOON).net.blocks] == ["fc1", "projection", "head"]
    assert make_module(MOON).feature_size == 256
    assert make_module(MOON, projection=None).feature_size == 5


def test_foreign_net_needs_its_own_head():
    with pytest.raises(ConfigurationError, match=r"`Linear` is no net of `flightning.nets`.* set `projection: null`"):
        make_module(MOON, net=lambda shape, classes: torch.nn.Linear(*shape, classes))


def test_composes_with_fedprox_where_both_take_one_mu():
    class Both(MOONMixin, FedProxMixin, Classifier):
        def __init__(self, mu, **kwargs):
            super().__init__(mu=mu, **kwargs)

    _, rounds = run(Both, 2, mu=0.5)
    assert rounds[1]["round/contrast"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu": -1}, r"`mu=-1` must be at least 0: use 0 for plain FedAvg"),
        ({"tau": 0}, r"`tau=0` must be above 0: the paper uses 0.5"),
        ({"pool_size": 0}, r"`pool_size=0` must be at least 1: use `mu: 0` for plain FedAvg"),
        ({"projection": 0}, r"`projection` must be >= 1"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(MOON, **options)
