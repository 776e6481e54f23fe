"""Partitioners that take the clients from elsewhere: natural ids, another rule, a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from flightning.datamodules.partitioners.base import Partitioner
from flightning.datamodules.partitioners.files import load_partition, read_partition, sample_digests
from flightning.datamodules.partitioners.label import Dirichlet
from flightning.datamodules.settings import require
from flightning.datamodules.sources import Source
from flightning.errors import PartitionError
from flightning.functional.partition import Grouping, long_tail, natural_ids, natural_split, thin_like

__all__ = ["FromFile", "LongTail", "Natural"]

# keeps the stream apart from those of other parts that use the same seed
_TAIL = int.from_bytes(b"tail", "big")

Labels = npt.NDArray[np.int64]
Parts = list[npt.NDArray[np.int64]]


class Natural(Partitioner):
    """One client for each natural id (writer, user, role), or groups of ids.

    The ids come with the data, so only data modules with a client column can use this rule.

    Args:
        min_samples: Leave out ids with fewer samples.
        grouping: With fewer clients than ids: ``group`` random ids into equally many for each client, keep the
            ``largest`` ids only, or keep ``random`` ones.

    Example:
        >>> ids = np.array(["ann", "bob", "ann", "cid"])
        >>> parts = Natural(min_samples=1)(np.zeros(4, dtype=int), num_clients=None, seed=0, ids=ids)
        >>> [sorted(part.tolist()) for part in parts]
        [[0, 2], [1], [3]]
    """

    shown = ("min_samples",)

    def __init__(self, min_samples: int = 1, grouping: Grouping = "group") -> None:
        require(min_samples >= 1, "min_samples", min_samples, "must be >= 1", "use 1 to keep all ids")
        names = get_args(Grouping)
        require(grouping in names, "grouping", grouping, f"must be one of {', '.join(names)}", "use group")
        self.min_samples = min_samples
        self.grouping = grouping

    def count_clients(self, ids: npt.NDArray[Any] | None = None) -> int | None:
        """Number of ids with enough samples."""
        return None if ids is None else len(natural_ids(ids, self.min_samples)[0])

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Refuse: there is nothing to split by without ids."""
        raise PartitionError(
            "`Natural` needs the natural id of each sample: choose a data set with a client column (`client_column`) "
            "or another partition."
        )

    def split_with_ids(
        self, labels: Labels, num_clients: int, rng: np.random.Generator, ids: npt.NDArray[Any] | None
    ) -> Parts:
        """Deal all samples of an id to one client."""
        if ids is None:
            return self.split(labels, num_clients, rng)
        return natural_split(ids, num_clients, rng, min_samples=self.min_samples, grouping=self.grouping)

    def split_test(
        self,
        labels: npt.ArrayLike,
        parts: Sequence[npt.NDArray[np.int64]],
        test_labels: npt.ArrayLike,
        seed: int,
        ids: npt.NDArray[Any] | None = None,
        test_ids: npt.NDArray[Any] | None = None,
    ) -> Parts:
        """Give each client the test samples of its own ids; without test ids, those of its label distribution."""
        if ids is None or test_ids is None:
            return super().split_test(labels, parts, test_labels, seed)
        own = _samples_of_ids(parts, ids, test_ids)
        if not any(len(part) for part in own):
            raise PartitionError(
                f"None of the ids of the {len(parts)} clients occurs in the test split, so they have no local test "
                "sets: hold a share of each client's own samples out, `client_test: 0.2`."
            )
        return own


def _samples_of_ids(parts: Sequence[npt.NDArray[np.int64]], ids: npt.NDArray[Any], test_ids: npt.NDArray[Any]) -> Parts:
    """Test samples of the ids that each client holds; one search serves all clients."""
    order = np.argsort(test_ids, kind="stable")
    owned = [np.unique(ids[part]) for part in parts]
    wanted, ranked = np.concatenate([ids[:0], *owned]), test_ids[order]
    bounds = zip(np.searchsorted(ranked, wanted, "left"), np.searchsorted(ranked, wanted, "right"), strict=True)
    runs = iter([order[start:stop] for start, stop in bounds])
    return [np.sort(np.concatenate([order[:0], *islice(runs, len(own))])) for own in owned]


