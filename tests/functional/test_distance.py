"""Distances between lists of tensors: closed forms, gradients, precision."""

import math

import pytest
import torch

from flightning.functional.distance import cosine, flatten, norm_distance, squared_distance


def pair(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 2), (), (4,), (2, 1, 2, 2)]
    parameters = [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]
    anchors = [torch.randn(s, generator=generator, dtype=dtype) for s in shapes]
    return parameters, anchors


def test_squared_distance_sums_over_all_tensors():
    # (1-0)^2 + (2-0)^2 + (5-2)^2 = 14
    assert squared_distance([torch.tensor([1.0, 2.0]), torch.tensor(5.0)], [torch.zeros(2), torch.tensor(2.0)]) == 14


def test_squared_distance_gradient_is_twice_the_difference_times_the_incoming_one():
    parameters, anchors = pair()
    (1.5 * squared_distance(parameters, anchors)).backward()
    for p, a in zip(parameters, anchors, strict=True):
        torch.testing.assert_close(p.grad, 3.0 * (p - a).detach())


def test_squared_distance_passes_gradcheck():
    parameters, anchors = pair()
    assert torch.autograd.gradcheck(lambda *p: squared_distance(p, anchors), parameters)


def test_squared_distance_is_zero_with_zero_gradient_at_the_anchor():
    parameters, _ = pair()
    value = squared_distance(parameters, [p.detach().clone() for p in parameters])
    value.backward()
    assert value == 0
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in parameters)


def test_anchors_and_frozen_parameters_get_no_gradient():
    parameters, anchors = pair()
    anchors = [a.requires_grad_() for a in anchors]
    parameters[1].requires_grad_(False)
    squared_distance(parameters, anchors).backward()
    assert all(a.grad is None for a in anchors)
    assert [p.grad is None for p in parameters] == [False, True, False, False]


def test_all_frozen_needs_no_graph():
    parameters, anchors = pair()
    assert not squared_distance([p.detach() for p in parameters], anchors).requires_grad


def test_backward_twice_through_a_kept_graph_adds_up():
    parameters, anchors = pair()
    value = squared_distance(parameters, anchors)
    value.backward(retain_graph=True)
    value.backward()
    torch.testing.assert_close(parameters[0].grad, 4 * (parameters[0] - anchors[0]).detach())


def test_gradient_belongs_to_the_weights_of_the_forward_pass():
    weight, anchor = torch.ones(2, requires_grad=True), torch.zeros(2)
    value = squared_distance([weight], [anchor])
    anchor.fill_(7.0)
    value.backward()
    assert torch.equal(weight.grad, torch.full((2,), 2.0))


def test_second_derivative_is_two():
    # Meta-learning differentiates through a local step that contains the term.
    weight, anchor = torch.tensor([3.0, -1.0], requires_grad=True), torch.zeros(2)
    (gradient,) = torch.autograd.grad(squared_distance([weight], [anchor]), weight, create_graph=True)
    gradient.sum().backward()
    assert torch.equal(weight.grad, torch.full((2,), 2.0))


def test_squared_distance_passes_gradgradcheck():
    parameters, anchors = pair()
    assert torch.autograd.gradgradcheck(lambda *p: squared_distance(p, anchors), parameters)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_result_has_at_least_single_precision_and_gradients_the_type_of_the_weights(dtype, result):
    parameters, anchors = pair(dtype)
    value = squared_distance(parameters, anchors)
    value.backward()
    assert value.dtype == result
    assert {p.grad.dtype for p in parameters} == {dtype}


def test_half_precision_does_not_stop_growing():
    # 100 000 differences of 0.5 give 25 000; bf16 would stop at 64, where 0.25 is half of its step.
    value = squared_distance([torch.full((100_000,), 0.5, dtype=torch.bfloat16)], [torch.zeros(100_000).bfloat16()])
    assert value.item() == pytest.approx(25_000, rel=1e-5)


