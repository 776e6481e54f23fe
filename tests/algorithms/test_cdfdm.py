import math

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from flightning.algorithms import CDFDM, CDFDMMixin, FedAtt, FedAttMixin
from flightning.algorithms.fedatt import _NOISE
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import ConfigurationError
from flightning.functional.seeding import torch_generator
from tests.classification import BatchNormNet, Crash, assert_resumes, assert_same, make_data, make_module, run
from tests.problems import fit_quadratic

H, B, ETA, K = (1, 3, 10), (-1, 0.5, 2), 0.02, 5

pytestmark = pytest.mark.filterwarnings("ignore:a client asks for", "ignore:all .* rounds are warm-up")


class OwnDataOnly(CDFDMMixin):
    """The quadratic clients hold their own problem: nothing is taken away from them."""

    default_shared_fraction = 0.0


def quadratic(rounds, **kwargs):
    return fit_quadratic(OwnDataOnly, rounds, shared_ratio=0.0, **kwargs).w.item()


def local_models(w):
    return [b + (1 - ETA * h) ** K * (w - b) for h, b in zip(H, B, strict=True)]


def data(**kwargs):
    return make_data(per_class=[3, 6, 9], shared_fraction=0.2, **kwargs)


@pytest.mark.parametrize(
    "option",
    [
        {},
        {"normalise_step": True},
        {"att_temperature": 0.1},
        {"att_sign": -1},
        {"beta": "joint"},
        {"beta": "one"},
        {"beta": "joint", "att_temperature": 0.1, "att_sign": -1},
    ],
    ids=str,
)
def test_rounds_match_closed_form(option):
    # two rounds of uniform FedAvg give M_s; then Eq. 6 with the scores e^{+-s / T}: alpha_k is a score over their sum
    # over clients and beta one over the sum with that of M_s, `joint`: both over the second sum, `one`: beta = 1
    w, lambda_, mu = 0.0, 0.8, 0.5
    scale, reading = option.get("att_sign", 1) / option.get("att_temperature", 1.0), option.get("beta", "separate")
    for _ in range(2):
        w = sum(local_models(w)) / 3
    shared = w
    for _ in range(2):
        models = local_models(w)
        scores = [math.exp(scale * abs(w - m)) for m in models]
        own = math.exp(scale * abs(w - shared))
        whole = sum(scores) + own if reading == "joint" else sum(scores)
        pull = mu if reading == "one" else mu * own / (sum(scores) + own)
        step = lambda_ / (1 + pull) if option.get("normalise_step") else lambda_
        w -= step * (sum(s / whole * (w - m) for s, m in zip(scores, models, strict=True)) + pull * (w - shared))
    assert quadratic(4, lambda_=lambda_, mu=mu, warmup_rounds=2, **option) == pytest.approx(w, rel=1e-12)


def test_noise_is_added_after_the_warm_up():
    # one warm-up round without noise; that of the second depends on seed and round alone
    quiet, noisy = (quadratic(2, mu=0.5, warmup_rounds=1, dp=dp) for dp in (0.0, 0.1))
    drawn = torch.randn((), generator=torch_generator(0, 1, _NOISE), dtype=torch.float64).item()
    assert noisy - quiet == pytest.approx(0.1 * drawn, rel=1e-9)


def test_mu_zero_without_warm_up_is_fedatt():
    fedatt = fit_quadratic(FedAttMixin, 4, epsilon=0.9, dp=0.0).w.item()
    assert quadratic(4, lambda_=0.9, mu=0.0, warmup_rounds=0) == fedatt


def test_mu_zero_is_fedatt_on_the_same_fused_data_bit_for_bit():
    class FedAttOnFused(CDFDM):
        attend = FedAtt.attend

    options = {"warmup_rounds": 0, "lambda_": 1.2, "dp": 1e-3}
    assert_same(run(CDFDM, data=data(), mu=0.0, **options)[0], run(FedAttOnFused, data=data(), **options)[0])


