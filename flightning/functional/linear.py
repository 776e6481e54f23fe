"""Linear terms over all weights of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["linear_form"]


class _LinearForm(torch.autograd.Function):
    """Sum of products whose gradient is the coefficients; nothing else of the size of the model is kept."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        parameters, coefficients = tensors[:count], tensors[count:]
        ctx.save_for_backward(*coefficients)
        ctx.dtypes = [p.dtype for p in parameters]
        products = [
            torch.dot(p.detach().reshape(-1).to(c.dtype), c.reshape(-1))
            for p, c in zip(parameters, coefficients, strict=True)
        ]
        return torch.stack(products).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scaled = torch._foreach_mul(ctx.saved_tensors, gradient)
        found = [g.to(dtype) for g, dtype in zip(scaled, ctx.dtypes, strict=True)]
        return None, *found, *[None] * len(found)


def linear_form(parameters: Sequence[Tensor], coefficients: Sequence[Tensor]) -> Tensor:
    r"""Compute :math:`\langle c, w \rangle` over two lists of tensors; coefficients get no gradient.

    Args:
        parameters: The tensors :math:`w`.
        coefficients: The constants :math:`c`, in the same order and of the same shapes, in at least single precision.

    Returns:
        A scalar in the precision of the coefficients.

    Raises:
        ValueError: If the two lists differ in length or in a shape.

    Example:
        >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> value = linear_form([w], [torch.tensor([3.0, 4.0])])
        >>> value.backward()
        >>> value.item(), w.grad
        (11.0, tensor([3., 4.]))
    """
    shapes, others = [p.shape for p in parameters], [c.shape for c in coefficients]
    if shapes != others:
        raise ValueError(f"the two lists must have tensors of the same shapes, got {shapes} and {others}.")
    if not shapes:
        return torch.zeros(())
    value: Tensor = _LinearForm.apply(len(shapes), *parameters, *coefficients)
    return value
