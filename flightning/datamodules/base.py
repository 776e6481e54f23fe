"""The data of a federation: which client owns which samples, and the batches of each client."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from flightning.datamodules.loaders import ORDER, ClientLoaders
from flightning.datamodules.local_tests import LocalTests, make_local_tests, skew_samples
from flightning.datamodules.partitioners import Dirichlet, Partitioner, sample_digests, save_partition
from flightning.datamodules.skews import FeatureSkew
from flightning.datamodules.sources import as_source
from flightning.datamodules.stream import BatchList
from flightning.datamodules.transforms import BatchTransform
from flightning.errors import ConfigurationError, check_choice
from flightning.functional.heterogeneity import Heterogeneity, label_counts, summarize
from flightning.functional.partition import hold_out, partition_hash
from flightning.functional.seeding import derive_seed, numpy_generator, resolve_seed

if TYPE_CHECKING:
    from flightning.datamodules.in_memory import InMemoryData

__all__ = ["FederatedDataModule"]

#: Keys that keep the random streams of one seed apart; 2 and 3 are those of the loaders.
_PARTITION, _SPLIT, _SKEW, _TEST = 1, 4, 5, 6

_DEFAULT_NUM_CLIENTS = 10


class FederatedDataModule(ClientLoaders):
    """Samples, dealt to clients; emits the batches of one round, client after client.

    A subclass defines `num_classes`, `input_shape`, optionally `class_names`, and `load`.

    Args:
        num_clients: Number of clients; ``None`` takes as many as the partition finds by itself (natural ids, a saved
            file), or 10.
        partition: Rule that deals the training samples to the clients; ``None`` is ``Dirichlet(alpha=0.5)``.
        skew: Rule that changes what each client sees, in training and in its local test set; ``None`` for no change.
            The global test set stays as it is.
        client_test: Local test sets: ``same_recipe`` deals the test set as the training set was dealt; ``whole`` gives
            each client all of it, as its skew shows it; a number in (0, 1) holds this share of each client's own
            samples out, which together are the test set of data that has none.
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
    #: Number of different tokens where samples are texts, and the token that fills short ones up; ``None`` for others.
    vocabulary_size: int | None = None
    padding_index: int | None = None

    def __init__(
        self,
        num_clients: int | None = None,
        partition: Partitioner | None = None,
        skew: FeatureSkew | None = None,
        client_test: Literal["same_recipe", "whole"] | float = "same_recipe",
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
            if size is not None and size < 1:
                raise ConfigurationError(f"`{name}={size}` must be at least 1: leave it out for the default.")
        for name, share in (("val_fraction", val_fraction), ("shared_fraction", shared_fraction)):
            if not 0 <= share < 1:
                raise ConfigurationError(f"`{name}={share}` must lie in [0, 1): 0.1 keeps a tenth of the samples.")
        check_choice("stored_order", stored_order, ("shuffled_once", "class_sorted"))
        if isinstance(client_test, str):
            check_choice("client_test", client_test, ("same_recipe", "whole"))
        elif not 0 < client_test < 1:
            raise ConfigurationError(
                f"`client_test={client_test!r}` must be `same_recipe`, `whole` or lie in (0, 1): 0.2 holds a fifth of "
                "each client's samples out."
            )
        self._given_clients = num_clients
        #: Number of clients; final after `setup`.
        self.num_clients = _DEFAULT_NUM_CLIENTS if num_clients is None else num_clients
        self.partition = Dirichlet() if partition is None else partition
        self.skew, self.client_test = skew, client_test
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.shuffle, self.stored_order, self.drop_last = shuffle, stored_order, drop_last
        self.val_fraction, self.shared_fraction = val_fraction, shared_fraction
        self.augment = augment or []
        self.num_workers = num_workers
        self.seed = resolve_seed(seed)
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
            **kwargs: Arguments of `FederatedDataModule`, and `ids`, `num_classes`, `class_names`, `collate_fn`.

        Example:
            >>> from flightning.datamodules.partitioners import IID
            >>> inputs, targets = torch.randn(20, 3), torch.arange(20) % 2
            >>> data = FederatedDataModule.from_dataset((inputs, targets), num_clients=4, partition=IID())
            >>> data.setup("fit")
            >>> data.num_classes, data.sizes.tolist()
            (2, [5, 5, 5, 5])
        """
        from flightning.datamodules.in_memory import InMemoryData

        return InMemoryData(train, test, labels=labels, **kwargs)

    @staticmethod
    def from_clients(clients: Sequence[Any], test: Any = None, **kwargs: Any) -> InMemoryData:
        """Make a data module of one ``(inputs, targets)`` pair per client: nothing is partitioned.

        Samples stay in the order in which they are given; ``stored_order="class_sorted"`` sorts them.

        Example:
            >>> pair = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
            >>> data = FederatedDataModule.from_clients([pair, pair])
            >>> data.setup("fit")
            >>> data.sizes.tolist()
            [3, 3]
        """
        from flightning.datamodules.in_memory import InMemoryData, check_pairs

        check_pairs(clients)
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
        self._loaded = as_source(train, num_workers=self.num_workers)
        self.test_source = None if test is None else as_source(test, num_workers=self.num_workers)
        self._deal()
        self._is_set_up = True

    def _deal(self) -> None:
        source = self._loaded
        pool, self.validation = self._hold_out(np.arange(len(source)), self.val_fraction, by_class=False)
        pool, self.shared = self._hold_out(pool, self.shared_fraction, by_class=True)
        ids = None if source.ids is None else source.ids[pool]
        #: The partition as its rule made it: positions in the samples that were dealt, and these samples.
        self._dealt, self._pool = self._make_parts(source.labels[pool], ids), pool
        self.partition.check_source(source, pool)
        self.num_clients = len(self._dealt)
        parts = [self._stored(pool[part], client) for client, part in enumerate(self._dealt)]
        self._held_out: list[NDArray[np.int64]] | None = None
        if not isinstance(self.client_test, str):
            parts, self._held_out = hold_out(parts, self.client_test, numpy_generator(self.seed, _TEST))
        self.partition_hash = partition_hash(parts)
        self._unskewed_parts = parts
        self._local_tests: LocalTests | None = None
        if self.skew is None:
            self.train_source, self.parts = source, list(parts)
        else:
            self.skew.check(self.num_classes)
            self.train_source, self.parts = skew_samples(source, parts, self.skew, self._skew_seed)
        #: What each client owns, without the samples that it was given.
        self.own_parts = list(self.parts)
        #: Labels of these samples before a skew changed them.
        self.original_labels = [source.labels[part] for part in parts]
        self.sizes = np.array([len(part) for part in self.parts], dtype=np.int64)
        empty = np.flatnonzero(self.sizes == 0)
        if len(empty):
            warnings.warn(
                f"{len(empty)} of {self.num_clients} clients have no samples and are never sampled (first: client "
                f"{empty[0]}): lower `num_clients`, or raise the partition's `min_size`.",
                stacklevel=2,
            )

    def _make_parts(self, labels: NDArray[np.int64], ids: NDArray[Any] | None) -> list[NDArray[np.int64]]:
        number = self._given_clients
        if number is None:
            number = self.partition.count_clients(ids) or _DEFAULT_NUM_CLIENTS
        return self.partition(labels, number, derive_seed(self.seed, _PARTITION), ids=ids)

    @property
    def _skew_seed(self) -> int:
        return derive_seed(self.seed, _SKEW)

    def _hold_out(
        self, pool: NDArray[np.int64], fraction: float, by_class: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if fraction == 0:
            return pool, pool[:0]
        order = numpy_generator(self.seed, _SPLIT, int(by_class)).permutation(pool)
        if by_class:
            labels = self._loaded.labels[order]
            each = max(1, round(fraction * len(pool) / self.num_classes))
            taken = np.concatenate([order[labels == c][:each] for c in range(self.num_classes)])
        else:
            taken = order[: round(fraction * len(pool))]
        return np.setdiff1d(pool, taken), np.sort(taken)

    def _stored(self, part: NDArray[np.int64], client: int) -> NDArray[np.int64]:
        return self._sorted(numpy_generator(self.seed, ORDER, client).permutation(part))

    def _sorted(self, part: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.stored_order == "class_sorted":
            part = part[np.argsort(self._loaded.labels[part], kind="stable")]
        return part

    def label_counts(self) -> NDArray[np.int64]:
        """Samples of each client (row) and class (column)."""
        return label_counts(self.train_source.labels, self.parts, self.num_classes)

    @property
    def client_names(self) -> list[str] | None:
        """Natural id of each client; ``None`` where clients are no natural ones."""
        ids, names = self._loaded.ids, self._loaded.id_names
        own = [] if ids is None else [np.unique(ids[part]) for part in self._unskewed_parts]
        if not own or any(len(one) != 1 for one in own):
            return None
        return [str(one[0]) if names is None else str(names[int(one[0])]) for one in own]

    def heterogeneity(self) -> Heterogeneity:
        """How different the clients are."""
        return summarize(self.train_source.labels, self.parts, self.num_classes)

    def save_partition(self, path: str | Path) -> Path:
        """Save the partition for `FromFile`, with what tells whether it was made for the same samples."""
        digests = sample_digests(self._loaded, self._pool)
        return save_partition(path, self._dealt, self._loaded.labels[self._pool], digests)

    @property
    def local_tests(self) -> LocalTests:
        """The local test set of each client, as `client_test` says; made when first asked for."""
        if self._local_tests is None:
            self._local_tests = self._make_local_tests()
        return self._local_tests

    def _make_local_tests(self) -> LocalTests:
        seed = derive_seed(self.seed, _TEST)
        if self._held_out is not None:
            return make_local_tests(
                self._loaded, self._unskewed_parts, self._loaded, self._held_out, self.skew, self._skew_seed
            )
        if self.test_source is None:
            raise ConfigurationError(
                f"`{type(self).__name__}` has no test set to deal to the clients: hold a share of each client's "
                "samples out, `client_test: 0.2`."
            )
        test = self.test_source
        if self.client_test == "whole":
            own = [np.arange(len(test))] * len(self._dealt)
        else:
            labels, ids = self._loaded.labels[self._pool], self._loaded.ids
            ids = None if ids is None else ids[self._pool]
            own = self.partition.split_test(labels, self._dealt, test.labels, seed, ids=ids, test_ids=test.ids)
        return make_local_tests(self._loaded, self._unskewed_parts, test, own, self.skew, self._skew_seed)

    def test_dataloader(self) -> BatchList | list[Any]:
        """The global test set; without one, what was held out from all clients together."""
        if self.test_source is None and self._held_out is not None:
            return self._loader(self.local_tests.source, np.concatenate(self.local_tests.parts))
        return super().test_dataloader()

    def pool(self) -> None:
        """Give all training samples to one client (centralised training)."""
        together = np.concatenate(self.parts)
        order = np.argsort(together)
        self.parts, self.original_labels = [together[order]], [np.concatenate(self.original_labels)[order]]
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
