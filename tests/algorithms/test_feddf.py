import pytest
import torch
from torch.nn import functional as F

from flightning.algorithms import FedAvg, FedCDMixin, FedDF, FedDFMixin
from flightning.callbacks import Federation
from flightning.classifier import Classifier
from flightning.errors import CompositionError, ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, make_data, make_module, run


def data(**kwargs):
    return make_data(per_class=10, **{"shared_fraction": 0.4, **kwargs})


class Probe(FedDF):
    def aggregate(self, uploads):
        self.models = {k: {n: w.clone() for n, w in model.items()} for k, model in uploads["weights"].items()}
        super().aggregate(uploads)

    def _step(self, optimizer, *args):
        going_on = super()._step(optimizer, *args)
        self.rates = [*getattr(self, "rates", []), optimizer.param_groups[0]["lr"]]
        self.gradients = {n: w.grad.clone() for n, w in self.trainable().items()}
        return going_on


def logits_of(weights, inputs):
    module = make_module(FedDF)
    module.load_state_dict({n: w.float() for n, w in weights.items()})
    return module.eval()(inputs)


def test_no_steps_is_fedavg_on_the_same_clients():
    fedavg, _ = run(FedAvg, data=data())
    module, _ = run(FedDF, data=data(), steps=0)
    for name, weight in fedavg.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], weight, rtol=1e-6, atol=1e-8)


def test_identical_clients_are_left_alone():
    # two clients with the same samples in the same order send the same weights: the student equals the ensemble
    options = {"classes": ((0, 1, 2),) * 2, "shuffle": False, "batch_size": 64}

    class Twins(FedDF):
        def aggregate(self, uploads):
            twin = next(iter(uploads["weights"].values()))
            super().aggregate({**uploads, "weights": dict.fromkeys(uploads["weights"], twin)})

    class TwinsOnly(Twins):
        def _distil(self, start, models):
            return {}

    module, rounds = run(Twins, data=data(**options))
    reference, _ = run(TwinsOnly, data=data(**options))
    assert all(torch.equal(w, module.state_dict()[n]) for n, w in reference.state_dict().items())
    assert all(r["round/distillation_steps"] == 1 for r in rounds)


@pytest.mark.parametrize(("ensemble", "temperature"), [("avg_logits", 1.0), ("avg_losses", 1.0), ("avg_logits", 3.0)])
def test_one_step_of_adam_follows_the_divergence(ensemble, temperature):
    # all samples in one batch, no validation, one step: w - lr * sign of the gradient (Adam's first step)
    federated = data()
    options = {"steps": 1, "lr": 1e-2, "batch_size": 999, "validation_fraction": 0.0, "ensemble": ensemble}
    options["temperature"] = temperature
    module, _ = run(Probe, 1, data=federated, **options)
    inputs, _ = next(federated.train_source.batches([federated.shared]))
    sizes = torch.tensor([float(module.cohort_weights[k]) for k in module.models])
    mean = {
        n: sum(s * m[n].double() for s, m in zip(sizes, module.models.values(), strict=True)) / sizes.sum()
        for n in next(iter(module.models.values()))
    }
    student = make_module(FedDF)
    student.load_state_dict({n: w.float() for n, w in mean.items()})
    teachers = torch.stack([logits_of(m, inputs) for m in module.models.values()]).detach()
    teachers = teachers.mean(0, keepdim=True) if ensemble == "avg_logits" else teachers
    log_p, teachers = F.log_softmax(student(inputs) / temperature, 1), teachers / temperature
    loss = torch.stack([(t.softmax(1) * (t.log_softmax(1) - log_p)).sum(1).mean() for t in teachers]).mean()
    (temperature**2 * loss).backward()
    for name, weight in student.named_parameters():
        torch.testing.assert_close(module.gradients[name], weight.grad, rtol=1e-3, atol=1e-6)
        big = weight.grad.abs() > 1e-4
        expected = weight.detach() - 1e-2 * weight.grad.sign()
        torch.testing.assert_close(module.global_weights[name][big], expected[big], rtol=1e-3, atol=1e-4)


def test_distillation_comes_nearer_to_the_ensemble():
    federated = data()
    module, _ = run(Probe, 1, data=federated, steps=300, validation_fraction=0.0)
    inputs, _ = next(federated.train_source.batches([federated.shared]))
    ensemble = torch.stack([logits_of(m, inputs) for m in module.models.values()]).mean(0)

    def divergence(weights):
        return F.kl_div(logits_of(weights, inputs).log_softmax(1), ensemble.softmax(1), reduction="batchmean").item()

    sizes = module.cohort_weights
    mean = {
        n: sum(sizes[k] * m[n].double() for k, m in module.models.items()) / sum(sizes.values())
        for n in module.models[0]
    }
    assert divergence(module.global_weights) < 0.5 * divergence(mean)


