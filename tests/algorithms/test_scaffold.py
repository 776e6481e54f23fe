import math

import pytest
import torch

from flightning.algorithms import FedAvg, FedAvgMixin
from flightning.algorithms.scaffold import SCAFFOLD, SCAFFOLDMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import CompositionError, ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, assert_same, make_data, make_module, run
from tests.problems import QuadraticModule, TwoGroups, fit, fit_quadratic

H, B, ETA, OPTIMUM = (1, 3, 10), (-1, 0.5, 2), 0.02, 1.4642857142857142


def by_hand(rounds, k, rho=0.0):
    """Algorithm 1 with option II on paper: heavy ball, correction inside, divisor A eta."""
    a = (k - rho * (1 - rho**k) / (1 - rho)) / (1 - rho)
    x, c, own = 0.0, 0.0, [0.0] * 3
    for _ in range(rounds):
        ends, new = [], []
        for i in range(3):
            y, buffer = x, 0.0
            for _ in range(k):
                buffer = rho * buffer + H[i] * (y - B[i]) - own[i] + c
                y -= ETA * buffer
            ends.append(y)
            new.append(own[i] - c + (x - y) / (a * ETA))
        x, c, own = sum(ends) / 3, c + sum(n - o for n, o in zip(new, own, strict=True)) / 3, new
    return x, c, own


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_rounds_match_algorithm_on_paper(rho):
    module = fit_quadratic(SCAFFOLDMixin, 4, module_kwargs={"momentum": rho})
    x, c, own = by_hand(4, 5, rho)
    assert module.w.item() == pytest.approx(x, rel=1e-12)
    assert module.server_state.control["w"].item() == pytest.approx(c, abs=1e-12)
    kept = [module.client_states.state_dict()[i]["control"]["w"].item() for i in range(3)]
    assert kept == pytest.approx(own, rel=1e-12)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_reaches_the_optimum_also_with_momentum(option, rho):
    module = fit_quadratic(SCAFFOLDMixin, 40, option=option, module_kwargs={"momentum": rho})
    assert module.w.item() == pytest.approx(OPTIMUM, abs=1e-7)
    assert module.server_state.control["w"].item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("rho", "biased"), [(0.0, 1.4642857), (0.5, 1.4968), (0.9, 1.5838)])
def test_outside_of_momentum_is_biased_as_derived(rho, biased):
    module = fit_quadratic(SCAFFOLDMixin, 40, placement="outside", module_kwargs={"momentum": rho})
    assert module.w.item() == pytest.approx(biased, abs=5e-5)


class Unchecked(SCAFFOLDMixin):
    """Divide by K inside of momentum, which SCAFFOLD refuses."""

    def on_federation_start(self):
        self.denominator = "A"
        super().on_federation_start()
        self.denominator = "K"


def test_k_inside_of_momentum_is_exact_for_half_and_diverges_for_nine_tenths():
    # the deviation c_k - c is multiplied by -(A/K - 1) each round: A/K = 1.61 for rho = 0.5, 2.63 for rho = 0.9
    module = fit_quadratic(Unchecked, 60, module_kwargs={"momentum": 0.5})
    assert module.w.item() == pytest.approx(OPTIMUM, abs=1e-6)
    module = fit_quadratic(Unchecked, 30, module_kwargs={"momentum": 0.9})
    assert abs(module.client_states.state_dict()[0]["control"]["w"].item()) > 1e4


def test_k_inside_of_momentum_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"`denominator='K'` lets .* under `momentum=0.9`: use `denominator='A'`"
    ):
        fit_quadratic(SCAFFOLDMixin, 1, denominator="K", module_kwargs={"momentum": 0.9})


def test_denominators_agree_without_momentum():
    a, k = (fit_quadratic(SCAFFOLDMixin, 3, denominator=d).w.item() for d in "AK")
    assert a == pytest.approx(k, rel=1e-14)


def test_first_round_is_fedavg_bit_for_bit():
    assert_same(run(SCAFFOLD, 1)[0], run(FedAvg, 1)[0])
    assert_same(run(SCAFFOLD, 1, option="I")[0], run(FedAvg, 1)[0])


def test_second_round_is_not():
    a, b = run(SCAFFOLD, 2)[0], run(FedAvg, 2)[0]
    assert not torch.equal(a.net.head.weight, b.net.head.weight)


