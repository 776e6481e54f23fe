"""The batches of one round: client after client, as one plain iterable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flightning.errors import ClientError, FlightningError

__all__ = ["BatchList", "ClientStream", "RoundPlan", "RoundStream", "Visit", "num_batches", "order_batches"]


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


class ClientStream:
    """All batches of one client as a single item of the stream, made while it is iterated.

    Args:
        visit: Whose batches; ``None`` for a process that trains nobody in this round.
        batches: The batches. The first is made at once, as where every batch is an item of the stream: a data set that
            draws from the global generator then draws the same.
    """

    #: Tells Lightning's transfer to the device that this is no batch.
    holds_batches = True

    def __init__(self, visit: Visit | None = None, batches: Iterable[Any] = ()) -> None:
        iterator = iter(batches)
        self.visit, self._batches = visit, chain(list(islice(iterator, 1)), iterator)

    def __iter__(self) -> Iterator[Any]:
        return self._batches


class RoundStream:
    """Batches of all visits of a plan; the module's ``training_step`` sees ordinary batches.

    A plan without visits gives a single `ClientStream` without batches: Lightning ends a fit that has nothing to read.

    Args:
        plan: The round.
        visit_batches: Batches of one visit.
        whole_clients: Whether an item is a client (`ClientStream`) in place of a batch.
    """

    def __init__(
        self, plan: RoundPlan, visit_batches: Callable[[RoundPlan, Visit], Iterator[Any]], whole_clients: bool = False
    ) -> None:
        self.plan, self.visit_batches, self.whole_clients = plan, visit_batches, whole_clients

    def __len__(self) -> int:
        visits = self.plan.visits
        return max(1, len(visits) if self.whole_clients else sum(v.steps for v in visits))

    def __iter__(self) -> Iterator[Any]:
        if not self.plan.visits:
            yield ClientStream()
        for visit in self.plan.visits:
            batches = self._named(visit)
            if self.whole_clients:
                yield ClientStream(visit, batches)
            else:
                yield from batches


    def _named(self, visit: Visit) -> Iterator[Any]:
        """Name the client whose samples cannot be read."""
        try:
            yield from self.visit_batches(self.plan, visit)
        except FlightningError:
            raise
        except Exception as cause:
            raise ClientError(visit.client, "data loading", self.plan.round_index, cause) from cause


class BatchList:
    """A fixed list of batches of a source, made anew each time it is iterated.

    Args:
        length: How many batches.
        make: Makes the iterator.
    """

    def __init__(self, length: int, make: Callable[[], Iterator[Any]]) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return self.make()
