import pytest
import torch

from flightning.algorithms import FedAvg, FedAvgM, FedAvgMixin, FedAvgMMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, assert_same, run
from tests.problems import fit_quadratic

H, B, ETA = (1, 3, 10), (-1, 0.5, 2), 0.02


@pytest.mark.parametrize("nesterov", [False, True])
def test_rounds_match_closed_form(nesterov):
    # mean update of FedAvg at w: mean_i (a_i - 1)(w - b_i), a_i = (1 - eta h_i)^5
    beta, lr, w, v = 0.8, 0.7, 0.0, 0.0
    for _ in range(4):
        update = sum(((1 - ETA * h) ** 5 - 1) * (w - b) for h, b in zip(H, B, strict=True)) / 3
        v = beta * v + update
        w += lr * (update + beta * v if nesterov else v)
    module = fit_quadratic(FedAvgMMixin, 4, beta=beta, server_lr=lr, nesterov=nesterov)
    assert module.w.item() == pytest.approx(w, rel=1e-12)
    assert module.server_state.velocity["w"].item() == pytest.approx(v, rel=1e-12)


def test_constant_update_is_scaled_up():
    # b so far away that h (w - b) hardly changes: after many rounds a step is update / (1 - beta)
    data = {"curvatures": (1e-6,), "centers": (1e6,)}
    module = fit_quadratic(FedAvgMMixin, 40, local_steps=1, data=Quadratic(**data), beta=0.5)
    assert module.server_state.velocity["w"].item() == pytest.approx(0.02 / (1 - 0.5), rel=1e-5)


@pytest.mark.parametrize("nesterov", [False, True])
def test_beta_zero_is_fedavg_bit_for_bit(nesterov):
    assert_same(run(FedAvgM, 3, beta=0.0, nesterov=nesterov)[0], run(FedAvg, 3)[0])
    pair = fit_quadratic(FedAvgMMixin, 3, beta=0.0), fit_quadratic(FedAvgMixin, 3)
    assert pair[0].w.item() == pair[1].w.item()


def test_first_round_is_fedavg():
    assert_same(run(FedAvgM, 1)[0], run(FedAvg, 1)[0])


def test_partial_participation_uses_the_mean_of_the_cohort():
    # two rounds of one client each, from w = 0: the velocity mixes updates of different clients
    federation = Federation(local_steps=1, participation=1)
    seen = []
    probe = type("Probe", (FedAvgMMixin,), {"on_round_end": lambda self: seen.append(self.cohort[0])})
    module = fit_quadratic(probe, 2, federation=federation, beta=0.5)
    first = -ETA * H[seen[0]] * (0 - B[seen[0]])
    second = first - ETA * H[seen[1]] * (first - B[seen[1]]) + 0.5 * first
    assert module.w.item() == pytest.approx(second, rel=1e-12)


def test_batch_norm_statistics_have_no_momentum():
    module, _ = run(FedAvgM, 4, net=BatchNormNet)
    assert set(module.server_state.velocity) == {n for n, _ in module.named_parameters()}
    # without the parameters' momentum: the statistics of the first round are those of FedAvg
    one, plain = (run(cls, 1, net=BatchNormNet)[0].net.fc1[1] for cls in (FedAvgM, FedAvg))
    assert torch.equal(one.running_var, plain.running_var)


def test_no_extra_bytes():
    _, rounds = run(FedAvgM, 1)
    assert rounds[0]["round/extra_bytes_up"] == rounds[0]["round/extra_bytes_down"] == 0


def test_velocity_does_not_alias_weights():
    module = fit_quadratic(FedAvgMMixin, 1)
    assert module.server_state.velocity["w"].data_ptr() != module.global_weights["w"].data_ptr()


def test_resumes_in_the_middle(tmp_path):
    assert_resumes(FedAvgM, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 1.0}, r"`beta=1.0` must lie in \[0, 1\): use 0 for plain FedAvg"),
        ({"server_lr": 0.0}, r"`server_lr=0.0` must be above 0: use 1"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ConfigurationError, match=message):
        FedAvgM(**options)
