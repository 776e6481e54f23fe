"""How different the clients are: label and quantity metrics of a partition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

__all__ = [
    "Heterogeneity",
    "classes_held",
    "earth_mover_distance",
    "effective_classes",
    "feature_shift",
    "gini",
    "hellinger",
    "jensen_shannon",
    "label_counts",
    "label_divergence",
    "summarize",
]

Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


def label_counts(labels: npt.NDArray[Any], parts: Sequence[npt.NDArray[Any]], num_classes: int | None = None) -> Counts:
    """Count the samples of each client (row) and class (column).

    Args:
        labels: Label of each sample, from 0 on.
        parts: Indices of each client.
        num_classes: Number of columns; by default one more than the largest label.

    Example:
        >>> label_counts(np.array([0, 0, 1, 2]), [np.array([0, 1]), np.array([2, 3])]).tolist()
        [[2, 0, 0], [0, 1, 1]]
    """
    labels = np.asarray(labels)
    if num_classes is None:
        num_classes = int(labels.max(initial=-1)) + 1
    client_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    label_of = labels[np.concatenate([np.empty(0, dtype=np.int64), *parts])]
    cells = np.bincount(client_of * num_classes + label_of, minlength=len(parts) * num_classes)
    return cells.reshape(len(parts), num_classes)


def _distributions(counts: Counts) -> tuple[Values, Values, Values]:
    """Label distribution of each client, the pooled one, and the weights of the clients."""
    sizes = counts.sum(axis=1)
    total = max(int(sizes.sum()), 1)
    return counts / np.maximum(sizes, 1)[:, None], counts.sum(axis=0) / total, sizes / total


def _entropy(p: Values) -> Values:
    """Entropy of each row in nats, with 0 log 0 = 0."""
    entropy: Values = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1)
    return entropy


def earth_mover_distance(counts: Counts) -> Values:
    r"""Distance :math:`\lVert p_k - p \rVert_1` of each client's label distribution from the pooled one.

    It lies between 0 and :math:`2(1 - 1/C)` when the pooled classes are balanced. An empty client counts as 0.

    Example:
        >>> earth_mover_distance(np.array([[5, 0], [0, 5]])).tolist()
        [1.0, 1.0]
    """
    p_k, p, _ = _distributions(counts)
    return np.where(counts.sum(axis=1) > 0, np.abs(p_k - p).sum(axis=1), 0.0)


def label_divergence(counts: Counts) -> Values:
    r"""Divergence :math:`\mathrm{KL}(p_k \Vert p) / \log C` of each client; its weighted mean is Jensen-Shannon.

    Example:
        >>> label_divergence(np.array([[5, 0], [0, 5]])).tolist()
        [1.0, 1.0]
    """
    p_k, p, _ = _distributions(counts)
    ratio = np.where(p_k > 0, p_k / np.where(p > 0, p, 1.0), 1.0)
    divergence: Values = np.sum(p_k * np.log(ratio), axis=1) / math.log(max(counts.shape[1], 2))
    return divergence


def jensen_shannon(counts: Counts) -> float:
    r"""Generalised Jensen-Shannon divergence :math:`(H(\sum_k \omega_k p_k) - \sum_k \omega_k H(p_k)) / \log C`.

    ``0`` when all clients share one label distribution, ``1`` when each holds one of the (balanced) classes.

    Example:
        >>> jensen_shannon(np.array([[5, 0], [0, 5]]))
        1.0
    """
    p_k, p, weights = _distributions(counts)
    return float(_entropy(p) - weights @ _entropy(p_k)) / math.log(max(counts.shape[1], 2))


def effective_classes(counts: Counts) -> Values:
    r"""Number of equally frequent classes with the same entropy, :math:`\exp H(p_k)`; 0 for an empty client.

    Example:
        >>> effective_classes(np.array([[5, 5], [5, 0]])).round(6).tolist()
        [2.0, 1.0]
    """
    return np.where(counts.sum(axis=1) > 0, np.exp(_entropy(_distributions(counts)[0])), 0.0)


def classes_held(counts: Counts) -> Counts:
    """Number of classes of which each client holds at least one sample.

    Example:
        >>> classes_held(np.array([[5, 1], [5, 0]])).tolist()
        [2, 1]
    """
    held: Counts = np.count_nonzero(counts, axis=1).astype(np.int64)
    return held


def gini(sizes: npt.ArrayLike) -> float:
    """Gini coefficient of the client sizes: 0 when all are equal, near 1 when one client holds everything.

    Example:
        >>> gini([5, 5, 5]), gini([0, 0, 0, 10])
        (0.0, 0.75)
    """
    ordered = np.sort(np.asarray(sizes, dtype=np.float64))
    if ordered.sum() == 0:
        return 0.0
    n = len(ordered)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * ordered.sum()))


def hellinger(counts: Counts) -> Values:
    r"""Pairwise distances :math:`\lVert \sqrt{p_j} - \sqrt{p_k} \rVert_2 / \sqrt 2` of the label distributions.

    The table has clients x clients entries: meant for up to a few thousand clients.

    Example:
        >>> hellinger(np.array([[5, 0], [0, 5], [2, 0]])).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    root = np.sqrt(_distributions(counts)[0])
    # 1 - <sqrt p, sqrt q> is the squared distance; rounding may leave it a hair below zero
    return np.sqrt(np.clip(1.0 - root @ root.T, 0.0, None))