class LongTail(Partitioner):
    r"""Thin the classes to a long tail, then apply another rule.

    Class :math:`c` keeps :math:`n_{\max} \cdot IF^{-c / (C - 1)}` samples, at least one; the others go to nobody.

    Args:
        inner: Rule that deals the kept samples; ``None`` is ``Dirichlet()``.
        imbalance: Imbalance factor :math:`IF` >= 1, the ratio of the largest to the smallest class.

    Example:
        >>> labels = np.repeat(np.arange(3), 100)
        >>> parts = LongTail(Dirichlet(alpha=1.0, min_size=1), imbalance=100)(labels, 2, seed=0)
        >>> np.bincount(labels[np.concatenate(parts)]).tolist()
        [100, 10, 1]
        >>> LongTail(imbalance=50)
        LongTail(inner=Dirichlet(alpha=0.5), imbalance=50)
    """

    shown = ("inner", "imbalance")

    def __init__(self, inner: Partitioner | None = None, imbalance: float = 10.0) -> None:
        require(1 <= imbalance < math.inf, "imbalance", imbalance, "must be >= 1 and finite", "use 1 for no long tail")
        self.inner = Dirichlet() if inner is None else inner
        self.imbalance = imbalance

    def count_clients(self, ids: npt.NDArray[Any] | None = None) -> int | None:
        """As the inner rule."""
        return self.inner.count_clients(ids)

    @property
    def allows_overlap(self) -> bool:
        """As the inner rule."""
        return self.inner.allows_overlap

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Thin, then deal."""
        return self.split_with_ids(labels, num_clients, rng, None)

    def split_with_ids(
        self, labels: Labels, num_clients: int, rng: np.random.Generator, ids: npt.NDArray[Any] | None
    ) -> Parts:
        """Thin, then deal, with the ids of the kept samples."""
        kept = long_tail(labels, rng, imbalance=self.imbalance)
        if num_clients > len(kept):
            raise PartitionError(
                f"`imbalance` = {self.imbalance} keeps {len(kept)} of {len(labels)} samples, fewer than the "
                f"{num_clients} clients: lower `imbalance` or the number of clients."
            )
        kept_ids = None if ids is None else ids[kept]
        return [kept[part] for part in self.inner.split_with_ids(labels[kept], num_clients, rng, kept_ids)]

    def split_test(
        self,
        labels: npt.ArrayLike,
        parts: Sequence[npt.NDArray[np.int64]],
        test_labels: npt.ArrayLike,
        seed: int,
        ids: npt.NDArray[Any] | None = None,
        test_ids: npt.NDArray[Any] | None = None,
    ) -> Parts:
        """Thin the test set to the same tail, then deal it as the inner rule does."""
        train, test, dealt = np.asarray(labels), np.asarray(test_labels), np.unique(np.concatenate(parts))
        kept = thin_like(train, train[dealt], test, np.random.default_rng([seed, _TAIL]))
        own = self.inner.split_test(
            train[dealt],
            [np.searchsorted(dealt, part) for part in parts],
            test[kept],
            seed,
            ids=None if ids is None else ids[dealt],
            test_ids=None if test_ids is None else test_ids[kept],
        )
        return [kept[part] for part in own]


class FromFile(Partitioner):
    """A partition that was saved with :func:`save_partition`, so that others train on exactly the same split.

    Args:
        path: The ``.npz`` file. It is refused when it was made for other labels.
        check_samples: Whether it is also refused when it was made for other inputs or ids with the same labels;
            ``False`` where these are the same samples in another form, such as pictures of another size.

    Example:
        >>> FromFile("split.npz")
        FromFile(path='split.npz')
    """

    shown = ("path",)

    def __init__(self, path: str, check_samples: bool = True) -> None:
        self.path = path
        self.check_samples = check_samples

    def count_clients(self, ids: npt.NDArray[Any] | None = None) -> int | None:
        """Number of clients of the saved partition."""
        return len(read_partition(Path(self.path)).parts)

    @property
    def allows_overlap(self) -> bool:
        """The saved partition is taken as it is."""
        return True

    def check_source(self, source: Source, pool: npt.NDArray[np.int64]) -> None:
        """Compare some samples with those that the file was made for, where it tells."""
        if not self.check_samples:
            return
        found = sample_digests(source, pool)
        for name, saved in read_partition(Path(self.path)).digests.items():
            differ = int((saved != found[name]).sum()) if name in found else 0
            # a few differ where numbers lie between two rounded ones
            if 2 * differ > len(saved):
                raise PartitionError(
                    f"`{self.path}` was made for other data: the labels are the same, but {differ} of {len(saved)} "
                    f"compared {name} are not; load the data set it was made for, or set `partition.check_samples` to "
                    "false where these are the same samples in another form."
                )

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Read the file and check that it was made for these labels."""
        parts = load_partition(Path(self.path), labels)
        if len(parts) != num_clients:
            raise PartitionError(
                f"`{self.path}` holds {len(parts)} clients, not {num_clients}: set `num_clients` to {len(parts)}."
            )
        return parts

    def split_test(
        self,
        labels: npt.ArrayLike,
        parts: Sequence[npt.NDArray[np.int64]],
        test_labels: npt.ArrayLike,
        seed: int,
        ids: npt.NDArray[Any] | None = None,
        test_ids: npt.NDArray[Any] | None = None,
    ) -> Parts:
        """Follow the ids where no two clients share one, as `Natural` does; otherwise the label distributions."""
        if ids is not None and test_ids is not None:
            owned = np.concatenate([np.unique(ids[part]) for part in parts])
            own = _samples_of_ids(parts, ids, test_ids)
            if len(np.unique(owned)) == len(owned) and any(len(part) for part in own):
                return own
        return super().split_test(labels, parts, test_labels, seed)
