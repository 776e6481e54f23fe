"""Distances and angles between two lists of tensors, each read as one long vector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["cosine", "flatten", "norm_distance", "squared_distance"]


class _SquaredDistance(torch.autograd.Function):
    """Sum of squared differences that keeps the differences for its gradient."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        parameters, anchors = list(tensors[:count]), list(tensors[count:])
        # At least float32: in bf16 a sum over a million weights stops growing.
        dtype = torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
        differences = [d.to(dtype) for d in torch._foreach_sub(parameters, anchors)]
        ctx.dtypes = [p.dtype for p in parameters]
        ctx.save_for_backward(*differences, *parameters)
        return _sum_of_squares(differences)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.dtypes)
        wanted = [i for i in range(count) if ctx.needs_input_grad[1 + i]]
        kept = [ctx.saved_tensors[i] for i in wanted]
        if torch.is_grad_enabled():  # with create_graph: tie the saved values to the weights again
            weights = [ctx.saved_tensors[count + i] for i in wanted]
            products = [2 * gradient * (d + (w - w.detach())) for d, w in zip(kept, weights, strict=True)]
        else:
            products = list(torch._foreach_mul(kept, 2 * gradient)) if kept else []
        gradients: list[Tensor | None] = [None] * count
        for i, product in zip(wanted, products, strict=True):
            gradients[i] = product.to(ctx.dtypes[i])
        return None, *gradients, *[None] * count


def squared_distance(parameters: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    r"""Compute :math:`\lVert w - a \rVert^2 = \sum_i \sum_j (w_{ij} - a_{ij})^2`.

    The differences are computed once and kept for the gradient :math:`2 (w - a)`; nothing else of the size of the
    model is allocated or recorded. Anchors get no gradient.

    Args:
        parameters: The tensors :math:`w`, of any floating type.
        anchors: The constants :math:`a`, in the same order and of the same shapes.

    Returns:
        A scalar in float32, or in float64 for float64 parameters.

    Raises:
        ValueError: If the two lists differ in length or in a shape.

    Example:
        >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> loss = squared_distance([w], [torch.tensor([0.0, -1.0])])
        >>> loss.backward()
        >>> loss.item(), w.grad
        (10.0, tensor([2., 6.]))
    """
    parameters, anchors = list(parameters), list(anchors)
    _check_same_shapes(parameters, anchors)
    if not parameters:
        return torch.zeros(())
    distance: Tensor = _SquaredDistance.apply(len(parameters), *parameters, *anchors)
    return distance


def norm_distance(parameters: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    r"""Compute :math:`\lVert w - a \rVert`, with gradient 0 where the two are equal.

    Args:
        parameters: The tensors :math:`w`, of any floating type.
        anchors: The constants :math:`a`, in the same order and of the same shapes.

    Returns:
        A scalar in float32, or in float64 for float64 parameters.

    Raises:
        ValueError: If the two lists differ in length or in a shape.

    Example:
        >>> norm_distance([torch.tensor([3.0]), torch.tensor([4.0])], [torch.zeros(1), torch.zeros(1)])
        tensor(5.)
    """
    squared = squared_distance(parameters, anchors)
    apart = squared > 0
    # The square root of 0 has an infinite slope, and 0 * inf is NaN even where the result is discarded.
    return torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0)


def cosine(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    r"""Compute the cosine of the angle between two lists of tensors; 0 if either is zero.

    Args:
        a: The first vector in pieces.
        b: The second vector in pieces of the same shapes.

    Returns:
        A scalar in float32, or in float64 for float64 tensors.

    Raises:
        ValueError: If the two lists differ in length or in a shape.

    Example:
        >>> cosine([torch.tensor([3.0]), torch.tensor([4.0])], [torch.tensor([0.0]), torch.tensor([2.0])])
        tensor(0.8000)
    """
    _check_same_shapes(a, b)
    x, y = flatten(a), flatten(b)
    # One root per vector: the product of two small sums of squares would underflow.
    lengths = x.square().sum().sqrt() * y.square().sum().sqrt()
    return torch.where(lengths > 0, (x * y).sum() / torch.where(lengths > 0, lengths, 1.0), 0.0)


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """Join tensors into one vector of at least float32.

    Args:
        tensors: The pieces, of any shapes.

    Example:
        >>> flatten([torch.tensor([[1.0, 2.0]]), torch.tensor(3.0)])
        tensor([1., 2., 3.])
    """
    pieces = [t.flatten().to(torch.promote_types(t.dtype, torch.float32)) for t in tensors]
    return torch.cat(pieces) if pieces else torch.zeros(0)


def _sum_of_squares(tensors: list[Tensor]) -> Tensor:
    """Sum over all elements without a temporary of their size."""
    if tensors[0].device.type == "cpu":
        # On the CPU a norm adds up one element after the other: in float32 1e-3 off for a million weights.
        tensors = [piece for t in tensors for piece in _rows(t.reshape(-1))]
        return torch.cat([torch.linalg.vector_norm(rows, dim=1) for rows in tensors]).square().sum()
    return torch.stack(list(torch._foreach_norm(tensors))).square().sum()


def _rows(vector: Tensor, length: int = 2048) -> list[Tensor]:
    """Views of a vector as rows of one length and the rest."""
    whole = vector.numel() // length * length
    rows = [vector[:whole].view(-1, length)] if whole else []
    return [*rows, vector[whole:].unsqueeze(0)]


def _check_same_shapes(a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
    """Refuse lists that subtraction would broadcast or cut short."""
    if len(a) != len(b):
        raise ValueError(f"the two lists must have as many tensors as each other, got {len(a)} and {len(b)}.")
    for index, (x, y) in enumerate(zip(a, b, strict=True)):
        if x.shape != y.shape:
            raise ValueError(f"tensors {index} must have one shape, got {tuple(x.shape)} and {tuple(y.shape)}.")
