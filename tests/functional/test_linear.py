import pytest
import torch

from flightning.functional.linear import linear_form


def test_value_and_gradient_over_several_tensors():
    generator = torch.Generator().manual_seed(0)
    w = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in ((2, 3), (), (4,))]
    c = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in w]
    value = 2 * linear_form(w, c)
    value.backward()
    assert value.item() == pytest.approx(2 * sum((a * b).sum().item() for a, b in zip(w, c, strict=True)))
    for p, k in zip(w, c, strict=True):
        torch.testing.assert_close(p.grad, 2 * k)


def test_half_precision_weights_get_a_gradient_of_their_type():
    w = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    value = linear_form([w], [torch.full((3,), 0.1)])
    value.backward()
    assert value.dtype == torch.float32
    assert w.grad.dtype == torch.bfloat16


def test_columns_in_memory_order_do_not_matter():
    w, c = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(3, 2).t()
    assert linear_form([w], [c]) == (w * c).sum()


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="must have tensors of the same shapes"):
        linear_form([torch.ones(2)], [torch.ones(3)])


def test_nothing_is_zero():
    assert linear_form([], []) == 0
