"""Arrays on disk that were expensive to make: whole, checked, and shared by all processes of a machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray

from flightning.errors import ConfigurationError

__all__ = ["Arrays", "cache_folder", "load_or_make"]

#: Changes when the files of older versions cannot be read any more, or would hold something else today.
FORMAT = 2

_META = "meta.json"
_READ = 1 << 22


@dataclass(frozen=True)
class Arrays:
    """Named arrays and facts about them.

    Args:
        arrays: The arrays by name.
        meta: Numbers, texts and lists of them.
    """

    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]


def cache_folder(root: str | Path | None, name: str, settings: Mapping[str, Any]) -> Path:
    """Folder for what these settings make.

    Args:
        root: Where cached data lies; ``None`` is ``flightning`` in the user's cache folder.
        name: What it is called there.
        settings: All that decides about the content.

    Example:
        >>> cache_folder("cache", "a/b", {"resize": 28}).name
        'a-b-a18e114ba4dcde86'
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flightning" if root is None else root
    text = json.dumps({"format": FORMAT, **settings}, sort_keys=True, default=str)
    slug = re.sub(r"[^\w.]+", "-", name).strip("-")[-60:]
    return Path(base) / f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def load_or_make(folder: Path, make: Callable[[], Arrays]) -> Arrays:
    """Read arrays from a folder; make and keep them where they are missing or damaged.

    The folder appears whole or not at all, and the checksum of every file is compared each time it is read. The
    arrays are mapped into memory, so that processes share them.

    Args:
        folder: Their place.
        make: Makes them.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "squares"
        >>> first = load_or_make(folder, lambda: Arrays({"x": np.arange(4) ** 2}, {"power": 2}))
        >>> again = load_or_make(folder, lambda: Arrays({}, {}))
        >>> again.arrays["x"].tolist(), again.meta["power"]
        ([0, 1, 4, 9], 2)
    """
    if folder.exists():
        kept = _read(folder)
        if kept is not None:
            return kept
        rank_zero_warn(
            f"The cached data in `{folder}` is damaged, by a full disk or an interrupted copy for instance, and is "
            "made again."
        )
    made = make()
    _write(folder, made)
    kept = _read(folder)
    if kept is None:
        raise ConfigurationError(
            f"the cached data in `{folder}` cannot be read back: check the disk, or its free space."
        )
    return kept


def _read(folder: Path) -> Arrays | None:
    try:
        meta = json.loads((folder / _META).read_text())
        arrays = {}
        for name, checksum in meta["checksums"].items():
            path = folder / f"{name}.npy"
            if _checksum(path) != checksum:
                return None
            # copy on write: torch wants writable memory, the file stays as it is
            arrays[name] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Arrays(arrays, meta["facts"])


def _write(folder: Path, made: Arrays) -> None:
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        checksums = {}
        for name, array in made.arrays.items():
            np.save(partial / f"{name}.npy", array, allow_pickle=False)
            checksums[name] = _checksum(partial / f"{name}.npy")
        (partial / _META).write_text(json.dumps({"checksums": checksums, "facts": made.meta}))
        _replace(partial, folder)
    except OSError as error:
        raise ConfigurationError(
            f"the folder `{folder}` for cached data cannot be written ({error}): choose another with `cache_dir`."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace(partial: Path, folder: Path) -> None:
    if folder.exists():
        old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        folder.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    try:
        partial.rename(folder)
    except OSError:
        if not (folder / _META).exists():  # otherwise another process was faster
            raise


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ):
            digest.update(block)
    return digest.hexdigest()