def test_identical_clients_stay_fedavg():
    data = {"curvatures": (3.0, 3.0), "centers": (0.5, 0.5)}
    a = fit_quadratic(SCAFFOLDMixin, 5, data=Quadratic(**data), module_kwargs={"momentum": 0.9})
    b = fit_quadratic(FedAvgMixin, 5, data=Quadratic(**data), module_kwargs={"momentum": 0.9})
    assert a.w.item() == pytest.approx(b.w.item(), rel=1e-12)


def test_one_client_is_plain_sgd():
    data = {"curvatures": (3.0,), "centers": (0.5,)}
    module = fit_quadratic(SCAFFOLDMixin, 4, data=Quadratic(**data))
    assert module.w.item() == pytest.approx(0.5 - 0.5 * (1 - ETA * 3) ** 20, rel=1e-12)


def test_option_two_with_one_step_is_the_gradient():
    # c_k = h (w - b) at the downloaded w = 1
    module = fit_quadratic(SCAFFOLDMixin, 1, local_steps=1, module_kwargs={"start": 1.0})
    for i, state in module.client_states.state_dict().items():
        assert state["control"]["w"].item() == pytest.approx(H[i] * (1.0 - B[i]), rel=1e-12)


def test_option_one_is_the_gradient_of_all_data_at_the_global_weights():
    module = fit_quadratic(SCAFFOLDMixin, 1, option="I", module_kwargs={"start": 1.0, "weight_decay": 0.5})
    for i, state in module.client_states.state_dict().items():
        assert state["control"]["w"].item() == pytest.approx(H[i] * (1.0 - B[i]) + 0.5, rel=1e-12)


def test_option_one_is_the_mean_over_samples_also_of_unequal_batches():
    # 12 samples in evaluation batches of 8 and 4
    data = make_data(batch_size=12)
    module, _ = run(SCAFFOLD, 1, data, Federation(local_steps=1), option="I")
    start = make_module(FedAvg)  # the same initial weights
    for client, part in enumerate(data.parts):
        logits = start(data.train_source.inputs[part])
        loss = torch.nn.functional.cross_entropy(logits, data.train_source.targets[part])
        control = module.client_states.state_dict()[client]["control"]
        names = [n for n, _ in start.named_parameters()]
        for name, gradient in zip(names, torch.autograd.grad(loss, list(start.parameters())), strict=True):
            torch.testing.assert_close(control[name], gradient)


class Stuck(SCAFFOLDMixin):
    """Takes no step that counts in the second round, as where a gradient scaler skips all of them."""

    def on_client_end(self):
        if self.round_index == 1:
            self.client.step_sizes.clear()
        return super().on_client_end()


@pytest.mark.parametrize("option", ["I", "II"])
def test_client_without_a_step_keeps_its_control(option):
    first, second = (fit_quadratic(Stuck, n, option=option, module_kwargs={"start": 1.0}) for n in (1, 2))
    assert first.w.item() != second.w.item()
    for client, state in second.client_states.state_dict().items():
        assert state["control"]["w"].item() == first.client_states.state_dict()[client]["control"]["w"].item()
    assert second.server_state.control["w"].item() == first.server_state.control["w"].item()


@pytest.mark.parametrize("option", ["I", "II"])
def test_weight_decay_is_part_of_the_objective(option):
    # optimum of the mean of h/2 (w - b)^2 + wd/2 w^2
    module = fit_quadratic(SCAFFOLDMixin, 40, option=option, module_kwargs={"weight_decay": 0.5})
    assert module.w.item() == pytest.approx(20.5 / (14 + 3 * 0.5), abs=1e-7)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_weights_of_clients_make_the_objective(option, weighting):
    # sum n h b / sum n h with n = (4, 1, 2), or all equal
    n = (4, 1, 2) if weighting == "samples" else (1, 1, 1)
    optimum = sum(a * h * b for a, h, b in zip(n, H, B, strict=True)) / sum(a * h for a, h in zip(n, H, strict=True))
    federation = Federation(local_steps=5, weighting=weighting)
    module = fit_quadratic(SCAFFOLDMixin, 40, data=Quadratic(copies=[4, 1, 2]), federation=federation, option=option)
    assert module.w.item() == pytest.approx(optimum, abs=1e-7)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_server_control_is_mean_of_all_clients_under_partial_participation(weighting):
    federation = Federation(participation=2, weighting=weighting)
    data = make_data(classes=((0, 1), (1, 2), (0, 2), (0, 1), (1, 2)), per_class=[3, 9, 6, 5, 4])
    module, _ = run(SCAFFOLD, 6, data, federation)
    sizes = torch.tensor(data.sizes if weighting == "samples" else [1.0] * 5, dtype=torch.float64)
    for name, control in module.server_state.control.items():
        kept = [module.client_states.state_dict()[c]["control"][name] for c in range(5)]
        mean = sum(s * c for s, c in zip(sizes / sizes.sum(), kept, strict=True))
        torch.testing.assert_close(control, mean.float(), rtol=1e-4, atol=1e-6)


