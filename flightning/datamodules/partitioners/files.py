"""Partitions on disk: indices with the hash of the labels they were made for."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flightning.errors import DataNotFoundError, PartitionError
from flightning.functional.partition import labels_hash, partition_hash

__all__ = ["SavedPartition", "load_partition", "read_partition", "save_partition"]


@dataclass(frozen=True)
class SavedPartition:
    """Contents of a partition file.

    Attributes:
        parts: Indices of each client.
        labels_hash: Digest of the labels the partition was made for.
        num_samples: Number of those labels.
    """

    parts: list[npt.NDArray[np.int64]]
    labels_hash: str
    num_samples: int


def save_partition(path: str | Path, parts: Sequence[npt.NDArray[np.int64]], labels: npt.NDArray[np.int64]) -> Path:
    """Save a partition with the hashes of its indices and of the labels it was made for.

    The file appears whole or not at all.

    Args:
        path: Where to write, usually ending in ``.npz``.
        parts: Indices of each client.
        labels: Label of each sample.

    Returns:
        The path written.

    Example:
        >>> import tempfile
        >>> labels = np.array([0, 1, 1])
        >>> path = save_partition(Path(tempfile.mkdtemp()) / "split.npz", [np.array([0, 2]), np.array([1])], labels)
        >>> [part.tolist() for part in load_partition(path, labels)]
        [[0, 2], [1]]
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(
            file,
            indices=np.concatenate([np.empty(0, dtype=np.int64), *parts]),
            sizes=np.array([len(part) for part in parts], dtype=np.int64),
            num_samples=np.int64(len(labels)),
            labels_hash=np.array(labels_hash(labels)),
            partition_hash=np.array(partition_hash(parts)),
        )
    partial.replace(path)
    return path


def read_partition(path: str | Path) -> SavedPartition:
    """Read a partition file and check that its indices are the ones that were saved.

    Raises:
        DataNotFoundError: When there is no such file.
        PartitionError: When the file is damaged or no partition.
    """
    path = Path(path)
    if not path.is_file():
        raise DataNotFoundError(f"There is no partition file `{path}`: give the path of one made by `save_partition`.")
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        bounds = np.cumsum(stored["sizes"])[:-1]
        saved = SavedPartition(
            parts=np.split(stored["indices"], bounds) if len(stored["sizes"]) else [],
            labels_hash=str(stored["labels_hash"]),
            num_samples=int(stored["num_samples"]),
        )
        whole = partition_hash(saved.parts) == str(stored["partition_hash"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise PartitionError(
            f"`{path}` is damaged or no partition file ({error}): save the partition again."
        ) from error
    if not whole:
        raise PartitionError(f"`{path}` is damaged: its indices do not match their hash; save the partition again.")
    return saved


def load_partition(path: str | Path, labels: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Read a partition and check that it was made for ``labels``.

    Args:
        path: A file made by :func:`save_partition`.
        labels: Label of each sample.

    Returns:
        Indices of each client.

    Raises:
        DataNotFoundError: When there is no such file.
        PartitionError: When the file is damaged or was made for other data.
    """
    saved = read_partition(path)
    found = labels_hash(labels)
    if saved.labels_hash != found:
        raise PartitionError(
            f"`{path}` was made for other data ({saved.num_samples} labels, hash {saved.labels_hash[:12]}; here are "
            f"{len(labels)}, hash {found[:12]}): load the data set it was made for, or make a new partition."
        )
    return saved.parts
