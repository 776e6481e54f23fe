"""Random sizes, a share from the label-sorted list and a share at random."""

from __future__ import annotations

from typing import Literal

import numpy as np

from flightning.errors import PartitionError
from flightning.functional.partition.dealing import NOBODY, Counts, Indices, deal, equal_sizes
from flightning.functional.partition.label import Labels

__all__ = ["Leftover", "sorted_mix_split"]

Leftover = Literal["drop", "literal", "fill_smallest"]


def sorted_mix_split(
    labels: Labels,
    num_clients: int,
    rng: np.random.Generator,
    *,
    sorted_fraction: float,
    low: int = 120,
    high: int = 600,
    leftover: Leftover = "drop",
    overlap: bool = False,
) -> list[Indices]:
    r"""Random sizes :math:`y_k \in \{low, \dots, high\}`, a share of each from the label-sorted list, the rest random.

    Args:
        labels: Label of each sample.
        num_clients: Number of clients.
        rng: Source of randomness.
        sorted_fraction: Share :math:`P` of each client that comes from the sorted list; ``0`` is IID.
        low: Smallest size.
        high: Largest size.
        leftover: What happens to samples that nobody drew: ``drop`` them, give all to the smallest client
            (``literal``), or one at a time to the smallest client of the moment (``fill_smallest``).
        overlap: Draw the random part from all samples, so that two clients may hold the same one; else a random pool
            is set aside before sorting.

    Raises:
        PartitionError: When the sizes add up to more than there is.

    Example:
        >>> labels = np.repeat([0, 1], 50)
        >>> parts = sorted_mix_split(labels, 4, np.random.default_rng(0), sorted_fraction=0.8, low=10, high=20)
        >>> all(10 <= len(part) <= 20 for part in parts)
        True
    """
    sizes = rng.integers(low, high, num_clients, endpoint=True)
    from_sorted = np.rint(sorted_fraction * sizes).astype(np.int64)
    from_random = sizes - from_sorted
    needed = max(int(from_sorted.sum()), int(sizes.max())) if overlap else int(sizes.sum())
    if needed > len(labels):
        raise PartitionError(
            f"Sizes between `low` = {low} and `high` = {high} for {num_clients} clients add up to {needed} samples, "
            f"there are {len(labels)}: lower `high` or the number of clients."
        )
    order = rng.permutation(len(labels))
    pool, rest = (order[:0], order) if overlap else np.split(order, [int(from_random.sum())])
    rest = rest[np.argsort(labels[rest], kind="stable")]
    clients = np.arange(num_clients)
    owner = np.full(len(labels), NOBODY, dtype=np.int64)
    owner[rest[: from_sorted.sum()]] = np.repeat(clients, from_sorted)
    owner[pool] = np.repeat(clients, from_random)[: len(pool)]
    extras = _draw_others(rest, from_sorted, from_random, rng) if overlap else []
    drawn = owner != NOBODY
    drawn[np.concatenate([pool, *extras])] = True
    spare = rng.permutation(np.flatnonzero(~drawn))
    if leftover == "literal":
        owner[spare] = np.argmin(sizes)
    elif leftover == "fill_smallest":
        owner[spare] = np.repeat(clients, _fill_smallest(sizes, len(spare)))
    parts = deal(owner, num_clients, rng)
    if overlap:
        return [rng.permutation(np.append(part, extra)) for part, extra in zip(parts, extras, strict=True)]
    return parts


def _draw_others(ordered: Indices, own: Counts, others: Counts, rng: np.random.Generator) -> list[Indices]:
    """For each client a random choice of all samples except its own stretch of ``ordered``."""
    starts = np.cumsum(own) - own
    drawn = []
    for start, length, count in zip(starts.tolist(), own.tolist(), others.tolist(), strict=True):
        place = rng.choice(len(ordered) - length, count, replace=False)
        drawn.append(ordered[place + length * (place >= start)])
    return drawn


def _fill_smallest(sizes: Counts, num_samples: int) -> Counts:
    """How many of ``num_samples`` each client gets when each goes to the smallest of the moment."""
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    # water level: raising the j smallest to the size of the next one costs j * ordered[j] - sum(ordered[:j])
    ranks = np.arange(1, len(sizes) + 1)
    sums = np.cumsum(ordered)
    cost = np.append(ranks[:-1] * ordered[1:] - sums[:-1], np.iinfo(np.int64).max)
    j = int(np.argmax(cost >= num_samples)) + 1
    added = np.zeros(len(sizes), dtype=np.int64)
    added[order[:j]] = equal_sizes(num_samples + int(sums[j - 1]), j) - ordered[:j]
    return added