def test_the_rate_falls_along_a_cosine():
    # (1 + cos(pi i / 4)) / 2 for i = 0 to 3
    module, _ = run(Probe, 1, data=data(), steps=4, lr=0.1, validation_fraction=0.0)
    assert module.rates == pytest.approx([0.1, 0.1 * (2 + 2**0.5) / 4, 0.05, 0.1 * (2 - 2**0.5) / 4])


def test_of_equal_students_the_last_is_kept():
    class Equal(FedDF):
        def _accuracy(self, validation):
            self.seen = {n: w.detach().clone() for n, w in self.trainable().items()}
            return 0.5

    module, _ = run(Equal, 1, data=data(), steps=20, eval_every=10)
    assert all(torch.equal(w, module.global_weights[n]) for n, w in module.seen.items())


def test_patience_stops_and_looks_happen_at_their_steps():
    class Looks(FedDF):
        looks = 0

        def _accuracy(self, validation):
            self.looks += 1
            return 0.5  # never better than at the start

    module, rounds = run(
        Looks, 1, data=data(), federation=Federation(local_epochs=40), steps=500, eval_every=5, patience=20
    )
    assert rounds[0]["round/distillation_steps"] == 20
    assert module.looks == 1 + 4


def test_the_best_student_is_kept():
    class Falling(FedDF):
        scores = None

        def _accuracy(self, validation):
            self.scores = [0.1, 0.9, 0.2, 0.1] if self.scores is None else self.scores
            score = self.scores.pop(0)
            if score == 0.9:
                self.best = {n: w.detach().clone() for n, w in self.trainable().items()}
            return score

    module, _ = run(
        Falling, 1, data=data(), federation=Federation(local_epochs=40), steps=30, eval_every=10, patience=1000
    )
    assert all(torch.equal(w, module.global_weights[n]) for n, w in module.best.items())


def test_validation_samples_are_not_imitated():
    class Split(FedDF):
        def _imitate(self, inputs, teachers, validation):
            self.counts = len(inputs), len(validation[1])
            return super()._imitate(inputs, teachers, validation)

    federated = data()
    module, _ = run(Split, 1, data=federated, steps=1, validation_fraction=0.25)
    total = len(federated.shared)
    assert module.counts == (total - round(0.25 * total), round(0.25 * total))


def test_nothing_extra_is_sent():
    _, rounds = run(FedDF, 1, data=data(), steps=2)
    assert (
        rounds[0]["round/extra_bytes_up"] == rounds[0]["round/extra_bytes_down"] == rounds[0]["round/setup_bytes"] == 0
    )


def test_batch_norm_statistics_are_plain_means():
    module, _ = run(FedDF, 2, data=data(), net=BatchNormNet, steps=5)
    fedavg, _ = run(FedDF, 2, data=data(), net=BatchNormNet, steps=0)
    assert (module.net.fc1[1].running_var > 0).all()
    assert int(module.net.fc1[1].num_batches_tracked) == int(fedavg.net.fc1[1].num_batches_tracked)


def test_partial_participation():
    module, _ = run(FedDF, 3, data=data(), federation=Federation(participation=2), steps=5)
    assert all(torch.isfinite(w).all() for w in module.state_dict().values())


def test_weights_that_travel_apart_are_refused():
    with pytest.raises(CompositionError, match=r"`Both` cannot combine `FedDFMixin` and `FedCDMixin`: .*whole models"):

        class Both(FedDFMixin, FedCDMixin, Classifier):
            def __init__(self, temperature=1.0, **kwargs):
                super().__init__(temperature=temperature, **kwargs)


def test_resume_is_bit_identical(tmp_path):
    assert_resumes(FedDF, tmp_path, make=data, steps=20)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"steps": -1}, "`steps=-1` must be at least 0: use 0 for FedAvg"),
        ({"lr": 0.0}, "`lr=0.0` must be above 0"),
        ({"patience": 0}, "`patience=0` must be at least 1"),
        ({"validation_fraction": 1.0}, "`validation_fraction=1.0` must lie in"),
        ({"ensemble": "vote"}, "`ensemble='vote'` must be one of `avg_logits`"),
    ],
)
def test_refusals(option, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(FedDF, **option)
