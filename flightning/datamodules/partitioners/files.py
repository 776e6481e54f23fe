"""Partitions on disk: indices with the hash of the labels and digests of some samples they were made for."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flightning.datamodules.sources import Source
from flightning.errors import DataNotFoundError, PartitionError
from flightning.functional.partition import labels_hash, partition_hash

__all__ = ["SavedPartition", "load_partition", "read_partition", "sample_digests", "save_partition"]

#: Samples that are compared, evenly spaced; files hold as many digests, so that the number cannot change.
_COMPARED = 32
_DIGESTS = "digests_of_"


@dataclass(frozen=True)
class SavedPartition:
    """Contents of a partition file.

    Attributes:
        parts: Indices of each client.
        labels_hash: Digest of the labels the partition was made for.
        num_samples: Number of those labels.
        digests: What `sample_digests` gave for those samples; empty where it is not known.
    """

    parts: list[npt.NDArray[np.int64]]
    labels_hash: str
    num_samples: int
    digests: Mapping[str, npt.NDArray[np.str_]] = field(default_factory=dict)


def sample_digests(source: Source, pool: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.str_]]:
    """Digests of evenly spaced samples: of their ``inputs``, and of their ``ids`` where they have some.

    Numbers are rounded to three decimals first, since machines differ in the last digits of what they compute.

    Args:
        source: The samples.
        pool: Those that were dealt, in this order.

    Example:
        >>> import torch
        >>> from flightning.datamodules.sources import TensorSource
        >>> source = TensorSource(torch.tensor([[0.5], [0.5], [2.0]]), torch.tensor([0, 1, 1]))
        >>> first, second, third = sample_digests(source, np.arange(3))["inputs"]
        >>> bool(first == second), bool(second == third)
        (True, False)
    """
    chosen = pool[np.linspace(0, len(pool) - 1, min(len(pool), _COMPARED)).astype(np.int64)]
    inputs = [source.stored_input(int(sample)) for sample in chosen]
    found: dict[str, list[Any]] = {}
    if all(one is not None for one in inputs):
        # adding zero makes the negative zero positive
        found["inputs"] = [np.round(one.double().numpy(), 3) + 0.0 for one in inputs if one is not None]
    if source.ids is not None:
        names = source.id_names
        found["ids"] = [np.array(str(own if names is None else names[int(own)])) for own in source.ids[chosen]]
    return {name: np.array([_digest(value) for value in values]) for name, values in found.items()}


def _digest(value: npt.NDArray[Any]) -> str:
    return hashlib.sha256(f"{value.shape}".encode() + value.tobytes()).hexdigest()[:16]


def save_partition(
    path: str | Path,
    parts: Sequence[npt.NDArray[np.int64]],
    labels: npt.NDArray[np.int64],
    digests: Mapping[str, npt.NDArray[np.str_]] | None = None,
) -> Path:
    """Save a partition with the hashes of its indices and of the labels it was made for.

    The file appears whole or not at all.

    Args:
        path: Where to write, usually ending in ``.npz``.
        parts: Indices of each client.
        labels: Label of each sample.
        digests: What `sample_digests` gives for these samples; ``None`` tells data apart by the labels only.

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
    arrays: dict[str, Any] = {
        "indices": np.concatenate([np.empty(0, dtype=np.int64), *parts]),
        "sizes": np.array([len(part) for part in parts], dtype=np.int64),
        "num_samples": np.int64(len(labels)),
        "labels_hash": np.array(labels_hash(labels)),
        "partition_hash": np.array(partition_hash(parts)),
        **{_DIGESTS + name: values for name, values in (digests or {}).items()},
    }
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
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
            digests={n.removeprefix(_DIGESTS): stored[n] for n in stored if n.startswith(_DIGESTS)},
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
        held_back = ", with the same `data.shared_fraction` and `data.val_fraction`"
        raise PartitionError(
            f"`{path}` was made for other data ({saved.num_samples} labels, hash {saved.labels_hash[:12]}; here are "
            f"{len(labels)}, hash {found[:12]}): load the data set it was made for"
            f"{held_back if len(labels) != saved.num_samples else ''}, or make a new partition."
        )
    return saved.parts