def test_warm_up_is_the_uniform_mean():
    # sizes 1, 2, 5 would weigh 1/8, 2/8, 5/8; one step of size eta from 0: w_i = eta h_i b_i
    federation = Federation(local_steps=1)
    found = quadratic(1, data=Quadratic(copies=[1, 2, 5]), federation=federation, warmup_rounds=5)
    assert found == pytest.approx(ETA * (-1 + 1.5 + 20) / 3, rel=1e-12)


def test_clients_that_stay_move_toward_the_shared_model():
    # no client moves (s_k = 0): g <- g - lambda mu beta (g - M), beta = e^|g - M| / (2 + e^|g - M|)
    class Shifted(OwnDataOnly):
        def on_round_start(self):
            super().on_round_start()
            self.server_state.shared_model = {"w": torch.tensor(3.0, dtype=torch.float64)}

    problem = Quadratic(curvatures=(1.0, 2.0), centers=(1.0, 1.0))
    options = {"data": problem, "shared_ratio": 0.0, "warmup_rounds": 0, "module_kwargs": {"start": 1.0}}
    module = fit_quadratic(Shifted, 1, mu=0.5, **options)
    assert module.w.item() == pytest.approx(1 + 0.5 * 2 * math.exp(2) / (2 + math.exp(2)), rel=1e-12)


def test_shared_samples_are_in_proportion_to_own_ones():
    federated = data()
    module, rounds = run(CDFDM, 1, data=federated, shared_ratio=0.3)
    own = [len(part) for part in federated.own_parts]
    assert own[0] < own[1] < own[2]
    for client, part in enumerate(federated.parts):
        given = part[own[client] :]
        assert len(given) == round(0.3 * own[client]) == len(np.unique(given))
        assert np.isin(given, federated.shared).all()
    # 4 floats and one label of 8 bytes per sample
    assert rounds[0]["round/setup_bytes"] == sum(round(0.3 * n) for n in own) * (4 * 4 + 8) == module.setup_bytes


def test_a_second_fit_hands_out_the_same_samples():
    federated = data()
    run(CDFDM, 1, data=federated)
    first = [part.copy() for part in federated.parts]
    run(CDFDM, 1, data=federated)
    assert all(np.array_equal(a, b) for a, b in zip(first, federated.parts, strict=True))


def test_without_an_option_the_server_takes_a_twentieth():
    federated = make_data(per_class=20)
    run(CDFDM, 1, data=federated)
    assert federated.shared_fraction == 0.05
    assert not np.isin(np.concatenate(federated.own_parts), federated.shared).any()
    counts = np.bincount(federated.train_source.labels[federated.shared])
    assert counts.tolist() == [2, 2, 2]  # round(0.05 * 120 / 3) of each class


def test_more_samples_than_the_server_owns_are_capped_with_a_warning():
    federated = make_data(per_class=20)
    with pytest.warns(UserWarning, match=r"asks for \d+ shared samples and the server owns 6"):
        run(CDFDM, 1, data=federated, shared_ratio=1.0)
    assert len(federated.parts[0]) == len(federated.own_parts[0]) + 6


def test_only_warm_up_rounds_are_warned_about():
    with pytest.warns(UserWarning, match="all 2 rounds are warm-up"):
        run(CDFDM, 2, data=data(), warmup_rounds=2)


def test_warm_up_rounds_are_marked_and_only_they():
    _, rounds = run(CDFDM, 4, data=data(), warmup_rounds=2)
    assert [r["round/warmup"] for r in rounds] == [1, 1, 0, 0]
    assert all(r["round/extra_bytes_up"] == r["round/extra_bytes_down"] == 0 for r in rounds)
    # set-up of the method: T_s times the weights down and up, counted in the rounds that they are
    weights = 3 * 4 * sum(p.numel() for p in make_module(CDFDM).parameters())
    assert sum(r["round/bytes_up"] + r["round/bytes_down"] for r in rounds if r["round/warmup"]) == 2 * 2 * weights


