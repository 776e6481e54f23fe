"""Natural clients: the writer, user or role that each sample came from."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from flightning.errors import PartitionError
from flightning.functional.partition.dealing import NOBODY, Indices, deal, equal_sizes

__all__ = ["Grouping", "natural_ids", "natural_split"]

Grouping = Literal["group", "largest", "random"]


def natural_ids(ids: npt.NDArray[Any], min_samples: int = 1) -> tuple[npt.NDArray[Any], Indices, Indices]:
    """Distinct ids that occur at least ``min_samples`` times.

    Returns:
        The kept ids in sorted order, the number of samples of each, and the position of the id of each sample in
        them (-1 for an id that was left out).

    Raises:
        PartitionError: When the ids have one value only, or none occurs often enough.

    Example:
        >>> names, sizes, place = natural_ids(np.array(["b", "a", "b", "c"]))
        >>> names.tolist(), sizes.tolist(), place.tolist()
        (['a', 'b', 'c'], [1, 2, 1], [1, 0, 1, 2])
    """
    names, place, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise PartitionError(
            f"The client column holds one value only ({', '.join(map(str, names))}): choose the column of the writer, "
            "user or role, or a rule that needs no ids."
        )
    kept = sizes >= min_samples
    if not kept.any():
        raise PartitionError(
            f"None of the {len(names)} ids has `min_samples` = {min_samples} samples, the largest has {sizes.max()}: "
            "lower `min_samples`."
        )
    new_place = np.where(kept, np.cumsum(kept) - 1, NOBODY)
    return names[kept], sizes[kept], new_place[place]


def natural_split(
    ids: npt.NDArray[Any],
    num_clients: int,
    rng: np.random.Generator,
    *,
    min_samples: int = 1,
    grouping: Grouping = "group",
) -> list[Indices]:
    """One client for each natural id, or groups of ids when there are more ids than clients.

    Args:
        ids: Natural id of each sample.
        num_clients: Number of clients, at most the number of ids.
        rng: Source of randomness.
        min_samples: Leave out ids with fewer samples.
        grouping: With more ids than clients: ``group`` random ids into equally many for each client, keep the
            ``largest`` ids only, or keep ``random`` ones.

    Returns:
        Indices of each client; with as many clients as ids, client ``k`` is the ``k``-th id in sorted order.

    Raises:
        PartitionError: When there are fewer ids than clients.

    Example:
        >>> parts = natural_split(np.array(["ann", "bob", "ann"]), 2, np.random.default_rng(0))
        >>> [sorted(part.tolist()) for part in parts]
        [[0, 2], [1]]
    """
    names, sizes, place = natural_ids(ids, min_samples)
    if num_clients > len(names):
        raise PartitionError(
            f"{num_clients} clients need as many ids, but {len(names)} have `min_samples` = {min_samples}: lower "
            f"`num_clients` to at most {len(names)}, or `min_samples`."
        )
    clients = np.arange(num_clients)
    client_of_id = np.full(len(names) + 1, NOBODY, dtype=np.int64)
    if num_clients == len(names):
        client_of_id[:-1] = clients
    elif grouping == "group":
        client_of_id[rng.permutation(len(names))] = np.repeat(clients, equal_sizes(len(names), num_clients))
    elif grouping == "largest":
        client_of_id[np.argsort(-sizes, kind="stable")[:num_clients]] = clients
    else:
        client_of_id[rng.permutation(len(names))[:num_clients]] = clients
    # the last entry answers for the ids that were left out (place -1)
    return deal(client_of_id[place], num_clients, rng)
