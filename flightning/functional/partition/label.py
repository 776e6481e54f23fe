"""Label skew: which client holds how much of which class."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from flightning.errors import PartitionError
from flightning.functional.partition.dealing import Counts, Indices, counts_from_shares, deal, equal_sizes

__all__ = [
    "deal_classes",
    "dirichlet_split",
    "draw_until",
    "iid_split",
    "shard_split",
    "similarity_split",
    "split_by_class",
]

Labels = npt.NDArray[np.int64]

MAX_ATTEMPTS = 1000
MIN_ATTEMPTS = 20
MAX_CLIENT_DRAWS = 5_000_000
"""With very many clients fewer attempts are made, so that a hopeless request fails in seconds."""


def split_by_class(labels: Labels) -> list[Indices]:
    """Indices of each class that occurs, in order of the class.

    Example:
        >>> [members.tolist() for members in split_by_class(np.array([3, 0, 3]))]
        [[1], [0, 2]]
    """
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def deal_classes(labels: Labels, counts: Counts, rng: np.random.Generator) -> list[Indices]:
    """Deal random samples of each class so that client ``k`` gets ``counts[k, c]`` of the ``c``-th class.

    Example:
        >>> labels = np.array([0, 0, 1, 1])
        >>> parts = deal_classes(labels, np.array([[2, 1], [0, 1]]), np.random.default_rng(0))
        >>> [sorted(labels[part].tolist()) for part in parts]
        [[0, 0, 1], [1]]
    """
    owner = np.full(len(labels), -1, dtype=np.int64)
    clients = np.arange(len(counts))
    for members, count in zip(split_by_class(labels), counts.T, strict=True):
        dealt = np.repeat(clients, count)
        owner[rng.permutation(members)[: len(dealt)]] = dealt
    return deal(owner, len(counts), rng)


def draw_until(draw: Callable[[], Counts], num_samples: int, num_clients: int, min_size: int, setting: str) -> Counts:
    """Repeat ``draw`` until the sums of the rows of the counts all reach ``min_size``.

    Args:
        draw: Random counts of clients x classes.
        num_samples: Number of samples there are.
        num_clients: Number of clients.
        min_size: Least number of samples of a client.
        setting: What the error message should name as the cause.

    Raises:
        PartitionError: When ``min_size`` is out of reach, or not reached in 1000 draws (fewer for very many clients).
    """
    if min_size * num_clients > num_samples:
        raise PartitionError(
            f"`min_size` = {min_size} for {num_clients} clients needs {min_size * num_clients} samples, there are "
            f"{num_samples}: lower `min_size` or the number of clients."
        )
    attempts = max(MIN_ATTEMPTS, min(MAX_ATTEMPTS, MAX_CLIENT_DRAWS // num_clients))
    best = 0
    for _ in range(attempts):
        counts = draw()
        best = max(best, int(counts.sum(axis=1).min()))
        if best >= min_size:
            return counts
    raise PartitionError(
        f"{attempts} draws with {setting} left some of {num_clients} clients with fewer than `min_size` = {min_size} "
        f"samples (at best {best}): raise `alpha`, lower `min_size` or use fewer clients."
    )


def iid_split(labels: Labels, num_clients: int, rng: np.random.Generator, *, stratified: bool = False) -> list[Indices]:
    """Random parts whose sizes differ by at most one.

    Args:
        labels: Label of each sample.
        num_clients: Number of clients.
        rng: Source of randomness.
        stratified: Also let the counts of each class differ by at most one between clients.

    Example:
        >>> labels = np.repeat([0, 1], 4)
        >>> parts = iid_split(labels, 4, np.random.default_rng(0), stratified=True)
        >>> [sorted(labels[part].tolist()) for part in parts]
        [[0, 1], [0, 1], [0, 1], [0, 1]]
    """
    order = rng.permutation(len(labels))
    if stratified:
        order = order[np.argsort(labels[order], kind="stable")]
    owner = np.empty(len(labels), dtype=np.int64)
    # dealing a class-sorted deck one card at a time balances sizes and classes at once
    owner[order] = np.arange(len(labels)) % num_clients
    return deal(owner, num_clients, rng)


def dirichlet_split(
    labels: Labels,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    balance: bool = True,
    shuffle_classes: bool = False,
    min_size: int = 10,
) -> list[Indices]:
    r"""Cut each class at the shares :math:`p_k \sim \mathrm{Dir}_N(\alpha)` of the clients.

    Args:
        labels: Label of each sample.
        num_clients: Number of clients :math:`N`.
        rng: Source of randomness.
        alpha: Concentration; near 0 each class goes to one client, large values approach IID.
        balance: Give nothing more to clients that already hold :math:`n/N` samples. This evens out the sizes and
            makes the label skew stronger than ``alpha`` alone.
        shuffle_classes: Visit the classes in random order; with ``balance`` the last ones are the most skewed.
        min_size: Draw again until each client holds this many samples.

    Raises:
        PartitionError: When no draw gives each client ``min_size`` samples.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = dirichlet_split(labels, 5, np.random.default_rng(0), alpha=0.5)
        >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
        (1000, True)
    """
    totals = np.unique(labels, return_counts=True)[1]

    def draw() -> Counts:
        counts = np.zeros((num_clients, len(totals)), dtype=np.int64)
        sizes = np.zeros(num_clients, dtype=np.int64)
        for k in rng.permutation(len(totals)) if shuffle_classes else range(len(totals)):
            shares = rng.dirichlet(np.full(num_clients, alpha))
            if balance:
                open_shares = np.where(sizes < len(labels) / num_clients, shares, 0.0)
                # all clients closed, or all the mass on closed ones: keep the plain draw
                shares = open_shares if open_shares.sum() > 0 else shares
            counts[:, k] = counts_from_shares(shares, int(totals[k]))
            sizes += counts[:, k]
        return counts

    counts = draw_until(draw, len(labels), num_clients, min_size, f"`alpha` = {alpha}")
    return deal_classes(labels, counts, rng)


def shard_split(labels: Labels, num_clients: int, rng: np.random.Generator, *, per_client: int) -> list[Indices]:
    """Sort by label, cut into equal shards, deal ``per_client`` random shards to each client.

    A shard may straddle two classes and two shards may show the same one, so clients hold about, not exactly,
    ``per_client`` classes.

    Args:
        labels: Label of each sample.
        num_clients: Number of clients.
        rng: Source of randomness.
        per_client: Shards of each client.

    Raises:
        PartitionError: When there are more shards than samples.

    Example:
        >>> labels = np.repeat(np.arange(4), 10)
        >>> parts = shard_split(labels, 2, np.random.default_rng(0), per_client=2)
        >>> [len(set(labels[part].tolist())) for part in parts]
        [2, 2]
    """
    num_shards = num_clients * per_client
    if num_shards > len(labels):
        raise PartitionError(
            f"{num_clients} clients with `per_client` = {per_client} need {num_shards} shards, there are only "
            f"{len(labels)} samples: lower `per_client` or the number of clients."
        )
    client_of_shard = rng.permutation(num_shards) // per_client
    owner = np.empty(len(labels), dtype=np.int64)
    owner[np.argsort(labels, kind="stable")] = np.repeat(client_of_shard, equal_sizes(len(labels), num_shards))
    return deal(owner, num_clients, rng)


def similarity_split(labels: Labels, num_clients: int, rng: np.random.Generator, *, similarity: float) -> list[Indices]:
    """Deal a share of the samples at random and the rest sorted by label, in equal chunks of both.

    Args:
        labels: Label of each sample.
        num_clients: Number of clients.
        rng: Source of randomness.
        similarity: Share of IID samples; ``1`` is IID, ``0`` gives each client as few classes as possible.

    Example:
        >>> labels = np.tile([0, 1], 10)
        >>> parts = similarity_split(labels, 2, np.random.default_rng(0), similarity=0.0)
        >>> [sorted(set(labels[part].tolist())) for part in parts]
        [[0], [1]]
    """
    order = rng.permutation(len(labels))
    pool, rest = np.split(order, [round(similarity * len(labels))])
    rest = rest[np.argsort(labels[rest], kind="stable")]
    clients = np.arange(num_clients)
    owner = np.empty(len(labels), dtype=np.int64)
    owner[pool] = np.repeat(clients, equal_sizes(len(pool), num_clients))
    # the odd samples of the sorted part go to the clients without one from the pool
    owner[rest] = np.repeat(clients, equal_sizes(len(rest), num_clients, first=len(pool) % num_clients))
    return deal(owner, num_clients, rng)
