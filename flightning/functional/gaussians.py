"""Class-wise Gaussians of features: statistics per client, pooled exactly, sampled (CCVR)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["ClassStatistics", "class_statistics", "pool_statistics", "sample_features"]


class ClassStatistics(NamedTuple):
    """Number, mean and unbiased covariance of the features of each class, in double precision."""

    counts: Tensor
    """Samples (C,)."""
    means: Tensor
    """Means (C, d); zero for a class without samples."""
    covariances: Tensor
    """Covariances (C, d, d); zero for a class with fewer than two samples."""


def class_statistics(batches: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> ClassStatistics:
    """Collect the statistics of each class over batches of features and labels.

    Args:
        batches: Features (n, d) and labels (n,).
        num_classes: Number of classes.

    Example:
        >>> x, y = torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 1])
        >>> counts, means, covariances = class_statistics([(x, y)], 2)
        >>> counts.tolist(), means.flatten().tolist(), covariances.flatten().tolist()
        ([2.0, 1.0], [2.0, 7.0], [2.0, 0.0])
    """
    features, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    features = features.double()
    size = features.shape[1]
    counts = torch.bincount(labels, minlength=num_classes).double()
    means, covariances = features.new_zeros(num_classes, size), features.new_zeros(num_classes, size, size)
    for label in torch.unique(labels).tolist():
        own = features[labels == label]
        means[label] = own.mean(dim=0)
        centered = own - means[label]
        covariances[label] = centered.T @ centered / max(len(own) - 1, 1)
    return ClassStatistics(counts, means, covariances)


def pool_statistics(clients: Iterable[ClassStatistics]) -> ClassStatistics:
    r"""Compute the statistics of the concatenated features from those of the clients.

    :math:`\mu = \frac1n \sum_k n_k \mu_k` and
    :math:`\Sigma = \frac{1}{n - 1} [\sum_k (n_k - 1) \Sigma_k + \sum_k n_k \mu_k \mu_k^\top - n \mu \mu^\top]`,
    class by class. Luo et al., "No Fear of Heterogeneity", NeurIPS 2021, Eq. 3 and 4.

    Example:
        >>> x, y = torch.tensor([[1.0], [3.0], [5.0]]), torch.zeros(3, dtype=torch.long)
        >>> halves = [class_statistics([(x[:2], y[:2])], 1), class_statistics([(x[2:], y[2:])], 1)]
        >>> pool_statistics(halves).covariances.item()
        4.0
    """
    sums: list[Tensor] = []
    for n, mean, covariance in clients:  # one client at a time: covariances are large
        within = (n - 1).clamp_min(0)[:, None, None] * covariance
        terms = [n, n[:, None] * mean, within + n[:, None, None] * mean[:, :, None] * mean[:, None, :]]
        sums = [a + b for a, b in zip(sums, terms, strict=True)] if sums else terms
    if not sums:
        raise ValueError("there is no client to pool: give the statistics of at least one.")
    counts, total, scatter = sums
    mean = total / counts.clamp_min(1)[:, None]
    scatter = scatter - counts[:, None, None] * mean[:, :, None] * mean[:, None, :]
    return ClassStatistics(counts, mean, scatter / (counts - 1).clamp_min(1)[:, None, None])


def sample_features(
    statistics: ClassStatistics, per_class: int, generator: torch.Generator, jitter: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Draw virtual features from the Gaussian of each class with at least two samples.

    Args:
        statistics: Statistics of the classes.
        per_class: Features of each class.
        generator: Source of the draws, on the CPU.
        jitter: Added to the variances.

    Returns:
        Features (n, d) in double precision and labels (n,), class after class.

    Example:
        >>> flat = ClassStatistics(torch.tensor([5.0, 1.0]), torch.ones(2, 3), torch.zeros(2, 3, 3))
        >>> features, labels = sample_features(flat, 2, torch.Generator().manual_seed(0))
        >>> labels.tolist(), features.tolist()
        ([0, 0], [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    """
    features, labels = [], []
    for label in (statistics.counts >= 2).nonzero()[:, 0].tolist():
        mean, covariance = statistics.means[label].double(), statistics.covariances[label].double()
        # eigenvectors in place of a Cholesky factor: with fewer samples than features the matrix is singular
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * (values.clamp_min(0) + jitter).sqrt()
        noise = torch.randn(per_class, len(mean), generator=generator, dtype=torch.float64).to(mean.device)
        features.append(mean + noise @ root.T)
        labels += [label] * per_class
    return torch.cat(features), torch.tensor(labels, device=statistics.counts.device)
