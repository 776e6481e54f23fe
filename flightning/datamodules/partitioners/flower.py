"""The partitioners of the package `flwr-datasets`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from flightning.datamodules.partitioners.base import Partitioner
from flightning.errors import ConfigurationError, nearest

__all__ = ["FlowerPartitioner"]

Labels = npt.NDArray[np.int64]
Parts = list[npt.NDArray[np.int64]]


class FlowerPartitioner(Partitioner):
    """Any partitioner of the package ``flwr-datasets``, by name.

    The samples are shown to it as a table with the columns ``label`` and, with natural ids, ``client``. The arguments
    ``num_partitions``, ``partition_by`` and ``seed`` are filled in when they are not given.

    Args:
        rule: Class of ``flwr_datasets.partitioner``, such as ``PathologicalPartitioner``.
        options: Its keyword arguments.

    Example:
        >>> FlowerPartitioner("ExponentialPartitioner")
        FlowerPartitioner(rule='ExponentialPartitioner')
    """

    shown = ("rule",)

    def __init__(self, rule: str, options: dict[str, Any] | None = None) -> None:
        self.rule = rule
        self.options = options

    def count_clients(self, ids: npt.NDArray[Any] | None = None) -> int | None:
        """What the options say, or what a natural rule counts by itself."""
        if self._is_natural:
            flower = self._build(np.zeros(0 if ids is None else len(ids), dtype=np.int64), 1, 0, ids)
            with self._explained():
                return int(flower.num_partitions)
        given = self.options or {}
        return len(given["partition_sizes"]) if "partition_sizes" in given else given.get("num_partitions")

    @property
    def _is_natural(self) -> bool:
        return "NaturalId" in self.rule

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Let Flower deal the row numbers."""
        return self.split_with_ids(labels, num_clients, rng, None)

    def split_with_ids(
        self, labels: Labels, num_clients: int, rng: np.random.Generator, ids: npt.NDArray[Any] | None
    ) -> Parts:
        """Let Flower deal the row numbers, with the ids as the column ``client``."""
        flower = self._build(labels, num_clients, int(rng.integers(2**31)), ids)
        with self._explained():
            return [
                np.asarray(flower.load_partition(client)["row"], dtype=np.int64)
                for client in range(int(flower.num_partitions))
            ]

    def _class(self) -> Any:
        try:
            from flwr_datasets import partitioner as rules
        except ImportError as error:
            raise ConfigurationError(
                f"`FlowerPartitioner({self.rule!r})` needs the package `flwr-datasets`, which cannot be imported "
                f"({error}): run `pip install flwr-datasets`."
            ) from error
        names = [name for name in rules.__all__ if "Vertical" not in name and name != "Partitioner"]
        if self.rule not in names:
            raise ConfigurationError(
                f"`{self.rule}` is no partitioner of `flwr_datasets` that deals rows. {nearest(self.rule, names)}"
            )
        return getattr(rules, self.rule)

    def _build(self, labels: Labels, num_clients: int, seed: int, ids: npt.NDArray[Any] | None) -> Any:
        cls = self._class()
        if self._is_natural and ids is None:
            raise ConfigurationError(
                f"`{self.rule}` needs the natural id of each sample: choose a data set with a client column "
                "(`client_column`) or another partition."
            )
        defaults = {
            "num_partitions": num_clients,
            "partition_by": "client" if self._is_natural else "label",
            "seed": seed,
        }
        accepted = inspect.signature(cls).parameters
        from datasets import Dataset

        table = {"label": labels, "row": np.arange(len(labels))}
        with self._explained():
            flower = cls(**{k: v for k, v in defaults.items() if k in accepted} | (self.options or {}))
            flower.dataset = Dataset.from_dict(table if ids is None else {**table, "client": ids})
        return flower

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigurationError(
                f"`{self.rule}` of `flwr_datasets` cannot deal the samples with `options={self.options or {}}` "
                f"({type(error).__name__}: {error}): correct `data.partition.options` or `data.num_clients`."
            ) from error
