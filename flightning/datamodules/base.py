"""The data of a federation: which client owns which samples, and the batches of each client."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray
from torch import Tensor

from flightning.datamodules.partitioners import Dirichlet, Partitioner
from flightning.datamodules.sources import Source, TensorSource, as_source
from flightning.datamodules.stream import BatchList, RoundPlan, RoundStream, Visit, num_batches, order_batches
from flightning.datamodules.transforms import BatchTransform
from flightning.errors import ConfigurationError
from flightning.functional.heterogeneity import label_counts
from flightning.functional.partition import partition_hash
from flightning.functional.seeding import derive_seed, numpy_generator, resolve_seed, torch_generator

__all__ = ["FederatedDataModule"]

#: Keys that keep the random streams of one seed apart.
_PARTITION, _ORDER, _AUGMENT, _SPLIT = 1, 2, 3, 4


class FederatedDataModule(LightningDataModule):
    """Samples, dealt to clients; emits the batches of one round, client after client.

    A subclass defines `num_classes`, `input_shape`, optionally `class_names`, and `load`.

    Args:
        num_clients: Number of clients.
        partition: Rule that deals the training samples to the clients; ``None`` is ``Dirichlet(alpha=0.5)``.
        batch_size: Samples of a local step.
        eval_batch_size: Samples of a validation or test step.
        shuffle: Whether each local pass is in new random order; ``False`` keeps the stored order.
        stored_order: Order in which a client stores its samples: ``shuffled_once`` or ``class_sorted``.
        drop_last: Whether an incomplete last batch is left out. ``None`` leaves it out only where the model has
            BatchNorm and the client has more than one batch.
        val_fraction: Share of the training samples kept away from all clients for validation. With 0, validation
            after each round is on the test set, as in the papers.
        shared_fraction: Share of the training samples, equal over classes, that the server owns and may share.
        augment: Random transforms of the training batches, in order.
        num_workers: Loader processes for data that is not in memory.
        seed: Seed of partition, order and augmentation; ``None`` takes that of `seed_everything`, or 0.
    """

    num_classes: int
    input_shape: tuple[int, ...]
    class_names: Sequence[str] | None = None

    def __init__(
        self,
        num_clients: int = 10,
        partition: Partitioner | None = None,
        batch_size: int = 32,
        eval_batch_size: int = 512,
        shuffle: bool = True,
        stored_order: Literal["shuffled_once", "class_sorted"] = "shuffled_once",
        drop_last: bool | None = None,
        val_fraction: float = 0.0,
        shared_fraction: float = 0.0,
        augment: list[BatchTransform] | None = None,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        for name, size in (
            ("num_clients", num_clients),
            ("batch_size", batch_size),
            ("eval_batch_size", eval_batch_size),
        ):
            if size < 1:
                raise ConfigurationError(f"`{name}={size}` must be at least 1.")
        for name, share in (("val_fraction", val_fraction), ("shared_fraction", shared_fraction)):
            if not 0 <= share < 1:
                raise ConfigurationError(f"`{name}={share}` must lie in [0, 1): 0.1 keeps a tenth of the samples.")
        self.num_clients = num_clients
        self.partition = Dirichlet() if partition is None else partition
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.shuffle, self.stored_order, self.drop_last = shuffle, stored_order, drop_last
        self.val_fraction, self.shared_fraction = val_fraction, shared_fraction
        self.augment = augment or []
        self.num_workers = num_workers
        self.seed = resolve_seed(seed)
        #: Makes the plan of a round; set by the round engine.
        self.plan_round: Callable[[int], RoundPlan] | None = None
        #: Whether an item of the stream is a client in place of a batch; set by the round engine.
        self.stream_clients = False
        self._is_set_up = False

    # --- what a subclass defines --------------------------------------------------------------------------------

    def load(self) -> tuple[Any, Any]:
        """Return training and test samples: ``(inputs, targets)`` tensors, a data set with labels, or a source."""
        raise TypeError(f"`{type(self).__name__}` must define `load`, which returns training and test samples.")

    @staticmethod
    def from_dataset(train: Any, test: Any = None, labels: Sequence[int] | None = None, **kwargs: Any) -> InMemoryData:
        """Make a data module of tensors or of any map-style data set.

        Args:
            train: ``(inputs, targets)`` tensors or a data set.
            test: The same for testing; ``None`` for no test set.
            labels: Labels of a training set that does not tell them itself.
            **kwargs: Arguments of `FederatedDataModule`, and `num_classes`, `class_names`, `collate_fn`.

        Example:
            >>> from flightning.datamodules.partitioners import IID
            >>> inputs, targets = torch.randn(20, 3), torch.arange(20) % 2
            >>> data = FederatedDataModule.from_dataset((inputs, targets), num_clients=4, partition=IID())
            >>> data.setup("fit")
            >>> data.num_classes, data.sizes.tolist()
            (2, [5, 5, 5, 5])
        """
        return InMemoryData(train, test, labels=labels, **kwargs)

    @staticmethod
    def from_clients(clients: Sequence[Any], test: Any = None, **kwargs: Any) -> InMemoryData:
        """Make a data module of one ``(inputs, targets)`` pair per client: nothing is partitioned.

        Example:
            >>> pair = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
            >>> data = FederatedDataModule.from_clients([pair, pair])
            >>> data.setup("fit")
            >>> data.sizes.tolist()
            [3, 3]
        """
        inputs, targets = (torch.cat([pair[i] for pair in clients]) for i in (0, 1))
        bounds = np.cumsum([0, *(len(pair[1]) for pair in clients)])
        parts = [np.arange(a, b) for a, b in pairwise(bounds)]
        return InMemoryData((inputs, targets), test, parts=parts, **{"num_clients": len(clients), **kwargs})

    # --- set-up -------------------------------------------------------------------------------------------------

    def setup(self, stage: str | None = None) -> None:
        """Load the samples and deal them to the clients, once."""
        if self._is_set_up:
            return
        train, test = self.load()
        self.train_source = as_source(train, num_workers=self.num_workers)
        self.test_source = None if test is None else as_source(test, num_workers=self.num_workers)
        self._deal()
        self._is_set_up = True

    def _deal(self) -> None:
        labels = self.train_source.labels
        pool, self.validation = self._hold_out(np.arange(len(labels)), self.val_fraction, by_class=False)
        pool, self.shared = self._hold_out(pool, self.shared_fraction, by_class=True)
        parts = self._make_parts(labels[pool])
        self.parts = [self._stored(pool[part], client) for client, part in enumerate(parts)]
        #: What each client owns, without the samples that it was given.
        self.own_parts = list(self.parts)
        self.partition_hash = partition_hash(self.parts)
        self.sizes = np.array([len(part) for part in self.parts], dtype=np.int64)
        empty = np.flatnonzero(self.sizes == 0)
        if len(empty):
            warnings.warn(
                f"{len(empty)} of {self.num_clients} clients have no samples and are never sampled (first: client "
                f"{empty[0]}): lower `num_clients`, or raise the partition's `min_size`.",
                stacklevel=2,
            )

    def _make_parts(self, labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return self.partition(labels, self.num_clients, derive_seed(self.seed, _PARTITION))

    def _hold_out(
        self, pool: NDArray[np.int64], fraction: float, by_class: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if fraction == 0:
            return pool, pool[:0]
        order = numpy_generator(self.seed, _SPLIT, int(by_class)).permutation(pool)
        if by_class:
            labels = self.train_source.labels[order]
            each = max(1, round(fraction * len(pool) / self.num_classes))
            taken = np.concatenate([order[labels == c][:each] for c in range(self.num_classes)])
        else:
            taken = order[: round(fraction * len(pool))]
        return np.setdiff1d(pool, taken), np.sort(taken)

    def _stored(self, part: NDArray[np.int64], client: int) -> NDArray[np.int64]:
        part = numpy_generator(self.seed, _ORDER, client).permutation(part)
        if self.stored_order == "class_sorted":
            part = part[np.argsort(self.train_source.labels[part], kind="stable")]
        return part

    def label_counts(self) -> NDArray[np.int64]:
        """Samples of each client (row) and class (column)."""
        return label_counts(self.train_source.labels, self.parts, self.num_classes)

    def pool(self) -> None:
        """Give all training samples to one client (centralised training)."""
        self.parts = [np.sort(np.concatenate(self.parts))]
        self.own_parts = list(self.parts)
        self.sizes = np.array([len(self.parts[0])], dtype=np.int64)
        self.num_clients = 1

    def share(self, fraction: float) -> None:
        """Let the server own a share of the training samples, and deal the others to the clients anew."""
        self.shared_fraction = fraction
        self._deal()

    def give(self, client: int, indices: NDArray[np.int64]) -> None:
        """Let a client train on these samples, such as shared ones, beside its own; replaces what was given before."""
        self.parts[client] = np.concatenate([self.own_parts[client], indices])
        self.sizes[client] = len(self.parts[client])

    # --- batches ------------------------------------------------------------------------------------------------

    def num_steps(self, client: int, epochs: int, drop_last: bool) -> int:
        """Local steps of a client in a number of passes over its samples."""
        return epochs * num_batches(int(self.sizes[client]), self.batch_size, drop_last)

    def train_dataloader(self) -> RoundStream:
        """The batches of the current round."""
        if self.plan_round is None or self.trainer is None:
            raise ConfigurationError(
                f"`{type(self).__name__}` streams the batches of a round, but no round engine asks for them: add "
                "`Federation()` from `flightning.callbacks` to `Trainer(callbacks=[...])`."
            )
        return RoundStream(self.plan_round(self.trainer.current_epoch), self.visit_batches, self.stream_clients)

    def visit_batches(self, plan: RoundPlan, visit: Visit) -> Iterator[Any]:
        """The batches of one client in one round, shuffled and augmented by its own generators."""
        keys = (self.seed, plan.round_index, visit.client)
        rng = numpy_generator(*keys, _ORDER) if self.shuffle else None
        batches = order_batches(self.parts[visit.client], visit.steps, self.batch_size, visit.drop_last, rng)
        stream = self.train_source.batches(batches)
        return self._augmented(stream, torch_generator(*keys, _AUGMENT)) if self.augment else stream

    def _augmented(self, batches: Iterator[Any], generator: torch.Generator) -> Iterator[Any]:
        for inputs, *rest in batches:
            for transform in self.augment:
                inputs = transform(inputs, generator)
            yield (inputs, *rest)

    def client_batches(self, client: int) -> Iterator[Any]:
        """All training samples of a client in stored order, in batches for evaluation."""
        return self._in_order(self.train_source, self.parts[client])()

    def val_dataloader(self) -> BatchList | list[Any]:
        """The held-out training samples, or the test set where none are held out."""
        if len(self.validation):
            return self._loader(self.train_source, self.validation)
        return self.test_dataloader()

    def test_dataloader(self) -> BatchList | list[Any]:
        """The global test set."""
        if self.test_source is None:
            return []
        return self._loader(self.test_source, np.arange(len(self.test_source)))

    def predict_dataloader(self) -> BatchList | list[Any]:
        """The global test set."""
        return self.test_dataloader()

    def _loader(self, source: Source, indices: NDArray[np.int64]) -> BatchList:
        return BatchList(num_batches(len(indices), self.eval_batch_size, False), self._in_order(source, indices))

    def _in_order(self, source: Source, indices: NDArray[np.int64]) -> Callable[[], Iterator[Any]]:
        size = self.eval_batch_size
        batches = [indices[i : i + size] for i in range(0, len(indices), size)]
        return lambda: source.batches(batches)


class InMemoryData(FederatedDataModule):
    """Samples that the caller already has; see `FederatedDataModule.from_dataset` and `from_clients`."""

    def __init__(
        self,
        train: Any,
        test: Any = None,
        labels: Sequence[int] | None = None,
        parts: list[NDArray[np.int64]] | None = None,
        num_classes: int | None = None,
        class_names: Sequence[str] | None = None,
        collate_fn: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._train = as_source(train, labels, self.num_workers, collate_fn)
        self._test = None if test is None else as_source(test, None, self.num_workers, collate_fn)
        self._parts = parts
        self.num_classes = int(self._train.labels.max()) + 1 if num_classes is None else num_classes
        self.class_names = class_names
        self.input_shape = _sample_shape(self._train)

    def load(self) -> tuple[Source, Source | None]:
        """The samples that were handed in."""
        return self._train, self._test

    def _make_parts(self, labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        if self._parts is None:
            return super()._make_parts(labels)
        held_out = np.concatenate([self.validation, self.shared])
        dealt = np.setdiff1d(np.arange(len(self._train)), held_out)
        return [np.searchsorted(dealt, part[~np.isin(part, held_out)]) for part in self._parts]

    def _stored(self, part: NDArray[np.int64], client: int) -> NDArray[np.int64]:
        return super()._stored(part, client) if self._parts is None else part


def _sample_shape(source: Source) -> tuple[int, ...]:
    if isinstance(source, TensorSource):
        return tuple(source.inputs.shape[1:])
    sample = next(source.batches([np.array([0])]))
    first = sample[0] if isinstance(sample, list | tuple) else next(iter(sample.values()))
    return tuple(first.shape[1:]) if isinstance(first, Tensor) else ()