class Steps(CDFDM):
    """Keep how many local steps each client took in its last round."""

    def on_client_end(self):
        self.steps = {**getattr(self, "steps", {}), self.client.id: self.client.steps}
        return super().on_client_end()


def test_the_first_round_trains_on_shared_samples():
    # 2 epochs in batches of 4 over own and as many shared samples; a first round on own samples would not end
    federated = data()
    module, _ = run(Steps, 1, data=federated, shared_ratio=0.5)
    assert [module.steps[k] for k in range(3)] == [2 * math.ceil(len(part) / 4) for part in federated.parts]
    assert not torch.equal(module.net.head.weight, make_module(Steps).net.head.weight)


def test_private_stage_takes_shared_samples_back():
    # 2 epochs in batches of 4 over own samples alone
    federated = data()
    module, rounds = run(Steps, 3, data=federated, warmup_rounds=2, stage_data="private", shared_ratio=1.0)
    assert all(np.array_equal(a, b) for a, b in zip(federated.parts, federated.own_parts, strict=True))
    assert [module.steps[k] for k in range(3)] == [2 * math.ceil(len(part) / 4) for part in federated.own_parts]
    assert len(rounds) == 3


def test_shared_model_does_not_alias_global_weights():
    module, _ = run(CDFDM, 2, data=data(), warmup_rounds=1)
    kept = module.server_state.shared_model["net.head.weight"]
    assert kept.data_ptr() != module.global_weights["net.head.weight"].data_ptr()
    assert not torch.equal(kept, module.global_weights["net.head.weight"])


def test_batch_norm_statistics_stay_positive_with_overshoot():
    module, _ = run(CDFDM, 3, data=data(), net=BatchNormNet, lambda_=3.0, warmup_rounds=1)
    assert (module.net.fc1[1].running_var > 0).all()


@pytest.mark.parametrize("stage_data", ["fused", "private"])
def test_resume_is_bit_identical(tmp_path, stage_data):
    assert_resumes(CDFDM, tmp_path, make=data, warmup_rounds=1, stage_data=stage_data)


def test_samples_taken_back_stay_away_after_a_resume_at_the_end_of_the_warm_up(tmp_path):
    # saved by the validation of the second round, which is over but for Lightning's own counters
    options = {"warmup_rounds": 2, "stage_data": "private", "shared_ratio": 1.0}
    whole, _ = run(CDFDM, 4, data=data(), **options)
    saving = ModelCheckpoint(dirpath=tmp_path, save_last=True, save_on_train_epoch_end=False)
    with pytest.raises(InterruptedError):
        run(CDFDM, 4, data=data(), callbacks=[Crash(), saving], **options)
    federated = data()
    resumed, _ = run(CDFDM, 4, data=federated, ckpt_path=str(tmp_path / "last.ckpt"), seed=99, **options)
    assert all(np.array_equal(a, b) for a, b in zip(federated.parts, federated.own_parts, strict=True))
    assert_same(whole, resumed)


def test_partial_participation_and_every_reading():
    for reading in ("separate", "joint", "layers", "one"):
        module, _ = run(CDFDM, 2, data=data(), federation=Federation(participation=2), warmup_rounds=1, beta=reading)
        assert all(torch.isfinite(w).all() for w in module.state_dict().values())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"lambda_": 0.0}, "`lambda_=0.0` must be above 0"),
        ({"mu": -0.1}, "`mu=-0.1` must be at least 0"),
        ({"shared_ratio": 1.5}, "`shared_ratio=1.5` must lie in"),
        ({"warmup_rounds": -1}, "`warmup_rounds=-1` must be at least 0"),
        ({"beta": "both"}, "`beta='both'` must be one of `separate`"),
        ({"stage_data": "all"}, "`stage_data='all'` must be one of `fused`"),
    ],
)
def test_refusals(option, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(CDFDM, **option)
