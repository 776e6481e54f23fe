"""Samples that the caller already has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.sources import Source, as_source
from flightning.errors import ConfigurationError

__all__ = ["InMemoryData", "check_pairs"]


class InMemoryData(FederatedDataModule):
    """Samples that the caller already has; see `FederatedDataModule.from_dataset` and `from_clients`.

    Args:
        train: ``(inputs, targets)`` tensors, a data set or a source.
        test: The same for testing; ``None`` for no test set.
        labels: Labels of a training set that does not tell them itself.
        ids: Natural client (writer, user, role) of each training sample, for the partition `Natural`.
        parts: Samples of each client, where nothing is left to partition.
        num_classes: Number of classes; ``None`` is one more than the largest label.
        class_names: Names of the classes.
        collate_fn: How samples of a data set become a batch.
        **kwargs: Arguments of `FederatedDataModule`.
    """

    def __init__(
        self,
        train: Any,
        test: Any = None,
        labels: Sequence[int] | None = None,
        ids: Sequence[Any] | None = None,
        parts: list[NDArray[np.int64]] | None = None,
        num_classes: int | None = None,
        class_names: Sequence[str] | None = None,
        collate_fn: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._train = as_source(train, labels, self.num_workers, collate_fn)
        self._test = None if test is None else as_source(test, None, self.num_workers, collate_fn)
        if ids is not None:
            if len(ids) != len(self._train):
                raise ConfigurationError(f"{len(self._train)} samples and {len(ids)} ids: give one id per sample.")
            self._train.ids = np.asarray(ids)
        self._parts = parts
        if not len(self._train):
            raise ConfigurationError("there are no training samples: hand in at least one for each client.")
        largest = int(self._train.labels.max())
        if num_classes is not None and largest >= num_classes:
            raise ConfigurationError(
                f"there is a label {largest}, but `num_classes={num_classes}`: labels count from 0, so raise it to "
                f"{largest + 1} or leave it out."
            )
        self.num_classes = largest + 1 if num_classes is None else num_classes
        self.class_names = class_names
        self.input_shape = self._train.sample_shape

    def load(self) -> tuple[Source, Source | None]:
        """The samples that were handed in."""
        return self._train, self._test

    def _make_parts(self, labels: NDArray[np.int64], ids: NDArray[Any] | None) -> list[NDArray[np.int64]]:
        if self._parts is None:
            return super()._make_parts(labels, ids)
        held_out = np.concatenate([self.validation, self.shared])
        dealt = np.setdiff1d(np.arange(len(self._train)), held_out)
        return [np.searchsorted(dealt, part[~np.isin(part, held_out)]) for part in self._parts]

    def _stored(self, part: NDArray[np.int64], client: int) -> NDArray[np.int64]:
        return super()._stored(part, client) if self._parts is None else self._sorted(part)


def check_pairs(clients: Sequence[Any]) -> None:
    """Refuse clients that are no pairs of tensors.

    Raises:
        ConfigurationError: Where there is no client, or one that is something else.
    """
    if not len(clients):
        raise ConfigurationError(
            "there are no clients: give `from_clients` a pair of tensors, `(inputs, targets)`, for each."
        )
    for number, pair in enumerate(clients):
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(t, Tensor) for t in pair)):
            raise ConfigurationError(
                f"client {number} is a `{type(pair).__name__}`, not a pair of tensors `(inputs, targets)`: join data "
                "sets, `from_dataset(ConcatDataset(sets), labels=..., ids=..., partition=Natural())`, with label and "
                "client of every sample."
            )
