import pytest
import torch

from flightning.algorithms.local_optimizer import LocalOptimizer, step_apart
from flightning.functional.momentum import probe_travel, sgd_travel


def closed_form(k, rho):
    return (k - rho * (1 - rho**k) / (1 - rho)) / (1 - rho)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_heavy_ball_matches_closed_form(rho, k):
    assert sgd_travel([0.1] * k, momentum=rho) == pytest.approx(0.1 * closed_form(k, rho), rel=1e-12)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_prox_matches_closed_form(k):
    eta, mu = 0.1, 0.7
    assert sgd_travel([eta] * k, mu=mu) == pytest.approx((1 - (1 - eta * mu) ** k) / mu, rel=1e-12)


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize(
    "rule", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "dampening": 0.2}]
)
def test_recursion_is_what_torch_does(rule, mu):
    # step sizes that change, so that order and weighting of the steps matter
    sizes = [0.1, 0.1, 0.05, 0.2]
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, **rule)
    assert sgd_travel(sizes, **rule, mu=mu) == pytest.approx(probe_travel(sgd, sgd.defaults, sizes, mu), rel=1e-12)


def test_probe_leaves_the_optimizer_alone():
    weight = torch.nn.Parameter(torch.ones(2))
    adam = torch.optim.Adam([weight], lr=0.1, weight_decay=0.5)
    assert probe_travel(adam, adam.param_groups[0], [0.1] * 4) == pytest.approx(0.4, rel=1e-6)
    assert not adam.state
    assert adam.param_groups[0]["params"][0] is weight
    assert adam.param_groups[0]["weight_decay"] == 0.5


def test_groups_keep_their_own_rates():
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.3, "momentum": 0.5}], lr=0.1)
    local = LocalOptimizer(sgd, {"a": a, "b": b})
    for group in sgd.param_groups:  # what a scheduler does before the last client ends
        group["lr"] *= 0.1
    assert local.travels([0.1, 0.1]) == pytest.approx([0.2, 0.3 * (1 + 1.5)])


def test_mean_gradient_leaves_out_what_could_not_move():
    w = {"w": torch.nn.Parameter(torch.ones(2))}
    local = LocalOptimizer(torch.optim.SGD(w.values(), lr=0.1), w)
    assert local.mean_gradient({"w": torch.ones(2)}, w, local.travels([])) == {}


@pytest.mark.parametrize(("kind", "expected"), [("SGD", 0.3), ("Adam", 0.3), ("AdamW", 0.0)])
def test_weight_decay_that_enters_the_gradient(kind, expected):
    w = {"w": torch.nn.Parameter(torch.ones(2))}
    local = LocalOptimizer(getattr(torch.optim, kind)(w.values(), lr=0.1, weight_decay=0.3), w)
    assert local.weight_decay("w") == expected


@pytest.mark.parametrize("alone", [False, True])
def test_a_parameter_that_is_stepped_apart_stays_in_its_group(alone):
    a, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = torch.optim.AdamW([{"params": [b]}] if alone else [a, b], lr=0.1, weight_decay=0.5)
    step_apart(optimizer, b, rate=1.0)
    a.grad, b.grad = torch.ones(2), torch.zeros(2)
    optimizer.step()
    (group,) = optimizer.param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in ([b] if alone else [a, b])]
    assert b.tolist() == [1.0, 1.0]


def test_a_parameter_that_is_stepped_apart_follows_a_scheduler():
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([w], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    step_apart(optimizer, w, rate=2.0)
    for _ in range(2):
        w.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()
    assert w.item() == -(2 * 0.5 + 2 * 0.25)
