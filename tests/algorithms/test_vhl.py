import pytest
import torch
from torch.nn import functional as F

from flightning.algorithms import VHL, FedAvgMixin, RFedAvgMixin, VHLMixin
from flightning.algorithms.vhl import _widen_classifier
from flightning.callbacks import Federation
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.losses import supervised_contrastive
from tests.classification import BatchNormNet, assert_resumes, assert_same, make_data, make_module, run

C = 3
OFF = {"a": 0.0, "w_c": 0.0, "w_n": 0.0}


class WideFedAvg(FedAvgMixin, Classifier):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        _widen_classifier(self)


class Probe(VHL):
    def on_federation_start(self):
        super().on_federation_start()
        self.steps = []

    def regularization(self, batch):
        net = {n: w.detach().clone() for n, w in self.named_parameters()}
        twin = torch.Generator()
        twin.set_state(self._draws.get_state())
        chosen = torch.randint(len(self._labels), (self.virtual_batch_size,), generator=twin)
        terms = super().regularization(batch)
        who = self.round_index, self.client.id
        self.steps.append({"weights": net, "batch": batch, "chosen": chosen, "terms": dict(terms), "who": who})
        return terms


def test_all_weights_zero_are_fedavg_with_the_wider_layer_bit_for_bit():
    module, rounds = run(VHL, **OFF)
    assert_same(module, run(WideFedAvg)[0])
    assert rounds[0]["round/setup_bytes"] == 0


def test_terms_match_their_equations():
    options = {"a": 0.7, "w_c": 0.3, "w_n": 0.2, "temperature": 0.5, "virtual_batch_size": 10, "virtual_per_class": 6}
    module, _ = run(Probe, 1, **options)
    step = module.steps[-1]
    net = make_module(Probe).net
    net.load_state_dict({n.removeprefix("net."): w for n, w in step["weights"].items()})
    (x, y), (v, c) = step["batch"], (module._inputs[step["chosen"]], module._labels[step["chosen"]])
    z, zv = net.features(x), net.features(v)
    found = {n: t.item() for n, t in step["terms"].items()}
    virtual = F.cross_entropy(F.linear(zv, net.head.weight, net.head.bias), c + C)
    assert found["virtual"] == pytest.approx(0.7 * virtual.item(), rel=1e-4)
    both = supervised_contrastive(torch.cat([z, zv]), torch.cat([y, c]), 0.5)
    assert found["alignment"] == pytest.approx(0.3 * both.item(), rel=1e-4)
    assert found["spread"] == pytest.approx(0.2 * supervised_contrastive(zv, c, 0.5).item(), rel=1e-4)


def test_virtual_features_take_no_gradient_in_the_alignment():
    # real features are pulled to the virtual ones: with a constant real batch the alignment has no gradient at all
    class Constant(VHL):
        @property
        def penultimate(self):
            features = super().penultimate
            return features if len(features) == self.virtual_batch_size else features.detach()

        def regularization(self, batch):
            terms = super().regularization(batch)
            self.needs = {n: t.requires_grad for n, t in terms.items()}
            return terms

    module, _ = run(Constant, 1, virtual_batch_size=11)
    assert module.needs == {"virtual": True, "alignment": False, "spread": True}


def test_a_mixin_in_front_sees_the_layers_of_real_samples():
    class Both(RFedAvgMixin, VHLMixin, Classifier):
        def regularization(self, batch):
            terms = super().regularization(batch)
            self.seen = [*getattr(self, "seen", []), (len(self.penultimate), len(batch[1]))]
            return terms

    module, _ = run(Both, 1, virtual_batch_size=11)
    assert all(features == samples for features, samples in module.seen)


def test_alignment_ends_after_its_local_epochs():
    # 12 samples in batches of 4: 3 steps per epoch, 4 epochs
    federation = Federation(local_epochs=4)
    module, _ = run(Probe, 1, data=make_data(classes=((0, 1),)), federation=federation, align_epochs=2)
    assert ["alignment" in s["terms"] for s in module.steps] == [True] * 6 + [False] * 6
    assert all("virtual" in s["terms"] for s in module.steps)


def test_evaluation_looks_at_real_classes_only():
    module, _ = run(VHL, 1)
    x = torch.randn(2, 4)
    assert module.train()(x).shape == (2, 2 * C)
    assert module.eval()(x).shape == (2, C)


def test_everybody_has_the_same_virtual_set_and_it_is_counted_once():
    one, rounds = run(VHL, 2, virtual_per_class=7)
    two, _ = run(VHL, 1, virtual_per_class=7, federation=Federation(participation=1, seed=5))
    assert torch.equal(one._inputs, two._inputs)
    assert rounds[0]["round/setup_bytes"] == 3 * (C * 7) * (4 * 4 + 8)  # 4 floats and a label
    assert rounds[0]["round/extra_bytes_up"] == rounds[0]["round/extra_bytes_down"] == 0


def test_every_client_draws_other_virtual_batches_in_every_round():
    module, _ = run(Probe, 2, virtual_batch_size=8)
    first = {}
    for step in module.steps:
        first.setdefault(step["who"], tuple(step["chosen"].tolist()))
    assert len(first) == 6
    assert len(set(first.values())) == 6


def test_noise_does_not_enter_the_statistics_of_batch_norm():
    module, _ = run(VHL, 1, net=BatchNormNet, data=make_data(batch_size=4), **{**OFF, "a": 1e-12})
    plain, _ = run(VHL, 1, net=BatchNormNet, data=make_data(batch_size=4), **OFF)
    torch.testing.assert_close(module.net.fc1[1].running_mean, plain.net.fc1[1].running_mean)
    assert module.net.fc1[1].track_running_stats


def test_resume_is_bit_identical(tmp_path):
    assert_resumes(VHL, tmp_path)


def test_a_client_that_lacks_a_class_and_partial_participation():
    module, _ = run(VHL, 3, federation=Federation(participation=2))
    assert all(torch.isfinite(w).all() for w in module.state_dict().values())


def test_inputs_that_are_no_real_numbers_are_refused():
    from flightning.datamodules import FederatedDataModule

    pair = torch.zeros(6, 4, dtype=torch.long), torch.arange(6) % 3
    data = FederatedDataModule.from_clients([pair, pair])
    with pytest.raises(ConfigurationError, match="`VHL` makes virtual samples of real numbers"):
        run(VHL, 1, data=data)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"a": -1.0}, "`a=-1.0` must be at least 0"),
        ({"virtual_per_class": 0}, "`virtual_per_class=0` must be at least 1"),
        ({"temperature": 0.0}, "`temperature=0.0` must be above 0"),
    ],
)
def test_refusals(option, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(VHL, **option)
