"""k-means, and the matching of two sets of centroids."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Clusters", "align", "kmeans"]


class Clusters(NamedTuple):
    """Result of :func:`kmeans`."""

    centroids: Tensor
    """Centroids (k, d); slots with count 0 that were never set are zero."""
    counts: Tensor
    """Number of points (k,) of each cluster."""
    assignments: Tensor
    """Cluster (n,) of each point."""


def kmeans(x: Tensor, k: int, generator: torch.Generator, iterations: int = 100) -> Clusters:
    """Group points into clusters by Lloyd's algorithm from a k-means++ start.

    Args:
        x: Points (n, d).
        k: Number of clusters, >= 1. With no more points than ``k`` each point is a centroid, and the remaining slots
            have count 0; so do slots for which there are not enough distinct points.
        generator: Source of the start, on the CPU.
        iterations: Most updates of the centroids; fewer are made once no point changes its cluster.

    Returns:
        Centroids, counts and assignments. The centroid of a cluster is the mean of its points.

    Raises:
        ValueError: If ``k`` or ``iterations`` is smaller than 1.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
        >>> clusters = kmeans(x, 2, torch.Generator().manual_seed(0))
        >>> clusters.centroids.flatten().sort().values, clusters.counts
        (tensor([ 0.5000, 10.5000]), tensor([2, 2]))
    """
    if k < 1 or iterations < 1:
        raise ValueError(f"`k` and `iterations` must be >= 1, got {k} and {iterations}.")
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    count = len(x)
    if count <= k:
        counts = (torch.arange(k, device=x.device) < count).long()
        return Clusters(F.pad(x, (0, 0, 0, k - count)), counts, torch.arange(count, device=x.device))
    found = _start(x, k, generator)
    assignments = x.new_full((count,), -1, dtype=torch.long)
    for _ in range(iterations):
        nearest = torch.cdist(x, found, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
        if torch.equal(nearest, assignments):
            break
        assignments = nearest
        counts = torch.bincount(assignments, minlength=len(found))
        sums = torch.zeros_like(found).index_add_(0, assignments, x)
        # A cluster that lost its last point keeps its place.
        found = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], found)
    missing = k - len(found)
    return Clusters(F.pad(found, (0, 0, 0, missing)), F.pad(counts, (0, missing)), assignments)


def align(reference: Tensor, centroids: Tensor) -> Tensor:
    """Match centroids to those of a reference so that the sum of their cosines is largest (Hungarian algorithm).

    Args:
        reference: Centroids (k, d) whose order is kept.
        centroids: Centroids (k, d) to be reordered.

    Returns:
        Indices (k,) such that ``centroids[indices]`` is in the order of the reference.

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> align(torch.eye(3), torch.eye(3)[[2, 0, 1]])
        tensor([1, 2, 0])
    """
    if reference.shape != centroids.shape:
        raise ValueError(
            f"`reference` and `centroids` must have one shape, got {tuple(reference.shape)} and "
            f"{tuple(centroids.shape)}."
        )
    from scipy.optimize import linear_sum_assignment

    a, b = (F.normalize(t.detach().double(), dim=1) for t in (reference, centroids))
    _, columns = linear_sum_assignment((a @ b.T).cpu().numpy(), maximize=True)
    return torch.as_tensor(columns, device=centroids.device)


def _start(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Draw up to k distinct points, each with probability in proportion to its squared distance from those drawn."""
    chosen = [int(torch.randint(len(x), (1,), generator=generator))]
    squared = (x - x[chosen[0]]).square().sum(dim=1)
    while len(chosen) < k and squared.any():
        # Drawn on the CPU, where the generator lives.
        chosen.append(int(torch.multinomial(squared.cpu(), 1, generator=generator)))
        squared = torch.minimum(squared, (x - x[chosen[-1]]).square().sum(dim=1))
    return x[chosen]
