import pytest
import torch
from torch.nn import functional as F

from flightning.algorithms import FedAvg, FedBNMixin, RFedAvgPlusMixin
from flightning.algorithms.fedcurv import FedCurv, FedCurvMixin
from flightning.callbacks import Federation
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, assert_same, make_data, make_module, run


def fisher_by_hand(module, data, client):
    totals = [torch.zeros_like(p) for p in module.parameters()]
    part = data.parts[client]
    for i in part:
        loss = F.cross_entropy(module(data.train_source.inputs[[i]]), data.train_source.targets[[i]])
        for total, gradient in zip(totals, torch.autograd.grad(loss, list(module.parameters())), strict=True):
            total += gradient**2
    return [t / len(part) for t in totals]


def test_lambda_zero_is_fedavg_bit_for_bit():
    assert_same(run(FedCurv, lam=0.0)[0], run(FedAvg)[0])


def test_first_round_is_fedavg_bit_for_bit():
    assert_same(run(FedCurv, 1, lam=5.0)[0], run(FedAvg, 1)[0])


def test_single_client_is_fedavg_for_ever():
    def make():
        return make_data(classes=((0, 1),))

    ours, theirs = run(FedCurv, 3, make(), lam=5.0)[0], run(FedAvg, 3, make())[0]
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_fisher_is_the_mean_of_squared_gradients_of_single_samples():
    data = make_data(classes=((0, 1),))
    module, _ = run(FedCurv, 1, data)  # one client: the global weights are its own
    for u, expected in zip(module.server_state.fisher.values(), fisher_by_hand(module, data, 0), strict=True):
        torch.testing.assert_close(u, expected)
    for (n, v), p in zip(module.server_state.fisher_weights.items(), module.parameters(), strict=True):
        torch.testing.assert_close(v, module.server_state.fisher[n] * p.detach())


def test_gradient_of_the_second_round_matches_the_formula():
    # one full-batch step in round 2: gradient of CE plus 2 lam [(U - u_k) w - (V - v_k)]
    options = {"batch_size": 12, "shuffle": False}
    before, _ = run(FedCurv, 1, make_data(**options), Federation(local_steps=1), lam=0.3)
    data = make_data(**options)
    after, _ = run(FedCurv, 2, data, Federation(local_steps=1), lam=0.3)
    expected = [torch.zeros_like(p) for p in before.parameters()]
    names = [n for n, _ in before.named_parameters()]
    for client, part in enumerate(data.parts):
        loss = F.cross_entropy(before(data.train_source.inputs[part]), data.train_source.targets[part])
        gradients = torch.autograd.grad(loss, list(before.parameters()))
        own = before.client_states.load(client, torch.device("cpu"))
        for i, (n, w) in enumerate(before.named_parameters()):
            u = before.server_state.fisher[n] - own["fisher"][n]
            v = before.server_state.fisher_weights[n] - own["fisher_weights"][n]
            expected[i] += (w.detach() - 0.01 * (gradients[i] + 2 * 0.3 * (u * w.detach() - v))) / 3
    for n, e in zip(names, expected, strict=True):
        torch.testing.assert_close(dict(after.named_parameters())[n], e)


def test_server_holds_the_sum_of_last_contributions_under_partial_participation():
    module, _ = run(FedCurv, 4, federation=Federation(participation=1), lam=0.1)
    states = [module.client_states.load(k, torch.device("cpu")) for k in module.client_states]
    for kind in ("fisher", "fisher_weights"):
        for n, total in module.server_state.values[kind].items():
            torch.testing.assert_close(total, sum(s[kind][n] for s in states))


def test_extra_bytes_are_two_models_each_way():
    module, rounds = run(FedCurv, 2)
    size = sum(p.numel() for p in module.parameters()) * 4
    assert rounds[1]["round/extra_bytes_up"] == rounds[1]["round/extra_bytes_down"] == 3 * 2 * size


def test_batch_norm_net_runs_and_has_no_fisher_for_buffers():
    module, _ = run(FedCurv, 2, net=BatchNormNet)
    assert set(module.server_state.fisher) == {n for n, _ in module.named_parameters()}


def test_state_does_not_alias_live_weights():
    module, _ = run(FedCurv, 2)
    live = {p.data_ptr() for p in module.parameters()}
    assert not live & {t.data_ptr() for t in module.server_state.fisher_weights.values()}


def test_lambda_zero_sends_nothing():
    module, rounds = run(FedCurv, 2, lam=0.0)
    assert {r[f"round/extra_bytes_{way}"] for r in rounds for way in ("up", "down")} == {0}
    assert not any(u.any() for u in module.server_state.fisher.values())


def test_weights_that_stay_with_the_client_have_no_curvature():
    class Both(FedCurvMixin, FedBNMixin, Classifier): ...

    module, rounds = run(Both, 2, net=BatchNormNet, lam=0.1)
    shared = sum(p.numel() for n, p in module.named_parameters() if module.is_shared(n))
    assert rounds[1]["round/extra_bytes_up"] == rounds[1]["round/extra_bytes_down"] == 3 * 2 * 4 * shared
    assert {n for n, u in module.server_state.fisher.items() if u.any()} <= {
        n for n, _ in module.named_parameters() if module.is_shared(n)
    }


def test_composes_with_a_second_exchange():
    class Both(FedCurvMixin, RFedAvgPlusMixin, Classifier): ...

    _, rounds = run(Both, 2, lam=0.1, lambda_=0.1)
    assert {"round/curvature", "round/mmd"} <= set(rounds[1])


def test_resume(tmp_path):
    assert_resumes(FedCurv, tmp_path, lam=0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"lam": -1}, r"`lam=-1` must be at least 0"), ({"chunk_size": 0}, r"`chunk_size=0` must be at least 1")],
)
def test_refusals(options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(FedCurv, **options)
