import pytest
import torch
import torchmetrics

from flightning.algorithms import FedDyn, FedDynMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, make_data, make_module, run
from tests.problems import QuadraticModule, fit, fit_quadratic

H, B, ETA = (1.0, 3.0, 10.0), (-1.0, 0.5, 2.0), 0.02


def by_hand(rounds, k, alpha, strengths=(1.0, 1.0, 1.0)):
    """Algorithm 1 in scalars: g_k and h as the paper has them."""
    w, h, g = 0.0, 0.0, [0.0] * 3
    for _ in range(rounds):
        thetas = []
        for i, (hi, bi) in enumerate(zip(H, B, strict=True)):
            theta, a = w, alpha * strengths[i]
            for _ in range(k):
                # g_k is kept in units of alpha: the linear term of a client with strength a is g_k a / alpha
                theta -= ETA * (hi * (theta - bi) - g[i] * a / alpha + a * (theta - w))
            thetas.append(theta)
            g[i] -= alpha * (theta - w)
        h -= alpha / 3 * sum(theta - w for theta in thetas)
        w = sum(thetas) / 3 - h / alpha
    return w, h, g


def solving(**kwargs):
    """Enough local steps to come near the local solution."""
    return Federation(local_steps=20, local_loop="fused", **kwargs)


def test_rounds_match_the_algorithm_written_out():
    w, h, g = by_hand(4, 5, 0.7)
    module = fit_quadratic(FedDynMixin, 4, alpha=0.7)
    assert module.w.item() == pytest.approx(w, rel=1e-12)
    assert -0.7 * module.server_state.drift["w"].item() == pytest.approx(h, rel=1e-12)
    kept = [-0.7 * module.client_states.load(i, torch.device("cpu"))["drift"]["w"].item() for i in range(3)]
    assert kept == pytest.approx(g, rel=1e-12)


def test_near_exact_local_solves_reach_the_optimum_and_h_vanishes():
    # 20 steps of 0.08 leave (1 - 0.08 (h + alpha))^20 <= 0.76^20 = 0.4 % of the way to the local solution
    module = fit_quadratic(FedDynMixin, 50, federation=solving(), alpha=2.0, module_kwargs={"lr": 0.08})
    assert module.w.item() == pytest.approx(1.4642857, abs=1e-7)
    assert module.server_state.drift["w"].item() == pytest.approx(0.0, abs=1e-7)
    # at the optimum g_k = -alpha d_k is the client's gradient h (w* - b)
    for i, state in module.client_states.state_dict().items():
        assert -2.0 * state["drift"]["w"].item() == pytest.approx(H[i] * (20.5 / 14 - B[i]), abs=1e-6)


def test_partial_participation_reaches_the_optimum():
    federation = solving(participation=2)
    module = fit_quadratic(FedDynMixin, 80, alpha=2.0, federation=federation, module_kwargs={"lr": 0.08})
    assert module.w.item() == pytest.approx(1.4642857, abs=1e-6)
    assert module.server_state.drift["w"].item() == pytest.approx(0.0, abs=1e-6)


def test_weights_of_clients_make_the_objective():
    # sum n h b / sum n h with n = (4, 1, 2)
    data = Quadratic(copies=[4, 1, 2])
    module = fit_quadratic(FedDynMixin, 30, federation=solving(), data=data, alpha=2.0, module_kwargs={"lr": 0.05})
    assert module.w.item() == pytest.approx((-4 + 1.5 + 40) / (4 + 3 + 20), abs=1e-6)


def test_empty_client_does_not_count():
    data = Quadratic((*H, 5.0), (*B, 9.0), copies=[1, 1, 1, 0])
    module = fit_quadratic(FedDynMixin, 3, data=data, alpha=0.7)
    assert module.w.item() == pytest.approx(by_hand(3, 5, 0.7)[0], rel=1e-12)


def test_client_with_broken_update_is_left_out():
    # four clients of which one always fails: N stays 4, and three movements are added up
    data = Quadratic((*H, 1.0), (*B, float("nan")))
    module = fit_quadratic(FedDynMixin, 1, data=data, alpha=0.7)
    moved = by_hand(1, 5, 0.7)[0] / 2  # first round: w = 2 mean theta from 0
    assert module.w.item() == pytest.approx(moved * (1 + 3 / 4), rel=1e-12)
    assert 3 not in module.client_states


def test_server_drift_is_the_mean_of_all_clients_under_partial_participation():
    module = fit_quadratic(FedDynMixin, 5, alpha=1.0, federation=Federation(local_steps=5, participation=1))
    kept = [module.client_states.load(k, torch.device("cpu"))["drift"]["w"].item() for k in module.client_states]
    assert module.server_state.drift["w"].item() == pytest.approx(sum(kept) / 3, rel=1e-12)