def test_partial_participation_reaches_the_optimum():
    federation = Federation(local_steps=5, participation=2)
    module = fit_quadratic(SCAFFOLDMixin, 120, federation=federation)
    assert module.w.item() == pytest.approx(OPTIMUM, abs=1e-3)


class Snapshots(SCAFFOLDMixin):
    def on_round_start(self):
        super().on_round_start()
        known = {c: s["control"]["w"].item() for c, s in self.client_states.state_dict().items()}
        self.seen = [*getattr(self, "seen", []), (list(self.cohort), known)]


def test_client_that_is_not_sampled_keeps_its_control():
    module = fit_quadratic(Snapshots, 8, federation=Federation(local_steps=5, participation=1))
    for (cohort, before), (_, after) in zip(module.seen, module.seen[1:], strict=False):
        assert {c: v for c, v in after.items() if c not in cohort} == {
            c: v for c, v in before.items() if c not in cohort
        }


def test_empty_client_does_not_dilute_the_mean():
    data = Quadratic((*H, 5.0), (*B, 9.0), copies=[1, 1, 1, 0])
    module = fit_quadratic(SCAFFOLDMixin, 40, data=data)
    assert module.w.item() == pytest.approx(OPTIMUM, abs=1e-7)
    assert 3 not in module.client_states


class Scheduled(QuadraticModule):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def test_divisor_is_the_rate_that_was_used_also_for_the_last_client():
    # the scheduler has stepped when the last client ends; one step per round: c_k = h (w - b) at the downloaded w
    module = type("S", (SCAFFOLDMixin, Scheduled), {})()
    start = []
    module.on_round_start = lambda: start.append(module.global_weights["w"].item())
    fit(module, Quadratic(), 3, Federation(local_steps=1))
    for i, state in module.client_states.state_dict().items():
        assert state["control"]["w"].item() == pytest.approx(H[i] * (start[-1] - B[i]), rel=1e-9)


def test_parameter_groups_have_their_own_divisor():
    module = type("G", (SCAFFOLDMixin, TwoGroups), {})()
    fit(module, Quadratic(), 50, Federation(local_steps=5))
    assert (module.w.item(), module.v.item()) == pytest.approx((OPTIMUM, OPTIMUM), abs=1e-5)


def test_parameter_groups_are_corrected_outside_with_their_own_rate():
    def outside(eta, rho, rounds=4, k=5):
        x, c, own = 0.0, 0.0, [0.0] * 3
        for _ in range(rounds):
            ends, new = [], []
            for i in range(3):
                y, buffer = x, 0.0
                for _ in range(k):
                    buffer = rho * buffer + H[i] * (y - B[i])
                    y -= eta * buffer + eta * (c - own[i])
                ends.append(y)
                new.append(own[i] - c + (x - y) / (k * eta))
            x, c, own = sum(ends) / 3, c + sum(n - o for n, o in zip(new, own, strict=True)) / 3, new
        return x

    module = type("G", (SCAFFOLDMixin, TwoGroups), {})(placement="outside")
    fit(module, Quadratic(), 4, Federation(local_steps=5))
    assert [module.w.item(), module.v.item()] == pytest.approx([outside(0.02, 0.0), outside(0.01, 0.9)], rel=1e-10)
    assert [module.w.item(), module.v.item()] == pytest.approx([1.2466198672, 1.4843262067], abs=1e-9)


def test_gradient_is_clipped_before_the_correction():
    # one client step of size eta per round, |gradient| clipped to 0.1: c_k = clipped gradient, c their mean; in round 2
    # client i moves by -eta (clipped - c_k + c) = -eta c as long as the clipped gradients stay, here -0.1, -0.1, 0.1
    module = type("C", (SCAFFOLDMixin, QuadraticModule), {})(start=0.0)
    fit(module, Quadratic((1, 1, 1), (2, 3, -4)), 2, Federation(local_steps=1), gradient_clip_val=0.1)
    assert module.w.item() == pytest.approx(2 * ETA * 0.1 / 3, rel=1e-6)


