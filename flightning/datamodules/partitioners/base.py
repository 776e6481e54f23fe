"""What every rule that deals samples to clients shares: seeding, checks, representation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flightning.datamodules.settings import Settings
from flightning.datamodules.sources import Source
from flightning.errors import PartitionError
from flightning.functional.partition import proportional_test_split

__all__ = ["Partitioner"]

# keeps the stream apart from those of other parts that use the same seed
_STREAM = int.from_bytes(b"partition", "big")


class Partitioner(Settings, ABC):
    """Rule that deals sample indices to clients.

    A rule of your own needs one method, :meth:`split`; seeding and checks come with the call.

    Example:
        >>> class EveryOther(Partitioner):
        ...     def split(self, labels, num_clients, rng):
        ...         return [np.arange(k, len(labels), num_clients) for k in range(num_clients)]
        >>> [part.tolist() for part in EveryOther()(np.zeros(5, dtype=int), 2, seed=0)]
        [[0, 2, 4], [1, 3]]
        >>> EveryOther()
        EveryOther()
    """

    @abstractmethod
    def split(
        self, labels: npt.NDArray[np.int64], num_clients: int, rng: np.random.Generator
    ) -> list[npt.NDArray[np.int64]]:
        """Deal the samples.

        Args:
            labels: Label of each sample.
            num_clients: Number of clients, at most the number of samples.
            rng: The only source of randomness.

        Returns:
            Indices of each client.
        """

    def split_with_ids(
        self,
        labels: npt.NDArray[np.int64],
        num_clients: int,
        rng: np.random.Generator,
        ids: npt.NDArray[Any] | None,
    ) -> list[npt.NDArray[np.int64]]:
        """Deal the samples when they carry natural ids; rules that use no ids fall back to :meth:`split`."""
        return self.split(labels, num_clients, rng)

    def count_clients(self, ids: npt.NDArray[Any] | None = None) -> int | None:
        """Number of clients that the rule finds by itself, ``None`` when the caller must choose."""
        return None

    def check_source(self, source: Source, pool: npt.NDArray[np.int64]) -> None:
        """Refuse samples that the rule is not made for; most rules look at labels and ids only.

        Args:
            source: Where the samples lie.
            pool: Those that are dealt.
        """

    @property
    def allows_overlap(self) -> bool:
        """Whether two clients may hold the same sample."""
        return False

    def __call__(
        self,
        labels: npt.ArrayLike,
        num_clients: int | None,
        seed: int,
        ids: npt.ArrayLike | None = None,
    ) -> list[npt.NDArray[np.int64]]:
        """Deal the samples: same labels, number of clients and seed, same partition.

        Args:
            labels: Label of each sample, integers.
            num_clients: Number of clients; ``None`` asks the rule (natural ids, a saved file).
            seed: Seed of the partition.
            ids: Natural client (writer, user, role) of each sample, for the rules that use it.

        Returns:
            Indices of each client.

        Raises:
            PartitionError: When the data cannot be dealt as asked.
        """
        checked = _check_labels(labels)
        id_array = None if ids is None else np.asarray(ids)
        if id_array is not None and len(id_array) != len(checked):
            raise PartitionError(f"There are {len(id_array)} `ids` for {len(checked)} `labels`: give one id per label.")
        chosen = self.count_clients(id_array) if num_clients is None else num_clients
        if chosen is None:
            raise PartitionError(f"`{self!r}` does not know the number of clients: set `num_clients`.")
        self._check_num_clients(chosen, len(checked))
        rng = np.random.default_rng([seed, _STREAM])
        parts = [np.asarray(part, dtype=np.int64) for part in self.split_with_ids(checked, chosen, rng, id_array)]
        self._check_parts(parts, chosen, len(checked))
        return parts

    def split_test(
        self,
        labels: npt.ArrayLike,
        parts: Sequence[npt.NDArray[np.int64]],
        test_labels: npt.ArrayLike,
        seed: int,
        ids: npt.NDArray[Any] | None = None,
        test_ids: npt.NDArray[Any] | None = None,
    ) -> list[npt.NDArray[np.int64]]:
        """Deal the test set so that each client's local test set follows its training labels.

        Args:
            labels: Labels of the training set.
            parts: Training indices of each client.
            test_labels: Labels of the test set.
            seed: Seed of the partition.
            ids: Natural client of each training sample, for the rules that use it.
            test_ids: Natural client of each test sample.
        """
        rng = np.random.default_rng([seed, _STREAM, 1])
        return proportional_test_split(_check_labels(labels), parts, _check_labels(test_labels), rng)

    def _check_num_clients(self, num_clients: int, num_samples: int) -> None:
        if num_clients < 1:
            raise PartitionError(f"`num_clients` must be at least 1, got {num_clients}.")
        if num_clients > num_samples and not self.allows_overlap:
            raise PartitionError(
                f"There are more clients than samples ({num_clients} > {num_samples}): lower `num_clients` to at most "
                f"{num_samples} or load more samples."
            )

    def _check_parts(self, parts: list[npt.NDArray[np.int64]], num_clients: int, num_samples: int) -> None:
        if len(parts) != num_clients:
            raise PartitionError(f"`{self!r}` made {len(parts)} parts for {num_clients} clients: return one for each.")
        dealt = np.concatenate(parts)
        if len(dealt) and (dealt.min() < 0 or dealt.max() >= num_samples):
            raise PartitionError(f"`{self!r}` dealt indices outside 0 to {num_samples - 1}: return sample positions.")
        if not self.allows_overlap and np.bincount(dealt, minlength=1).max() > 1:
            raise PartitionError(
                f"`{self!r}` gave a sample to two clients: deal each once, or let `allows_overlap` return True."
            )


def _check_labels(labels: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) == 0:
        raise PartitionError(f"`labels` must be one label for each sample, got shape {array.shape}: load data first.")
    if not (np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_):
        raise PartitionError(f"`labels` must be integers, got {array.dtype}: encode the classes as 0, 1, 2, ...")
    return array.astype(np.int64)
