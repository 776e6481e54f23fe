"""The next character of a text, with one natural client per speaker or author (Shakespeare by role)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flightning.datamodules.array_cache import Arrays, cache_folder, load_or_make
from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.hub import DataFiles, Table, find_column, read_ids, read_texts
from flightning.datamodules.partitioners import Natural, Partitioner
from flightning.datamodules.settings import require
from flightning.datamodules.text import WindowSource
from flightning.errors import ConfigurationError
from flightning.functional.partition import natural_ids

__all__ = ["NextCharacter"]


class NextCharacter(FederatedDataModule):
    """Windows of text and the character that follows each, as in LEAF's Shakespeare.

    The last part of each client's text is for testing: the characters to be predicted there are in no training window.

    Args:
        path: Name on the Hub, local folder, or file format (``parquet``, ``csv``, ``json``).
        name: Configuration of a data set that has several.
        data_files: Local files or patterns, by split where there are several.
        revision: Version on the Hub.
        split: Split that holds the texts.
        text_column: Column of texts.
        client_column: Column that tells whose text it is; the texts of a client are joined.
        length: Characters of a window.
        stride: Steps between the beginnings of two windows; 1 predicts each character once.
        test_fraction: Share of each client's text that is for testing, in ``[0, 1)``.
        cache_dir: Where the text is kept as numbers; ``None`` is ``flightning`` in the user's cache folder.
        partition: Rule that deals the windows to the clients; ``None`` is ``Natural()``, one client per speaker.
        **kwargs: Arguments of `FederatedDataModule`.

    Example:
        >>> NextCharacter("parquet", data_files="shakespeare/train.parquet", length=20).input_shape
        (20,)
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        data_files: DataFiles | None = None,
        revision: str | None = None,
        split: str = "train",
        text_column: str = "text",
        client_column: str = "role",
        length: int = 80,
        stride: int = 1,
        test_fraction: float = 0.1,
        cache_dir: str | None = None,
        partition: Partitioner | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(partition=Natural() if partition is None else partition, **kwargs)
        require(length >= 1, "length", length, "must be >= 1", "use 80 as in LEAF")
        require(stride >= 1, "stride", stride, "must be >= 1", "use 1 to predict each character")
        require(0 <= test_fraction < 1, "test_fraction", test_fraction, "must lie in [0, 1)", "use 0.1 for a tenth")
        self.table, self.split = Table(path, name, data_files, revision), split
        self.text_column, self.client_column = text_column, client_column
        self.length, self.stride, self.test_fraction = length, stride, test_fraction
        self.cache_dir = cache_dir
        self.input_shape = (length,)

    def prepare_data(self) -> None:
        """Fetch and convert the texts where the cache does not hold them."""
        self.cached  # noqa: B018

    @cached_property
    def cached(self) -> Arrays:
        """All texts as numbers of characters, client after client."""
        settings = {**self.table.settings(), "characters": [self.split, self.text_column, self.client_column]}
        return load_or_make(cache_folder(self.cache_dir, f"{self.table.path}-characters", settings), self._convert)

    @cached_property
    def num_classes(self) -> int:  # type: ignore[override]
        """Number of different characters."""
        return len(self.cached.meta["alphabet"])

    @property
    def vocabulary_size(self) -> int | None:  # type: ignore[override]
        """Number of different characters, which are both read and predicted."""
        return self.num_classes

    @cached_property
    def class_names(self) -> Sequence[str]:  # type: ignore[override]
        """The characters."""
        return [repr(character)[1:-1] for character in self.cached.meta["alphabet"]]

    def load(self) -> tuple[WindowSource, WindowSource | None]:
        """Windows whose next character lies in the first part of a client's text, and those of the last part."""
        tokens, bounds = self.cached.arrays["tokens"], self.cached.arrays["bounds"]
        sizes = np.diff(bounds)
        counts = np.maximum(-(-(sizes - self.length) // self.stride), 0)
        if not counts.any():
            raise ConfigurationError(
                f"no client has more than `length={self.length}` characters, the longest text has {sizes.max()}: lower "
                "`length`."
            )
        clients = np.repeat(np.arange(len(sizes)), counts)
        within = np.concatenate([np.arange(count) * self.stride for count in counts])
        is_test = within + self.length >= np.rint((1 - self.test_fraction) * sizes)[clients]
        starts = bounds[:-1][clients] + within
        sources = []
        for chosen in (~is_test, is_test):
            source = WindowSource(tokens, starts[chosen], self.length, clients[chosen])
            source.id_names = self.cached.meta["names"]
            sources.append(source)
        return sources[0], sources[1] if len(sources[1]) else None

    def _convert(self) -> Arrays:
        table = self.table.open(self.split)
        texts = read_texts(table, find_column(table, "text_column", self.text_column, []))
        names, _, owner = natural_ids(read_ids(table, find_column(table, "client_column", self.client_column, [])))
        joined = ["\n".join(texts[row] for row in rows) for rows in _rows_of(owner, len(names))]
        alphabet = sorted(set().union(*joined))
        codes = np.array([ord(character) for character in alphabet], dtype=np.uint32)
        written = np.frombuffer("".join(joined).encode("utf-32-le"), dtype="<u4")
        bounds = np.cumsum([0, *map(len, joined)], dtype=np.int64)
        arrays: dict[str, NDArray[Any]] = {"tokens": np.searchsorted(codes, written).astype(np.int32), "bounds": bounds}
        return Arrays(arrays, {"alphabet": alphabet, "names": names.tolist()})


def _rows_of(owner: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, count)))