def feature_shift(inputs: Sequence[Tensor]) -> tuple[Values, Values]:
    """How far the pixel-wise mean and variance of each client's inputs lie from those of all clients together.

    Args:
        inputs: Inputs of each client, samples first, none empty.

    Returns:
        For each client the root mean square difference of the means and that of the variances.

    Example:
        >>> import torch
        >>> mean, variance = feature_shift([torch.zeros(2, 3), torch.ones(2, 3)])
        >>> mean.tolist(), variance.tolist()
        ([0.5, 0.5], [0.25, 0.25])
    """
    flat = [x.reshape(len(x), -1).double() for x in inputs]
    sizes = np.array([len(x) for x in flat])
    means = np.stack([x.mean(dim=0).numpy() for x in flat])
    squares = np.stack([x.square().mean(dim=0).numpy() for x in flat])
    weights = sizes / sizes.sum()
    variances, mean = squares - means**2, weights @ means
    variance = weights @ squares - mean**2
    return np.sqrt(((means - mean) ** 2).mean(axis=1)), np.sqrt(((variances - variance) ** 2).mean(axis=1))


@dataclass(frozen=True)
class Heterogeneity:
    """Metrics of one partition; arrays have one entry for each client, numbers describe all of them.

    Attributes:
        counts: Samples of each client (row) and class (column).
        sizes: Samples of each client.
        client_emd: See :func:`earth_mover_distance`.
        client_divergence: See :func:`label_divergence`.
        client_effective_classes: See :func:`effective_classes`.
        client_classes_held: See :func:`classes_held`.
        emd: Mean of ``client_emd`` weighted by size.
        jensen_shannon: See :func:`jensen_shannon`.
        effective_classes: Mean over the clients that hold samples.
        classes_held: Mean over the clients that hold samples.
        gini: See :func:`gini`.
    """

    counts: Counts
    sizes: Counts
    client_emd: Values
    client_divergence: Values
    client_effective_classes: Values
    client_classes_held: Counts
    emd: float
    jensen_shannon: float
    effective_classes: float
    classes_held: float
    gini: float

    @property
    def num_clients(self) -> int:
        """Number of clients, empty ones included."""
        return len(self.sizes)

    @property
    def num_samples(self) -> int:
        """Number of samples that the clients hold together."""
        return int(self.sizes.sum())

    @property
    def min_size(self) -> int:
        """Samples of the smallest client."""
        return int(self.sizes.min(initial=self.num_samples))

    @property
    def max_size(self) -> int:
        """Samples of the largest client."""
        return int(self.sizes.max(initial=0))

    def as_dict(self) -> dict[str, float]:
        """The numbers for a logger or a table.

        Example:
            >>> table = summarize(np.array([0, 1]), [np.array([0]), np.array([1])]).as_dict()
            >>> table["clients"], table["emd"], table["classes_held"]
            (2, 1.0, 1.0)
        """
        return {
            "clients": self.num_clients,
            "samples": self.num_samples,
            "min_size": self.min_size,
            "max_size": self.max_size,
            "emd": self.emd,
            "jensen_shannon": self.jensen_shannon,
            "effective_classes": self.effective_classes,
            "classes_held": self.classes_held,
            "gini": self.gini,
        }


def summarize(
    labels: npt.NDArray[Any], parts: Sequence[npt.NDArray[Any]], num_classes: int | None = None
) -> Heterogeneity:
    """Compute all label and quantity metrics of a partition.

    Args:
        labels: Label of each sample, from 0 on.
        parts: Indices of each client.
        num_classes: Number of classes; by default one more than the largest label.

    Example:
        >>> labels = np.repeat(np.arange(10), 10)
        >>> one_class_each = summarize(labels, [np.flatnonzero(labels == k) for k in range(10)])
        >>> round(one_class_each.emd, 6), one_class_each.classes_held, one_class_each.gini
        (1.8, 1.0, 0.0)
    """
    counts = label_counts(labels, parts, num_classes)
    sizes = counts.sum(axis=1)
    filled = sizes > 0
    emd, effective, held = earth_mover_distance(counts), effective_classes(counts), classes_held(counts)
    return Heterogeneity(
        counts=counts,
        sizes=sizes,
        client_emd=emd,
        client_divergence=label_divergence(counts),
        client_effective_classes=effective,
        client_classes_held=held,
        emd=float(emd @ sizes) / max(int(sizes.sum()), 1),
        jensen_shannon=jensen_shannon(counts),
        effective_classes=float(effective[filled].mean()) if filled.any() else 0.0,
        classes_held=float(held[filled].mean()) if filled.any() else 0.0,
        gini=gini(sizes),
    )