class Adaptive(QuadraticModule):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


@pytest.mark.parametrize(("base", "kwargs"), [(Adaptive, {}), (QuadraticModule, {"momentum": 0.9, "nesterov": True})])
def test_nesterov_and_adam_use_option_one(base, kwargs):
    module = type("A", (SCAFFOLDMixin, base), {})(start=1.0, **kwargs)
    with pytest.warns(UserWarning, match=r"cannot read a gradient from the steps of .*, so `option='I'` is used"):
        fit(module, Quadratic(), 1, Federation(local_steps=3))
    assert module.client_states.state_dict()[2]["control"]["w"].item() == pytest.approx(10 * (1.0 - 2), rel=1e-12)


def test_server_lr_scales_the_step():
    whole, half = (fit_quadratic(SCAFFOLDMixin, 1, server_lr=lr).w.item() for lr in (1.0, 0.5))
    assert half == pytest.approx(whole / 2, rel=1e-12)


def test_server_lr_steps_from_the_weights_of_the_round():
    # from 1: half of the way to FedAvg's mean
    mean = sum(b + (1 - ETA * h) ** 5 * (1 - b) for h, b in zip(H, B, strict=True)) / 3
    module = fit_quadratic(SCAFFOLDMixin, 1, server_lr=0.5, module_kwargs={"start": 1.0})
    assert module.w.item() == pytest.approx(1 + 0.5 * (mean - 1), rel=1e-12)
    assert module.w.item() == pytest.approx(1.0578522675, abs=1e-9)


def test_control_does_not_alias_weights_or_server():
    module = fit_quadratic(SCAFFOLDMixin, 2)
    pointers = {s["control"]["w"].data_ptr() for s in module.client_states.state_dict().values()}
    others = {module.w.data_ptr(), module.global_weights["w"].data_ptr(), module.server_state.control["w"].data_ptr()}
    assert len(pointers) == 3
    assert not pointers & others


def test_bytes_are_one_model_more_in_each_direction():
    module, rounds = run(SCAFFOLD, 2)
    size = 4 * sum(p.numel() for p in module.parameters()) * 3
    for logged in rounds:
        assert logged["round/extra_bytes_up"] == logged["round/extra_bytes_down"] == size
        assert logged["round/bytes_up"] == logged["round/bytes_down"] == 2 * size


@pytest.mark.parametrize("option", ["I", "II"])
def test_batch_norm_statistics_are_averaged_and_not_controlled(option):
    module, _ = run(SCAFFOLD, 3, net=BatchNormNet, option=option)
    assert set(module.server_state.control) == {n for n, _ in module.named_parameters()}
    assert all(torch.isfinite(v).all() for v in module.state_dict().values())
    assert (module.net.fc1[1].running_var > 0).all()


def test_full_gradient_changes_no_statistics():
    plain = run(FedAvg, 1, net=BatchNormNet)[0]
    assert_same(run(SCAFFOLD, 1, net=BatchNormNet, option="I")[0], plain)


@pytest.mark.parametrize("placement", ["inside", "outside"])
def test_resumes_in_the_middle(tmp_path, placement):
    assert_resumes(SCAFFOLD, tmp_path, lambda: Federation(local_epochs=2, participation=2), placement=placement)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"option": "III"}, r"`option='III'` must be one of `I`, `II`"),
        ({"placement": "before"}, r"`placement='before'` must be one of `inside`, `outside`"),
        ({"denominator": "B"}, r"`denominator='B'` must be one of `A`, `K`"),
        ({"server_lr": 0.0}, r"`server_lr=0.0` must be above 0: use 1"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ConfigurationError, match=message):
        SCAFFOLD(**options)


def test_second_drift_correction_is_refused():
    other = type("OtherMixin", (FedAvgMixin,), {"owns": frozenset({"drift correction"})})
    with pytest.raises(CompositionError, match=r"cannot combine .* both own the drift correction"):
        type("Both", (SCAFFOLDMixin, other, QuadraticModule), {})


def test_client_with_broken_update_changes_nothing():
    data = Quadratic((*H, 1.0), (*B, math.nan))
    module = fit_quadratic(SCAFFOLDMixin, 3, data=data)
    assert 3 not in module.client_states
    assert math.isfinite(module.server_state.control["w"].item())
