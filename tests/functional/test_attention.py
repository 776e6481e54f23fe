import math

import pytest
import torch

from flightning.errors import ConfigurationError
from flightning.functional.attention import attention, attentive_step, layer_distances


def distances(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_weights_of_every_layer_sum_to_one():
    assert attention(distances(4, 3)).clients.sum(dim=0).tolist() == pytest.approx([1, 1, 1])


def test_equal_distances_give_uniform_weights():
    assert attention(torch.full((4, 2), 3.0)).clients.flatten().tolist() == pytest.approx([0.25] * 8)


def test_a_constant_added_to_all_distances_changes_nothing():
    s = distances(4, 3)
    torch.testing.assert_close(attention(s + 7).clients, attention(s).clients)


def test_farther_clients_weigh_more_unless_the_sign_is_turned():
    # softmax of (0, 1): 1 / (1 + e), e / (1 + e)
    s, far = torch.tensor([[0.0], [1.0]]), math.e / (1 + math.e)
    assert attention(s).clients[1].item() == pytest.approx(far)
    assert attention(s, sign=-1).clients[0].item() == pytest.approx(far)


def test_temperature_divides_distances():
    s = distances(3, 2)
    torch.testing.assert_close(attention(s, temperature=4.0).clients, attention(s / 4).clients)


def test_readings_of_the_shared_models_weight():
    s, shared = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([1.0, 3.0])
    e, f = math.e, math.exp
    expected = {
        "separate": [e / (1 + f(2) + e), f(3) / (e + 1 + f(3))],
        "joint": [e / (1 + f(2) + e), f(3) / (e + 1 + f(3))],
        "layers": [e / (e + f(3)), f(3) / (e + f(3))],
        "one": [1.0, 1.0],
    }
    for reading, beta in expected.items():
        found = attention(s, shared, reading=reading)
        assert found.shared.tolist() == pytest.approx(beta), reading
        total = found.clients.sum(dim=0)
        assert total.tolist() == pytest.approx([1, 1] if reading != "joint" else [1 - b for b in beta]), reading


def test_an_unknown_reading_is_refused():
    with pytest.raises(ConfigurationError, match=r"`reading='both'` must be one of `separate`, `joint`"):
        attention(torch.zeros(1, 1), torch.zeros(1), reading="both")


def test_distance_flattens_convolutions():
    # 2 x 1 x 2 x 2 ones: norm of eight ones
    assert layer_distances([torch.zeros(2, 1, 2, 2)], [[torch.ones(2, 1, 2, 2)]]).item() == pytest.approx(8**0.5)


def test_step_is_an_affine_combination_of_global_clients_and_shared():
    # coefficients 1 - lam(1 + mb), lam a_k, lam mb for step lam and pull mb
    g, clients, shared = torch.tensor([2.0]), [torch.tensor([5.0]), torch.tensor([-1.0])], torch.tensor([7.0])
    a, lam, mb = torch.tensor([0.3, 0.7]), 0.8, 0.25
    expected = (1 - lam * (1 + mb)) * 2 + lam * (0.3 * 5 - 0.7) + lam * mb * 7
    step = attentive_step(g, clients, a, lam, (torch.tensor(mb), shared))
    assert step.item() == pytest.approx(expected)


def test_normalised_step_is_convex():
    # l = 1 / (1 + mb): nothing of g is left
    g, client, shared = torch.tensor([100.0]), torch.tensor([5.0]), torch.tensor([7.0])
    step = attentive_step(g, [client], torch.ones(1), 1.0, (torch.tensor(0.25), shared), normalise=True)
    assert step.item() == pytest.approx((5 + 0.25 * 7) / 1.25)
