"""Any image or text classification set of the Hugging Face Hub, or of files in the formats that it knows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flightning.datamodules.array_cache import Arrays, cache_folder, load_or_make
from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.hub import (
    DataFiles,
    Table,
    find_column,
    read_ids,
    read_labels,
    read_pictures,
    read_texts,
)
from flightning.datamodules.partitioners import Natural, Partitioner
from flightning.datamodules.sources import PictureSource, Source
from flightning.datamodules.text import TextSource, Tokenizer, Words
from flightning.errors import ConfigurationError
from flightning.functional.partition import natural_ids

__all__ = ["HuggingFace"]


class HuggingFace(FederatedDataModule):
    """Pictures or texts with labels, read once with the package `datasets` and then from a checked cache.

    Args:
        path: Name on the Hub, local folder, or file format (``parquet``, ``csv``, ``json``, ``imagefolder``).
        name: Configuration of a data set that has several.
        data_files: Local files or patterns, by split where there are several.
        revision: Version on the Hub.
        train_split: Split to train on; ``train[:10%]`` is a part of it.
        test_split: Split to test on; ``None`` for no test set.
        image_column: Column of pictures; ``None`` takes the only one.
        text_column: Column of texts, in place of pictures; ``None`` takes the only one where there are no pictures.
        label_column: Column of labels, integers or `ClassLabel`; ``None`` takes the only `ClassLabel` or ``label``.
        client_column: Column that tells the client (writer, user) of each sample, for the partition `Natural`, which
            is then the default.
        resize: Height and width of the pictures; one number for squares. ``None`` where all have the same size.
        normalize: Whether to subtract the mean of each channel of the training pictures and divide by its standard
            deviation.
        tokenizer: How texts become numbers; ``None`` is ``Words()``.
        cache_dir: Where the samples are kept as arrays; ``None`` is ``flightning`` in the user's cache folder.
        partition: Rule that deals the training samples to the clients.
        **kwargs: Arguments of `FederatedDataModule`.

    Example:
        >>> HuggingFace("uoft-cs/cifar10", image_column="img", num_clients=100).table
        Table(path='uoft-cs/cifar10', name=None, data_files=None, revision=None)
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        data_files: DataFiles | None = None,
        revision: str | None = None,
        train_split: str = "train",
        test_split: str | None = "test",
        image_column: str | None = None,
        text_column: str | None = None,
        label_column: str | None = None,
        client_column: str | None = None,
        resize: int | tuple[int, int] | None = None,
        normalize: bool = True,
        tokenizer: Tokenizer | None = None,
        cache_dir: str | None = None,
        partition: Partitioner | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(partition=Natural() if partition is None and client_column else partition, **kwargs)
        if image_column is not None and (text_column is not None or tokenizer is not None):
            raise ConfigurationError(
                f"`image_column={image_column!r}` goes with neither `text_column` nor `tokenizer`: the samples are "
                "pictures or texts, choose one."
            )
        self.table = Table(path, name, data_files, revision)
        self.splits = {"train": train_split} if test_split is None else {"train": train_split, "test": test_split}
        self.image_column, self.text_column = image_column, text_column
        self.label_column, self.client_column = label_column, client_column
        self.resize = (resize, resize) if isinstance(resize, int) else resize
        self.normalize = normalize
        self.tokenizer = Words() if tokenizer is None else tokenizer
        self.cache_dir = cache_dir

    def prepare_data(self) -> None:
        """Fetch and convert the samples where the cache does not hold them."""
        self.cached  # noqa: B018

    @cached_property
    def cached(self) -> Arrays:
        """The samples as arrays, and what is known about them."""
        settings = {
            **self.table.settings(),
            "splits": self.splits,
            "columns": [self.image_column, self.text_column, self.label_column, self.client_column],
            "resize": self.resize,
            "tokenizer": self.tokenizer.identity,
        }
        return load_or_make(cache_folder(self.cache_dir, self.table.path, settings), self._convert)

    @cached_property
    def num_classes(self) -> int:  # type: ignore[override]
        """Number of classes in both splits."""
        return int(self.cached.meta["num_classes"])

    @cached_property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of a picture, or the greatest length of a text."""
        return tuple(self.cached.meta["input_shape"])

    @cached_property
    def class_names(self) -> Sequence[str] | None:  # type: ignore[override]
        """Names of the classes, or their labels where these do not count from 0."""
        names: Sequence[str] | None = self.cached.meta["class_names"]
        return names

    @property
    def vocabulary(self) -> list[str]:
        """Tokens by their numbers; empty for pictures."""
        return list(self.cached.meta.get("vocabulary", []))

    @property
    def vocabulary_size(self) -> int | None:  # type: ignore[override]
        """Number of tokens; ``None`` for pictures."""
        return len(self.vocabulary) or None

    @property
    def padding_index(self) -> int | None:  # type: ignore[override]
        """Token that fills short texts up; ``None`` for pictures."""
        index: int | None = self.cached.meta.get("padding_index")
        return index

    def load(self) -> tuple[Source, Source | None]:
        """Both splits from the cache."""
        return self._source("train"), self._source("test") if "test" in self.splits else None

    def _source(self, split: str) -> Source:
        arrays, meta = self.cached.arrays, self.cached.meta
        targets, ids = arrays[f"{split}_targets"], arrays.get(f"{split}_ids")
        source: Source
        if f"{split}_pictures" in arrays:
            mean, std = (meta["mean"], meta["std"]) if self.normalize else (None, None)
            pictures = torch.from_numpy(arrays[f"{split}_pictures"])
            source = PictureSource(pictures, torch.from_numpy(targets), mean, std, ids)
        else:
            tokens, bounds = arrays[f"{split}_tokens"], arrays[f"{split}_bounds"]
            source = TextSource(tokens, bounds, targets, meta["padding_index"], ids)
        source.id_names = meta.get("id_names")
        return source

    # --- from tables to arrays ----------------------------------------------------------------------------------

    def _convert(self) -> Arrays:
        tables = {name: self.table.open(split) for name, split in self.splits.items()}
        arrays, meta = self._convert_labels(tables)
        if self.client_column is not None:
            self._convert_ids(tables, arrays, meta)
        column = self._picture_column(tables["train"])
        if column is None:
            self._convert_texts(tables, arrays, meta)
        else:
            self._convert_pictures(tables, column, arrays, meta)
        return Arrays(arrays, meta)

    def _convert_labels(self, tables: dict[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        features = tables["train"].features
        fitting = [c for c, f in features.items() if hasattr(f, "names")] or [c for c in features if c == "label"]
        column = find_column(tables["train"], "label_column", self.label_column, fitting)
        read = {split: read_labels(table, column) for split, table in tables.items()}
        names = read["train"][1]
        if names is None:
            # labels such as 0 and 4 become 0 and 1
            values = np.unique(np.concatenate([labels for labels, _ in read.values()]))
            targets = {split: np.searchsorted(values, labels) for split, (labels, _) in read.items()}
            counted = np.array_equal(values, np.arange(len(values)))
            meta = {"num_classes": len(values), "class_names": None if counted else [str(v) for v in values]}
        else:
            targets = {split: labels for split, (labels, _) in read.items()}
            meta = {"num_classes": len(names), "class_names": names}
        return {f"{split}_targets": labels for split, labels in targets.items()}, meta

    def _convert_ids(self, tables: dict[str, Any], arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> None:
        column = find_column(tables["train"], "client_column", self.client_column, [])
        names, _, arrays["train_ids"] = natural_ids(read_ids(tables["train"], column))
        number = {name: place for place, name in enumerate(names.tolist())}
        if "test" in tables and column in tables["test"].column_names:
            # clients of the test split that nobody trains with get numbers of their own
            others, places = np.unique(read_ids(tables["test"], column), return_inverse=True)
            arrays["test_ids"] = np.array([number.setdefault(name, len(number)) for name in others.tolist()])[places]
        meta["id_names"] = list(number)

    def _picture_column(self, table: Any) -> str | None:
        from datasets import Image

        pictures = [name for name, feature in table.features.items() if isinstance(feature, Image)]
        if self.text_column is not None or (self.image_column is None and not pictures):
            if self.resize is not None:
                raise ConfigurationError(
                    f"`resize={self.resize}` is for pictures, but the samples are texts: remove it."
                )
            return None
        return find_column(table, "image_column", self.image_column, pictures)

    def _convert_pictures(
        self, tables: dict[str, Any], column: str, arrays: dict[str, NDArray[Any]], meta: dict[str, Any]
    ) -> None:
        for split, table in tables.items():
            arrays[f"{split}_pictures"] = read_pictures(table, column, self.resize)
        shapes = {split: arrays[f"{split}_pictures"].shape[1:] for split in tables}
        if len(set(shapes.values())) > 1:
            raise ConfigurationError(
                f"training pictures have the shape {shapes['train']} and test pictures {shapes['test']} (channels, "
                "height, width): give the size they shall have with `resize`."
            )
        meta["input_shape"] = shapes["train"]
        meta["mean"], meta["std"] = channel_statistics(arrays["train_pictures"])

    def _convert_texts(self, tables: dict[str, Any], arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> None:
        taken = (self.label_column, self.client_column)
        fitting = [
            name
            for name, feature in tables["train"].features.items()
            if getattr(feature, "dtype", None) in ("string", "large_string") and name not in taken
        ]
        column = find_column(tables["train"], "text_column", self.text_column, fitting)
        texts = {split: read_texts(table, column) for split, table in tables.items()}
        vocabulary = self.tokenizer.learn(texts["train"])
        for split, own in texts.items():
            encoded = list(self.tokenizer.encode(own, vocabulary))
            arrays[f"{split}_bounds"] = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
            arrays[f"{split}_tokens"] = np.array([token for text in encoded for token in text], dtype=np.int32)
        meta["input_shape"] = (self.tokenizer.max_length,)
        meta["vocabulary"], meta["padding_index"] = vocabulary, self.tokenizer.padding_index


def channel_statistics(pictures: NDArray[np.uint8]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel on the scale from 0 to 1; a constant channel gets 1.

    Example:
        >>> channel_statistics(np.array([0, 255], dtype=np.uint8).reshape(1, 1, 1, 2))
        ([0.5], [0.5])
    """
    values = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(pictures.shape[1]):
        counts = np.bincount(pictures[:, channel].reshape(-1), minlength=256)
        mean = float(counts @ values / counts.sum())
        means.append(mean)
        deviations.append(float(np.sqrt(counts @ (values - mean) ** 2 / counts.sum())) or 1.0)
    return means, deviations