@pytest.mark.parametrize("function", [squared_distance, lambda a, b: norm_distance(a, b) ** 2])
def test_a_million_small_differences_add_up(function):
    # 2^20 differences of 0.01 give 104.8576; adding up in float32 one after the other is off by 1e-3.
    value = function([torch.full((1024, 1024), 0.01)], [torch.zeros(1024, 1024)])
    assert value.item() == pytest.approx(104.8576, rel=1e-5)


def test_cosine_of_a_million_weights_with_themselves_is_one():
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0)) + 1
    assert cosine([x], [3 * x]).item() == pytest.approx(1, abs=1e-6)


def test_half_weights_with_single_precision_anchors():
    weight = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    value = squared_distance([weight], [torch.tensor([0.0, 0.5])])
    value.backward()
    assert value == 3.25
    assert torch.equal(weight.grad, torch.tensor([2.0, 3.0], dtype=torch.bfloat16))


def test_channels_last_weights():
    generator = torch.Generator().manual_seed(0)
    plain, anchor = (torch.randn(4, 3, 2, 2, generator=generator) for _ in range(2))
    last = plain.to(memory_format=torch.channels_last).requires_grad_()
    squared_distance([last], [anchor]).backward()
    torch.testing.assert_close(last.grad, 2 * (plain - anchor))


def test_generators_of_tensors_are_read_once():
    layer = torch.nn.Linear(2, 2)
    anchors = [torch.zeros_like(p) for p in layer.parameters()]
    expected = sum(p.square().sum() for p in layer.parameters())
    torch.testing.assert_close(squared_distance(layer.parameters(), anchors), expected)


def test_nothing_is_at_distance_zero():
    assert squared_distance([], []) == 0
    assert squared_distance([torch.zeros(0, 3)], [torch.zeros(0, 3)]) == 0


def test_norm_distance_is_the_root():
    # 3^2 + 4^2 = 5^2, gradient (w - a) / 5
    weight = torch.tensor([3.0, 4.0], requires_grad=True)
    value = norm_distance([weight], [torch.zeros(2)])
    value.backward()
    assert value == 5
    torch.testing.assert_close(weight.grad, torch.tensor([0.6, 0.8]))


def test_norm_distance_passes_gradcheck():
    parameters, anchors = pair()
    assert torch.autograd.gradcheck(lambda *p: norm_distance(p, anchors), parameters)


def test_norm_distance_has_gradient_zero_at_the_anchor():
    weight = torch.tensor([3.0, 4.0], requires_grad=True)
    norm_distance([weight], [weight.detach().clone()]).backward()
    assert torch.equal(weight.grad, torch.zeros(2))


def test_cosine_of_known_angles():
    a = [torch.tensor([1.0]), torch.tensor([[0.0]])]
    assert cosine(a, [torch.tensor([2.0]), torch.tensor([[2.0]])]).item() == pytest.approx(math.sqrt(0.5))
    assert cosine(a, [torch.tensor([-3.0]), torch.tensor([[0.0]])]).item() == pytest.approx(-1)


def test_cosine_with_a_zero_vector_is_zero():
    assert cosine([torch.zeros(2)], [torch.ones(2)]) == 0
    assert cosine([], []) == 0


def test_cosine_of_tiny_updates_is_not_damped():
    # Norms of 1e-12 each, as late in training: the cosine stays that of the directions.
    assert cosine([torch.tensor([1e-12, 0.0])], [torch.tensor([1e-12, 0.0])]).item() == pytest.approx(1)


def test_flatten_keeps_order_and_raises_precision():
    vector = flatten([torch.tensor([[1.0], [2.0]], dtype=torch.bfloat16), torch.tensor(3.0)])
    assert torch.equal(vector, torch.tensor([1.0, 2.0, 3.0]))
    assert flatten([]).shape == (0,)


@pytest.mark.parametrize("function", [squared_distance, norm_distance, cosine])
def test_lists_that_do_not_match_are_refused(function):
    with pytest.raises(ValueError, match="as many tensors as each other, got 2 and 1"):
        function([torch.zeros(1), torch.zeros(1)], [torch.zeros(1)])
    with pytest.raises(ValueError, match=r"tensors 0 must have one shape, got \(2,\) and \(1,\)"):
        function([torch.zeros(2)], [torch.zeros(1)])
