"""Where samples come from: tensors in memory, sliced as whole batches, or any map-style data set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from flightning.errors import ConfigurationError

__all__ = ["DatasetSource", "PictureSource", "Source", "TensorSource", "as_source"]

Indices = NDArray[np.int64]

#: Samples gathered at a time, and their bytes, so that batches are slices and memory does not follow the client's size.
GATHER, GATHER_BYTES = 2048, 64 * 2**20


class Source(ABC):
    """Samples by index, their labels and, where the data has natural clients, the id of each sample."""

    labels: NDArray[np.int64]
    #: Natural client (writer, user, role) of each sample.
    ids: NDArray[Any] | None = None
    #: Names of the natural clients where `ids` are their numbers.
    id_names: Sequence[str] | None = None
    #: Whether reading a sample may draw from the global generators.
    may_draw = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batches(self, batches: Sequence[Indices]) -> Iterator[Any]:
        """The batches that consist of these samples, in order."""

    def stored_input(self, index: int) -> Tensor | None:
        """Input of one sample before normalisation; ``None`` where it may be another each time it is read."""
        return None

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        sample = next(iter(self.batches([np.array([0])])))
        first = sample[0] if isinstance(sample, list | tuple) else next(iter(sample.values()))
        return tuple(first.shape[1:]) if isinstance(first, Tensor) else ()


class GatheredSource(Source):
    """Samples in memory: one gather for a run of batches, which are then slices of it."""

    _most: int | None = None

    @abstractmethod
    def gather(self, order: Indices) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples, as a model gets them."""

    def stored_input(self, index: int) -> Tensor | None:
        """One sample, gathered alone."""
        return self.gather(np.array([index]))[0][0]

    def batches(self, batches: Sequence[Indices]) -> Iterator[tuple[Tensor, Tensor]]:
        """Slices of gathered runs of batches."""
        start, most = 0, self._most_at_once(batches)
        while start < len(batches):
            stop, gathered = start, 0
            while stop < len(batches) and (stop == start or gathered + len(batches[stop]) <= most):
                gathered += len(batches[stop])
                stop += 1
            inputs, targets = self.gather(np.concatenate(batches[start:stop]))
            sizes = [len(b) for b in batches[start:stop]]
            yield from zip(torch.split(inputs, sizes), torch.split(targets, sizes), strict=True)
            start = stop

    def _most_at_once(self, batches: Sequence[Indices]) -> int:
        if self._most is None:
            sample = next((b[:1] for b in batches if len(b)), None)
            if sample is None:
                return GATHER
            size = sum(t.numel() * t.element_size() for t in self.gather(sample))
            self._most = min(GATHER, max(1, GATHER_BYTES // max(1, size)))
        return self._most


class TensorSource(GatheredSource):
    """Samples that live in memory as tensors.

    Args:
        inputs: One sample per row.
        targets: One target per row.
        ids: Natural client of each sample.

    Example:
        >>> source = TensorSource(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 0]))
        >>> next(source.batches([np.array([2, 0])]))
        (tensor([[4., 5.],
                [0., 1.]]), tensor([0, 0]))
    """

    def __init__(self, inputs: Tensor, targets: Tensor, ids: NDArray[Any] | None = None) -> None:
        if len(inputs) != len(targets):
            raise ConfigurationError(
                f"{len(inputs)} inputs and {len(targets)} targets: give one target per input, in the same order."
            )
        if ids is not None and len(ids) != len(targets):
            raise ConfigurationError(f"{len(targets)} samples and {len(ids)} ids: give one id per sample.")
        self.inputs, self.targets, self.ids = inputs, targets, ids
        self.labels = targets.numpy() if not targets.is_floating_point() else np.zeros(len(targets), np.int64)

    def __len__(self) -> int:
        return len(self.targets)

    def gather(self, order: Indices) -> tuple[Tensor, Tensor]:
        """Rows of both tensors."""
        inputs, targets = self._rows(order)
        return self.prepared(inputs), targets

    def stored_input(self, index: int) -> Tensor | None:
        """One row, as `plain` gives it."""
        return self.plain(np.array([index]))[0][0]

    def plain(self, order: Indices) -> tuple[Tensor, Tensor]:
        """Inputs and targets before normalisation: pictures as numbers from 0 to 1."""
        return self._rows(order)

    def replaced(self, inputs: Tensor, targets: Tensor) -> TensorSource:
        """The same source with other inputs, as `plain` gives them, and targets."""
        return TensorSource(inputs, targets)

    def prepared(self, inputs: Tensor) -> Tensor:
        """Stored inputs as a model gets them."""
        return inputs

    def _rows(self, order: Indices) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(order)
        return self.inputs.index_select(0, index), self.targets.index_select(0, index)


class PictureSource(TensorSource):
    """Pictures that live in memory as bytes and become normalised numbers batch by batch.

    Args:
        inputs: Samples x channels x height x width, bytes or numbers from 0 to 1.
        targets: One label per picture.
        mean: Mean of each channel on the scale from 0 to 1; ``None`` leaves this scale.
        std: Standard deviation of each channel.
        ids: Natural client of each picture.

    Example:
        >>> source = PictureSource(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8), torch.tensor([3]), (0.5,), (0.25,))
        >>> next(source.batches([np.array([0])]))
        (tensor([[[[2.]]]]), tensor([3]))
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        ids: NDArray[Any] | None = None,
    ) -> None:
        super().__init__(inputs, targets, ids)
        self.mean, self.std = mean, std

    def prepared(self, inputs: Tensor) -> Tensor:
        """Normalised pictures."""
        pictures = _unit_scale(inputs)
        if self.mean is None or self.std is None:
            return pictures
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        # in place only where the scaling has just made a copy
        return pictures.sub_(mean).div_(std) if pictures is not inputs else (pictures - mean) / std

    def plain(self, order: Indices) -> tuple[Tensor, Tensor]:
        """Pictures from 0 to 1."""
        inputs, targets = self._rows(order)
        return _unit_scale(inputs), targets

    def replaced(self, inputs: Tensor, targets: Tensor) -> PictureSource:
        """Other pictures, normalised in the same way."""
        return PictureSource(inputs, targets, self.mean, self.std)


def _unit_scale(pictures: Tensor) -> Tensor:
    return pictures if pictures.is_floating_point() else pictures.float().div_(255)


class DatasetSource(Source):
    """Samples of a map-style data set, loaded by a `DataLoader` for each client of a round, or each evaluation.

    Args:
        dataset: The data set.
        labels: Its labels, for partitioning.
        num_workers: Worker processes of the loader.
        collate_fn: How samples become a batch; ``None`` is PyTorch's default.
    """

    may_draw = True

    def __init__(
        self, dataset: Dataset[Any], labels: NDArray[np.int64], num_workers: int = 0, collate_fn: Any = None
    ) -> None:
        self.dataset, self.labels, self.num_workers, self.collate_fn = dataset, labels, num_workers, collate_fn

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def batches(self, batches: Sequence[Indices]) -> Iterator[Any]:
        """Batches as the loader collates them."""
        lists = [b.tolist() for b in batches]
        yield from DataLoader(
            self.dataset, batch_sampler=lists, num_workers=self.num_workers, collate_fn=self.collate_fn
        )


def as_source(data: Any, labels: Sequence[int] | None = None, num_workers: int = 0, collate_fn: Any = None) -> Source:
    """Turn ``(inputs, targets)`` tensors, a `TensorDataset` or any map-style data set into a source.

    Args:
        data: The samples.
        labels: Labels of a data set that has neither ``targets`` nor ``labels``.
        num_workers: Worker processes for a data set that is not in memory.
        collate_fn: How its samples become a batch.

    Raises:
        ConfigurationError: Where no labels can be found.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(t, Tensor) for t in data):
        return TensorSource(*data)
    if labels is None:
        labels = next((getattr(data, n) for n in ("targets", "labels") if hasattr(data, n)), None)
    if labels is None:
        raise ConfigurationError(
            f"`{type(data).__name__}` has no labels: it has neither `targets` nor `labels`. Pass them, "
            "`from_dataset(..., labels=[...])`, one integer per sample."
        )
    array = np.asarray(labels)
    if len(array) != len(data):
        raise ConfigurationError(f"{len(data)} samples and {len(array)} labels: give one label per sample.")
    if not np.issubdtype(array.dtype, np.integer):
        raise ConfigurationError(f"labels are {array.dtype}: give integers from 0 to the number of classes - 1.")
    return DatasetSource(data, array.astype(np.int64), num_workers, collate_fn)
