import pytest
import torch

from flightning.algorithms import IDA, FedAvg, IDAMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import ConfigurationError
from tests.classification import BatchNormNet, assert_same, make_data, make_module, run
from tests.problems import QuadraticModule, fit, fit_quadratic


def one_step(**kwargs):
    # one step of size 0.02 from 0: w_i = 0.02 h_i b_i = (-0.02, 0.03, 0.4), plain mean 0.41 / 3
    w = torch.tensor([-0.02, 0.03, 0.4], dtype=torch.float64)
    return w, 1 / (w - w.mean()).abs()


def test_weights_are_inverse_distances_to_the_plain_mean():
    w, a = one_step()
    module = fit_quadratic(IDAMixin, 1, local_steps=1)
    assert module.w.item() == pytest.approx(float((a * w).sum() / a.sum()), rel=1e-12)


def test_by_samples_multiplies_the_number_of_samples():
    w, a = one_step()
    a = a * torch.tensor([1.0, 2.0, 5.0])
    module = fit_quadratic(IDAMixin, 1, local_steps=1, data=Quadratic(copies=[1, 2, 5]), by_samples=True)
    assert module.w.item() == pytest.approx(float((a * w).sum() / a.sum()), rel=1e-12)


def test_symmetric_clients_weigh_the_same():
    data = Quadratic(curvatures=(1.0, 1.0), centers=(-1.0, 3.0))
    # both lie at the same distance from their mean: one step gives the plain mean 0.02 (-1 + 3) / 2
    assert fit_quadratic(IDAMixin, 1, local_steps=1, data=data).w.item() == pytest.approx(0.02, rel=1e-12)


def test_outlier_loses_its_weight():
    centers = (1.0, 1.0, 1.0, 1.0, 1000.0)
    module = fit_quadratic(IDAMixin, 1, local_steps=1, data=Quadratic(curvatures=(1.0,) * 5, centers=centers))
    # distances 1 : 4, so the outlier has 1/17 of the weight in place of 1/5
    assert module.w.item() == pytest.approx(0.02 * (16 * 1 + 1000) / 17, rel=1e-9)


def test_cap_bounds_the_weight_of_a_client_at_the_mean():
    # w = 0.02 (0, 1, 2): the middle client is the mean; with cap 10 it weighs 10, the others 1
    data = Quadratic(curvatures=(1.0,) * 3, centers=(0.0, 1.0, 8.0))
    module = fit_quadratic(IDAMixin, 1, local_steps=1, data=data, cap=1.0)
    assert module.w.item() == pytest.approx(0.02 * 3, rel=1e-12)
    data = Quadratic(curvatures=(1.0,) * 3, centers=(0.0, 1.0, 2.0))
    module = fit_quadratic(IDAMixin, 1, local_steps=1, data=data, cap=10.0)
    assert module.w.item() == pytest.approx(0.02 * (0 + 10 * 1 + 2) / 12, rel=1e-12)


def test_cap_one_is_uniform_fedavg():
    module, _ = run(IDA, cap=1.0)
    fedavg, _ = run(FedAvg, federation=Federation(local_epochs=2, weighting="uniform"))
    for a, b in zip(module.parameters(), fedavg.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_buffers_are_averaged_by_samples_as_in_fedavg():
    data = {"per_class": [4, 6, 8]}
    module, _ = run(IDA, 1, make_data(**data), net=BatchNormNet)
    fedavg, _ = run(FedAvg, 1, make_data(**data), net=BatchNormNet)
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, dict(fedavg.named_buffers())[name]), name


def test_intrac_divides_by_the_training_accuracy_and_sends_it():
    module, rounds = run(IDA, 1, intrac=True)
    assert rounds[0]["round/extra_bytes_up"] == 3 * 4
    plain, _ = run(IDA, 1)
    assert not torch.equal(module.net.head.weight, plain.net.head.weight)


def test_intrac_rule_in_closed_form():
    module = make_module(IDA, intrac=True)
    module.start_federation(3, "average")
    module.cohort_weights = {0: 1.0, 1: 1.0}
    models = {k: {n: torch.full_like(w, float(k)) for n, w in module.global_weights.items()} for k in (0, 1)}
    accuracies = {0: torch.tensor(0.2), 1: torch.tensor(1.0)}
    # both lie at the same distance from the mean; 0.2 is raised to 1/2: weights 2 and 1
    module.aggregate({"weights": models, "train_accuracy": accuracies})
    assert module.global_weights["net.head.bias"].tolist() == pytest.approx([1 / 3] * 3)


def test_distances_are_sums_of_absolute_differences():
    # mean (5, 1, 1, 1) / 3; distances 8/3, 10/3, 8/3, so weights 15 : 12 : 15 (Euclidean ones would be others)
    module = type("IDAQuadratic", (IDAMixin, QuadraticModule), {})()
    module.w = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    module.start_federation(3, "average")
    module.cohort_weights = dict.fromkeys(range(3), 1.0)
    models = ((0, 0, 0, 0), (4, 0, 0, 0), (1, 1, 1, 1))
    module.aggregate({"weights": {k: {"w": torch.tensor(m, dtype=torch.float64)} for k, m in enumerate(models)}})
    assert module.global_weights["w"].tolist() == pytest.approx([1.5, 5 / 14, 5 / 14, 5 / 14])


def test_training_accuracy_is_counted_by_hand():
    class Telling(IDA):
        def on_client_end(self):
            upload = super().on_client_end()
            hits = torch.cat([self(x).argmax(1) == y for x, y in self.client_batches()])
            told[self.client.id] = upload["train_accuracy"].item(), hits.float().mean().item()
            return upload

    told = {}
    run(Telling, 2, make_data(per_class=[3, 6, 9]), intrac=True)
    assert [sent for sent, _ in told.values()] == pytest.approx([counted for _, counted in told.values()])
    assert any(counted > 0.5 for _, counted in told.values())


def test_intrac_runs_in_mixed_precision():
    module = make_module(IDA, intrac=True)
    fit(module, make_data(), 1, precision="bf16-mixed")
    assert torch.isfinite(module.net.head.weight).all()


def test_no_extra_bytes_without_intrac():
    _, rounds = run(IDA, 1)
    assert rounds[0]["round/extra_bytes_up"] == rounds[0]["round/extra_bytes_down"] == 0


def test_identical_clients_equal_one_of_them():
    data = make_data(classes=((0, 1),), per_class=6)
    alone, _ = run(IDA, 1, data)
    assert_same(alone, run(FedAvg, 1, make_data(classes=((0, 1),), per_class=6))[0])


def test_cap_below_one_is_refused():
    with pytest.raises(ConfigurationError, match=r"`cap=0.5` must be at least 1"):
        make_module(IDA, cap=0.5)
