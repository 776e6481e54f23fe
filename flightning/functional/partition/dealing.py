"""From an owner for each sample to one index array for each client."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flightning.errors import PartitionError

__all__ = [
    "NOBODY",
    "Counts",
    "Indices",
    "counts_from_shares",
    "deal",
    "equal_sizes",
    "hold_out",
    "labels_hash",
    "partition_hash",
    "proportional_test_split",
    "thin_like",
]

Indices = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]

NOBODY = -1
"""Owner of a sample that no client receives."""


def equal_sizes(num_samples: int, num_clients: int, first: int = 0) -> Counts:
    """Sizes that differ by at most one; the larger ones start at client ``first``.

    Example:
        >>> equal_sizes(10, 4).tolist()
        [3, 3, 2, 2]
        >>> equal_sizes(10, 4, first=3).tolist()
        [3, 2, 2, 3]
    """
    size, extra = divmod(num_samples, num_clients)
    sizes = np.full(num_clients, size, dtype=np.int64)
    sizes[(first + np.arange(extra)) % num_clients] += 1
    return sizes


def counts_from_shares(shares: npt.NDArray[np.float64], num_samples: int, least: int = 0) -> Counts:
    """Whole counts that follow ``shares`` and sum to ``num_samples`` exactly.

    Everybody first gets ``least`` samples; the rest is cut at the rounded cumulative shares, so that no count is more
    than one away from its share of the rest.

    Args:
        shares: Non-negative weights, one for each client; they need not sum to one.
        num_samples: Number of samples to deal.
        least: Samples that everybody gets before the shares apply.

    Raises:
        PartitionError: When ``num_samples`` cannot give everybody ``least`` samples.

    Example:
        >>> counts_from_shares(np.array([0.5, 0.3, 0.2]), 11).tolist()
        [6, 3, 2]
        >>> counts_from_shares(np.array([1.0, 0.0]), 10, least=2).tolist()
        [8, 2]
    """
    rest = num_samples - least * len(shares)
    if rest < 0:
        raise PartitionError(
            f"{num_samples} samples cannot give each of {len(shares)} clients `least` = {least}: "
            "lower the least size or the number of clients."
        )
    cuts = np.rint(np.cumsum(shares) / np.sum(shares) * rest).astype(np.int64)
    # cumulative sums of floats may end a hair off one
    cuts[-1] = rest
    return np.diff(cuts, prepend=0) + least


def deal(owner: Indices, num_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Indices of each client, in random order, from the owner of each sample.

    Args:
        owner: Client of each sample, :data:`NOBODY` for a sample that is left out.
        num_clients: Number of clients.
        rng: Source of the order inside each client.

    Example:
        >>> parts = deal(np.array([1, 0, -1, 1]), 2, np.random.default_rng(0))
        >>> [sorted(part.tolist()) for part in parts]
        [[1], [0, 3]]
    """
    order = rng.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    bounds = np.searchsorted(owner[order], np.arange(num_clients + 1))
    return [order[start:stop] for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


def labels_hash(labels: npt.NDArray[Any]) -> str:
    """Hex digest that tells one label array from another.

    Example:
        >>> labels_hash(np.array([0, 1]))[:12]
        '9d34149fbd1f'
    """
    return hashlib.sha256(np.ascontiguousarray(labels, dtype="<i8").tobytes()).hexdigest()


def partition_hash(parts: Sequence[npt.NDArray[Any]]) -> str:
    """Hex digest of a partition: the same clients with the same samples in the same order.

    Example:
        >>> partition_hash([np.array([0, 2]), np.array([1])])[:12]
        '363a551de55f'
    """
    digest = hashlib.sha256(np.array([len(part) for part in parts], dtype="<i8").tobytes())
    for part in parts:
        digest.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
    return digest.hexdigest()


def proportional_test_split(
    labels: npt.NDArray[np.int64],
    parts: Sequence[Indices],
    test_labels: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> list[Indices]:
    """Local test sets in which each client holds the share of each class that it holds of the training set.

    A client with 30 % of the dealt training samples of class ``k`` gets 30 % of the test samples of class ``k``. Where
    a rule dealt only a part of a class, :func:`thin_like` takes the same part of its test samples. The test sets are
    disjoint, so a client with few samples may get none when the test set is small.

    Args:
        labels: Labels of the training set.
        parts: Training indices of each client.
        test_labels: Labels of the test set.
        rng: Source of the choice of test samples.

    Example:
        >>> labels, test = np.repeat([0, 1], 10), np.repeat([0, 1], 4)
        >>> parts = [np.arange(5), np.arange(5, 20)]
        >>> split = proportional_test_split(labels, parts, test, np.random.default_rng(0))
        >>> [sorted(test[part].tolist()) for part in split]
        [[0, 0], [0, 0, 1, 1, 1, 1]]
    """
    num_clients = len(parts)
    client_of = np.repeat(np.arange(num_clients), [len(part) for part in parts])
    label_of = labels[np.concatenate(parts)] if num_clients else np.empty(0, dtype=np.int64)
    owner = np.full(len(test_labels), NOBODY, dtype=np.int64)
    kept = thin_like(labels, label_of, test_labels, rng)
    for label in np.unique(test_labels[kept]):
        held = np.bincount(client_of[label_of == label], minlength=num_clients).astype(np.float64)
        members = rng.permutation(kept[test_labels[kept] == label])
        # a fixed client order would round in favour of the same clients for every class
        clients = rng.permutation(num_clients)
        owner[members] = np.repeat(clients, counts_from_shares(held[clients], len(members)))
    return deal(owner, num_clients, rng)


def thin_like(
    labels: npt.NDArray[np.int64],
    dealt_labels: npt.NDArray[np.int64],
    test_labels: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> Indices:
    """Random test samples, of each class as large a part as was dealt of the training samples.

    Args:
        labels: Labels of the training set.
        dealt_labels: Labels of the training samples that some client holds.
        test_labels: Labels of the test set.
        rng: Source of randomness; nothing is drawn for classes that stay whole.

    Returns:
        Sorted indices of the kept test samples. The class of which the largest part was dealt stays whole, a class of
        which anything was dealt keeps at least one sample, and a class of nobody none.

    Example:
        >>> labels, dealt, test = np.repeat([0, 1, 2], 10), np.repeat([0, 1], [10, 5]), np.repeat([0, 1, 2], 4)
        >>> test[thin_like(labels, dealt, test, np.random.default_rng(0))].tolist()
        [0, 0, 0, 0, 1, 1]
    """
    names, counts = np.unique(labels, return_counts=True)
    shares = np.bincount(np.searchsorted(names, dealt_labels), minlength=len(names)) / counts
    kept = []
    for label, share in zip(names, shares / max(shares.max(), 1e-12), strict=True):
        members = np.flatnonzero(test_labels == label)
        target = max(1, round(share * len(members))) if share else 0
        kept.append(rng.permutation(members)[:target] if target < len(members) else members)
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *kept]))


def hold_out(
    parts: Sequence[Indices], fraction: float, rng: np.random.Generator
) -> tuple[list[Indices], list[Indices]]:
    """Keep a random share of each client's own samples for its local test set.

    A client with at least two samples keeps at least one on either side; a client with one sample trains on it.

    Args:
        parts: Indices of each client.
        fraction: Share that becomes the local test set, in ``(0, 1)``.
        rng: Source of the choice.

    Returns:
        The remaining training indices and the test indices of each client.

    Example:
        >>> train, test = hold_out([np.arange(10), np.arange(10, 12)], 0.2, np.random.default_rng(0))
        >>> [len(part) for part in train], [len(part) for part in test]
        ([8, 1], [2, 1])
    """
    train, test = [], []
    for part in parts:
        count = min(max(round(fraction * len(part)), 1), max(len(part) - 1, 0))
        chosen = np.zeros(len(part), dtype=bool)
        chosen[rng.permutation(len(part))[:count]] = True
        train.append(part[~chosen])
        test.append(part[chosen])
    return train, test
