import math

import pytest
import torch

from flightning.algorithms import FedAtt, FedAttMixin, FedAvg, FedAvgMixin, FedProx
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import CompositionError, ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, assert_same, make_data, run
from tests.problems import QuadraticModule, fit_quadratic

H, B, ETA, K = (1, 3, 10), (-1, 0.5, 2), 0.02, 5


def local_models(w):
    # K gradient steps of h/2 (w - b)^2: b + (1 - eta h)^K (w - b)
    return [b + (1 - ETA * h) ** K * (w - b) for h, b in zip(H, B, strict=True)]


@pytest.mark.parametrize(("epsilon", "temperature", "sign"), [(1.2, 1.0, 1), (0.7, 0.1, -1)])
def test_rounds_match_closed_form(epsilon, temperature, sign):
    w = 0.0
    for _ in range(3):
        models = local_models(w)
        scores = [math.exp(sign * abs(w - m) / temperature) for m in models]
        w -= epsilon * sum(s / sum(scores) * (w - m) for s, m in zip(scores, models, strict=True))
    options = {"epsilon": epsilon, "dp": 0.0, "att_temperature": temperature, "att_sign": sign}
    assert fit_quadratic(FedAttMixin, 3, **options).w.item() == pytest.approx(w, rel=1e-12)


def test_equal_distances_and_step_one_are_uniform_fedavg():
    # centers at -1 and 1 with one curvature: both clients move as far from 0; sizes differ, weights do not
    options = {"curvatures": (2.0, 2.0), "centers": (-1.0, 1.0), "copies": [1, 5]}
    uniform = fit_quadratic(FedAvgMixin, 1, data=Quadratic(**options), federation=Federation(weighting="uniform"))
    module = fit_quadratic(FedAttMixin, 1, data=Quadratic(**options), federation=Federation(), epsilon=1.0, dp=0.0)
    assert module.w.item() == pytest.approx(uniform.w.item(), abs=1e-15)


def test_infinite_temperature_is_uniform_fedavg():
    federation = {"federation": Federation(local_epochs=2, weighting="uniform"), "data": make_data(per_class=[2, 4, 6])}
    fedavg, _ = run(FedAvg, **federation)
    module, _ = run(FedAtt, data=federation["data"], epsilon=1.0, dp=0.0, att_temperature=math.inf)
    for name, weight in fedavg.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], weight)


def test_one_client_with_step_one_keeps_its_weights():
    data = make_data(classes=((0, 1),))
    assert_same(run(FedAtt, data=data, epsilon=1.0, dp=0.0)[0], run(FedAvg, data=data)[0])


def test_clients_that_stay_leave_the_global_weights():
    # at w = b = 1 no client moves
    data = Quadratic(curvatures=(1.0, 2.0), centers=(1.0, 1.0))
    assert fit_quadratic(FedAttMixin, 2, data=data, dp=0.0, module_kwargs={"start": 1.0}).w.item() == 1.0


def test_noise_has_the_asked_deviation_and_is_new_in_every_round():
    class Still(FedAtt):
        def correct_gradients(self):
            for p in self.parameters():
                p.grad.zero_()

    one, two = (run(Still, rounds, dp=0.5)[0].state_dict()["net.fc1.1.weight"] for rounds in (1, 2))
    start = run(Still, 1, dp=0.0)[0].state_dict()["net.fc1.1.weight"]
    assert (one - start).std().item() == pytest.approx(0.5, rel=0.5)
    assert not torch.equal(two - one, one - start)


def test_buffers_are_plain_means():
    # attention with a step of 3 would make running variances negative
    module, _ = run(FedAtt, data=make_data(per_class=[2, 4, 6]), net=BatchNormNet, epsilon=3.0)
    uniform, _ = run(FedAtt, data=make_data(per_class=[2, 4, 6]), net=BatchNormNet, epsilon=1.0)
    assert (module.net.fc1[1].running_var > 0).all()
    assert int(module.net.fc1[1].num_batches_tracked) == int(uniform.net.fc1[1].num_batches_tracked) > 0


def test_means_of_buffers_are_weighted_by_samples():
    # after one round the clients' statistics are those of FedAvg, whatever happens to the weights
    options = {"net": BatchNormNet, "data": make_data(per_class=[2, 4, 6])}
    module, fedavg = run(FedAtt, 1, epsilon=3.0, **options)[0], run(FedAvg, 1, **options)[0]
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(module.net.fc1[1], name), getattr(fedavg.net.fc1[1], name))


def test_nothing_extra_is_sent():
    _, rounds = run(FedAtt, 1)
    assert rounds[0]["round/extra_bytes_up"] == rounds[0]["round/extra_bytes_down"] == 0
    assert rounds[0]["round/bytes_up"] == rounds[0]["round/bytes_down"] == 3 * 4 * 43  # 4*5+5 + 5*3+3 weights


def test_partial_participation_attends_to_the_cohort():
    module, rounds = run(FedAtt, 3, federation=Federation(participation=2))
    assert all(r["round/clients"] == 2 for r in rounds)
    assert all(torch.isfinite(w).all() for w in module.state_dict().values())


def test_resume_is_bit_identical(tmp_path):
    assert_resumes(FedAtt, tmp_path)


def test_other_aggregation_rules_are_refused_in_the_same_class():
    class Other(FedAvgMixin):
        owns = frozenset({"aggregation rule"})

    with pytest.raises(CompositionError, match="both own the aggregation rule"):
        type("Both", (FedAttMixin, Other, QuadraticModule), {})


def test_it_composes_with_a_regularizer():
    class Both(FedAttMixin, FedProx): ...

    assert "round/prox" in run(Both, 1, mu=0.1)[1][0]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"epsilon": 0.0}, "`epsilon=0.0` must be above 0"),
        ({"dp": -1.0}, "`dp=-1.0` must be at least 0"),
        ({"att_temperature": 0.0}, "`att_temperature=0.0` must be above 0"),
        ({"att_sign": 2}, "`att_sign=2` must be one of"),
    ],
)
def test_refusals(option, message):
    with pytest.raises(ConfigurationError, match=message):
        FedAtt(**option)
