"""Sums and means of features over the samples of a client, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["class_sums", "mean_map"]


def class_sums(batches: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> tuple[Tensor, Tensor]:
    """Sum features by class.

    Args:
        batches: Pairs of features (n, d) and classes (n,); at least one.
        num_classes: Number of classes C.

    Returns:
        Sums (C, d) and numbers of samples (C,), both in double precision; 0 for a class without samples.

    Raises:
        ValueError: If there is no batch.

    Example:
        >>> class_sums([(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))], 2)
        (tensor([[4.],
                [0.]], dtype=torch.float64), tensor([2., 0.], dtype=torch.float64))
    """
    sums = counts = None
    for features, labels in batches:
        if sums is None or counts is None:
            sums = features.new_zeros((num_classes, features.shape[1]), dtype=torch.float64)
            counts = features.new_zeros(num_classes, dtype=torch.float64)
        sums.index_add_(0, labels, features.detach().double())
        counts.index_add_(0, labels, torch.ones_like(labels, dtype=torch.float64))
    if sums is None or counts is None:
        raise ValueError("`batches` is empty: there is nothing to sum.")
    return sums, counts


def mean_map(batches: Iterable[tuple[Tensor, Tensor]], clip: float | None = None) -> Tensor:
    """Mean features (d,) over all samples, in single precision.

    Args:
        batches: Pairs of features (n, d) and classes (n,); at least one.
        clip: Largest norm of a sample's features; longer ones are scaled down to it. ``None`` leaves them.

    Raises:
        ValueError: If there is no batch.

    Example:
        >>> batch = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([0, 1])
        >>> mean_map([batch]), mean_map([batch], clip=1.0)
        (tensor([2., 2.]), tensor([0.8000, 0.4000]))
    """
    doubled = ((z.double(), y) for z, y in batches)  # norms of half precision are coarse
    bounded = ((z if clip is None else z * (clip / z.norm(dim=1, keepdim=True)).clamp(max=1.0), y) for z, y in doubled)
    sums, counts = class_sums(((z, torch.zeros_like(y)) for z, y in bounded), 1)
    return (sums[0] / counts).float()
