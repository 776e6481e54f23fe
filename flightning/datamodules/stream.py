"""The batches of one round: client after client, as one plain iterable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from lightning_utilities.core.apply_func import apply_to_collection
from numpy.typing import NDArray
from torch import Tensor

from flightning.errors import ClientError, FlightningError

__all__ = [
    "BatchList",
    "ClientStream",
    "Clients",
    "RoundPlan",
    "RoundStream",
    "Visit",
    "num_batches",
    "order_batches",
    "shard",
    "shard_batch",
    "shard_bounds",
]

#: Local steps after which a new item of a stream of clients begins.
GROUP_STEPS = 64


@dataclass(frozen=True)
class Visit:
    """One client's part of a round.

    Args:
        client: Its number.
        steps: Its local steps.
        drop_last: Whether an incomplete last batch is left out.
    """

    client: int
    steps: int
    drop_last: bool = False


@dataclass(frozen=True)
class RoundPlan:
    """Who trains in a round, in which order and how long: a pure function of seed and round.

    Args:
        round_index: The round, counted from 0.
        visits: The clients in order.
    """

    round_index: int
    visits: tuple[Visit, ...]

    @property
    def cohort(self) -> list[int]:
        """The clients of the round."""
        return [v.client for v in self.visits]


def num_batches(num_samples: int, batch_size: int, drop_last: bool) -> int:
    """Batches in one pass.

    Example:
        >>> num_batches(10, 4, False), num_batches(10, 4, True), num_batches(3, 4, True)
        (3, 2, 0)
    """
    return num_samples // batch_size if drop_last else -(-num_samples // batch_size)


def order_batches(
    indices: NDArray[np.int64], steps: int, batch_size: int, drop_last: bool, rng: np.random.Generator | None
) -> list[NDArray[np.int64]]:
    """Deal samples into the batches of a number of local steps, one pass after the other.

    Args:
        indices: The client's samples in stored order.
        steps: How many batches.
        batch_size: Samples per batch.
        drop_last: Whether each pass leaves out an incomplete last batch.
        rng: Shuffles each pass; ``None`` keeps the stored order.

    Example:
        >>> [b.tolist() for b in order_batches(np.arange(5), 4, 2, False, None)]
        [[0, 1], [2, 3], [4], [0, 1]]
    """
    per_pass = num_batches(len(indices), batch_size, drop_last)
    batches: list[NDArray[np.int64]] = []
    while len(batches) < steps:
        order = indices if rng is None else rng.permutation(indices)
        batches += [order[i * batch_size : (i + 1) * batch_size] for i in range(per_pass)]
    return batches[:steps]


def shard(samples: Any, rank: int, count: int) -> Any:
    """The part of a batch that one of several processes trains on; parts differ by at most one sample.

    A process for which nothing is left gets the first sample: it must take part in the backward pass, and the engine
    gives it weight 0.

    Args:
        samples: Anything that can be sliced by sample.
        rank: The process.
        count: How many processes there are.

    Example:
        >>> [shard(np.arange(5), rank, 2).tolist() for rank in range(2)]
        [[0, 1, 2], [3, 4]]
        >>> [shard(np.arange(1), rank, 2).tolist() for rank in range(2)]
        [[0], [0]]
    """
    if count == 1:
        return samples
    start, stop = shard_bounds(len(samples), rank, count)
    return samples[start:stop] if stop > start else samples[:1]


def shard_bounds(size: int, rank: int, count: int) -> tuple[int, int]:
    """First and last + 1 sample of a process; the first processes take the remainder.

    Example:
        >>> [shard_bounds(5, rank, 3) for rank in range(3)]
        [(0, 2), (2, 4), (4, 5)]
    """
    each, rest = divmod(size, count)
    start = rank * each + min(rank, rest)
    return start, start + each + (rank < rest)


def shard_batch(batch: Any, rank: int, count: int) -> Any:
    """The part of a batch of tensors that one of several processes trains on."""
    return apply_to_collection(batch, Tensor, lambda t: shard(t, rank, count))


class ClientStream:
    """The batches of one client, made while they are iterated.

    Args:
        visit: Whose batches.
        batches: The batches. The first is made at once, as where every batch is an item of the stream: a data set that
            draws from the global generator then draws the same.
    """

    def __init__(self, visit: Visit, batches: Iterable[Any]) -> None:
        iterator = iter(batches)
        self.visit, self._batches = visit, chain(list(islice(iterator, 1)), iterator)

    def __iter__(self) -> Iterator[Any]:
        return self._batches


class Clients:
    """Clients as one item of the stream; none for a process that trains nobody in this round.

    Args:
        visits: Who.
        batches: Batches of each visit, in order.
    """

    #: Tells Lightning's transfer to the device that this is no batch.
    holds_batches = True

    def __init__(self, visits: Sequence[Visit], batches: Iterable[Iterator[Any]]) -> None:
        self.visits, self._batches = visits, batches

    def __iter__(self) -> Iterator[ClientStream]:
        for visit, batches in zip(self.visits, self._batches, strict=True):
            yield ClientStream(visit, batches)


class RoundStream:
    """Batches of all visits of a plan; the module's ``training_step`` sees ordinary batches.

    A plan without visits gives a single item without clients: Lightning ends a fit that has nothing to read.

    Args:
        plan: The round.
        batches: Batches of each of some visits; those of one are read before those of the next.
        whole_clients: Whether an item is a client (`Clients`) in place of a batch. Short clients that follow each
            other share an item.
    """

    def __init__(
        self,
        plan: RoundPlan,
        batches: Callable[[RoundPlan, Sequence[Visit]], Iterator[Iterator[Any]]],
        whole_clients: bool = False,
    ) -> None:
        self.plan, self.batches, self.whole_clients = plan, batches, whole_clients
        self.groups = _in_groups(plan.visits) if whole_clients or not plan.visits else []

    def __len__(self) -> int:
        return len(self.groups) or sum(v.steps for v in self.plan.visits)

    def __iter__(self) -> Iterator[Any]:
        if self.groups:
            for visits in self.groups:
                yield Clients(visits, self._named(visits))
        else:
            for visit in self.plan.visits:
                yield from next(self._named([visit]))

    def _named(self, visits: Sequence[Visit]) -> Iterator[Iterator[Any]]:
        """Name the client whose samples cannot be read."""
        for visit, batches in zip(visits, self.batches(self.plan, visits), strict=True):
            yield self._read(visit, batches)

    def _read(self, visit: Visit, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from batches
        except FlightningError:
            raise
        except Exception as cause:
            raise ClientError(visit.client, "data loading", self.plan.round_index, cause) from cause


def _in_groups(visits: Sequence[Visit]) -> list[list[Visit]]:
    """Consecutive visits with enough steps that what Lightning does for an item does not show; at least one group."""
    groups: list[list[Visit]] = [[]]
    steps = 0
    for visit in visits:
        if steps >= GROUP_STEPS:
            groups.append([])
            steps = 0
        groups[-1].append(visit)
        steps += visit.steps
    return groups


class BatchList:
    """A fixed list of batches of a source, made anew each time it is iterated.

    Args:
        length: How many batches.
        make: Makes the iterator.
        is_shared: Whether other processes have other batches.
    """

    def __init__(self, length: int, make: Callable[[], Iterator[Any]], is_shared: bool = False) -> None:
        self.length, self.make, self.is_shared = length, make, is_shared

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return self.make()