def test_clients_of_unequal_size_scale_alpha():
    # sizes 1, 2, 5 of 8: strengths alpha n / (n_k N) = 8/3, 8/6, 8/15; the means stay uniform
    data = Quadratic(copies=[1, 2, 5])
    w, _, _ = by_hand(3, 5, 0.7, (8 / 3, 8 / 6, 8 / 15))
    assert fit_quadratic(FedDynMixin, 3, data=data, alpha=0.7).w.item() == pytest.approx(w, rel=1e-12)
    w, _, _ = by_hand(3, 5, 0.7)
    uniform = Federation(local_steps=5, weighting="uniform")
    module = fit_quadratic(FedDynMixin, 3, data=Quadratic(copies=[1, 2, 5]), alpha=0.7, federation=uniform)
    assert module.w.item() == pytest.approx(w, rel=1e-12)


def test_large_alpha_freezes_clients():
    module = fit_quadratic(FedDynMixin, 1, alpha=1e9, module_kwargs={"lr": 1e-10, "start": 3.0})
    assert module.w.item() == pytest.approx(3.0, abs=1e-8)


def test_identical_clients_have_no_drift_at_the_optimum():
    data = Quadratic(curvatures=(2.0, 2.0), centers=(1.0, 1.0))
    module = fit_quadratic(FedDynMixin, 30, federation=solving(), alpha=1.0, data=data, module_kwargs={"lr": 0.2})
    assert module.w.item() == pytest.approx(1.0, abs=1e-8)
    assert module.server_state.drift["w"].item() == pytest.approx(0.0, abs=1e-8)


def test_terms_are_clipped_with_the_loss():
    # |gradient| of the sum of loss and terms is cut to 0.1: one step of 0.02 moves by exactly 0.002 in every round
    module = type("Clipped", (FedDynMixin, QuadraticModule), {})(alpha=100.0)
    data = Quadratic((1.0,), (-50.0,))
    fit(module, data, 2, Federation(local_steps=1), gradient_clip_val=0.1)
    drift = module.client_states.state_dict()[0]["drift"]["w"].item()
    assert drift == pytest.approx(-2 * 0.002, rel=1e-6)


def test_no_extra_bytes():
    _, rounds = run(FedDyn, 2)
    assert rounds[1]["round/extra_bytes_up"] == rounds[1]["round/extra_bytes_down"] == 0


def test_mean_of_the_cohort_is_evaluated_too():
    module, rounds = run(FedDyn, 2)
    assert "val/cohort_mean_accuracy" in rounds[0]
    for n, w in module.server_state.cohort_mean.items():
        torch.testing.assert_close(w + module.server_state.drift[n], module.global_weights[n])


def test_mean_of_the_cohort_is_left_out_on_demand_or_where_metrics_accumulate():
    _, rounds = run(FedDyn, 1, log_cohort_mean=False)
    assert "val/cohort_mean_accuracy" not in rounds[0]
    module = make_module(FedDyn)
    module.metric = torchmetrics.MeanMetric()
    _, rounds = run(module, 1)
    assert "val/cohort_mean_accuracy" not in rounds[0]


def test_mean_of_the_cohort_is_what_is_evaluated_beside_the_global_weights():
    data = make_data()
    module, rounds = run(FedDyn, 2, data)
    module.load_weights(module.server_state.cohort_mean)
    logits = module(data.test_source.inputs)
    loss = torch.nn.functional.cross_entropy(logits, data.test_source.targets).item()
    assert rounds[1]["val/cohort_mean_loss"] == pytest.approx(loss, rel=1e-5)
    assert rounds[1]["val/loss"] != pytest.approx(loss, rel=1e-5)


def test_mean_of_the_cohort_is_left_out_where_clients_keep_weights():
    _, rounds = run(FedDyn, 1, net=BatchNormNet, federation=Federation(buffers="local"))
    assert "val/accuracy_std" in rounds[0]
    assert not any("cohort_mean" in name for name in rounds[0])


def test_validating_the_cohort_leaves_the_global_weights_in_the_module():
    module, _ = run(FedDyn, 2)
    for name, weight in module.state_dict().items():
        assert torch.equal(weight, module.global_weights[name])


def test_buffers_are_averaged_without_drift():
    module, _ = run(FedDyn, 3, net=BatchNormNet)
    mean = module.server_state.cohort_mean
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, mean[name])
    assert (dict(module.named_buffers())["net.fc1.1.running_var"] > 0).all()


def test_state_does_not_alias_live_weights():
    module, _ = run(FedDyn, 2)
    live = {p.data_ptr() for p in module.parameters()}
    assert not live & {t.data_ptr() for t in module.server_state.cohort_mean.values()}


def test_resume(tmp_path):
    assert_resumes(FedDyn, tmp_path, make_federation=lambda: Federation(participation=2))


def test_alpha_must_be_positive():
    with pytest.raises(ConfigurationError, match=r"`alpha=0` must be above 0"):
        make_module(FedDyn, alpha=0)
