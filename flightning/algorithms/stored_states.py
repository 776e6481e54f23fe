"""Client state on disk, for federations whose state outgrows memory.

Every state is a file of its own that is never changed: a new state is a new file, named after its content. A checkpoint
therefore refers to files by name, a run that is killed finds the files of its last checkpoint as they were, and the
files of a state that no checkpoint needs any more are deleted.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from flightning.algorithms.state import ClientStates, References, is_reference, kept_copy, worth_keeping
from flightning.errors import CheckpointError, ConfigurationError

__all__ = ["EvaluatedClientStates", "KeepsReferences", "StoredClientStates", "read_files"]

_SUFFIX = ".state"
_LEDGER = "checkpoints.json"
#: Files of one folder; file systems slow down where one holds all clients.
_PER_FOLDER = 1000


class StoredClientStates(ClientStates):
    """The values of every client that has some, one memory-mapped file each.

    Args:
        folder: Where the files lie; all processes must see it.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> states = StoredClientStates(folder.name)
        >>> states.save(7, {"control": torch.arange(3.0)})
        >>> states.load(7, torch.device("cpu"))
        {'control': tensor([0., 1., 2.])}
        >>> list(states.state_dict()["files"])
        [7]
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder).absolute()
        self._names: dict[int, str] = {}
        self._is_restored = False
        #: What a checkpoint held itself, until it is written.
        self._pending: dict[int, dict[str, Any]] = {}
        #: Names whose content was read or written by this process, and names that must still reach the disk.
        self._trusted: set[str] = set()
        self._unflushed: set[str] = set()
        #: Names that were current once and are no more.
        self._outdated: set[str] = set()
        #: Files that each checkpoint needs, once read: the first process alone writes them.
        self._known_ledger: dict[str, list[str]] | None = None

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._names))

    def __contains__(self, client: int) -> bool:
        return client in self._names

    def check(self) -> None:
        """Refuse a folder with the states of another run; on all processes before one of them starts.

        Raises:
            ConfigurationError: Where there are some.
        """
        if not self._names and not self._is_restored and self._found():
            raise ConfigurationError(
                f"`state_dir={str(self.folder)!r}` holds the client states of another run: choose another folder, or "
                "let that run go on with `--ckpt_path last`."
            )

    def start(self, is_first: bool = True) -> None:
        """Begin a fit.

        Args:
            is_first: Whether this process cleans up what a killed run has left behind; no other has started then.
        """
        self._known_ledger = None
        if is_first:
            self._make_folder()
            self._delete(self._found() - self._needed())
            for pattern in (".*.unfinished", "*/.*.unfinished"):
                for unfinished in self.folder.glob(pattern):
                    unfinished.unlink(missing_ok=True)
        pending, self._pending = self._pending, {}
        for client, values in pending.items():
            self.save(client, values)

    def _found(self) -> set[str]:
        return {path.name for path in self.folder.glob(f"*/*{_SUFFIX}")}

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"`state_dir={str(self.folder)!r}` cannot be made ({error}): give a folder that can be written to."
            ) from error

    def load(self, client: int, device: torch.device) -> dict[str, Any]:
        """Values of a client on a device; on the CPU they are read from the file when they are used.

        Raises:
            CheckpointError: Where the file is missing or damaged.
        """
        if client not in self._names:
            return {}
        values = _read(self._path(self._names[client]), client, self._trusted)
        return dict(apply_to_collection(values, Tensor, lambda t: t.to(device)))

    def save(self, client: int, values: dict[str, Any]) -> None:
        """Write the values into a new file.

        Raises:
            CheckpointError: Where it cannot be written.
        """
        values = worth_keeping(values)
        if not values:
            return
        buffer = io.BytesIO()
        torch.save(kept_copy(values), buffer)
        content = buffer.getbuffer()
        version = int(self._names[client].split("-")[1]) + 1 if client in self._names else 0
        name = f"{client}-{version}-{_checksum(content)}{_SUFFIX}"
        path = self._path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():  # under ddp, all processes have the same to write
                _write(path, content)
                self._trusted.add(name)
        except OSError as error:
            raise CheckpointError(
                f"could not write the state of client {client} into `state_dir={str(self.folder)!r}` ({error}): free "
                "some disk space, and go on with `--ckpt_path last`."
            ) from error
        self._unflushed.add(name)
        self._set_current(client, name)

    def _set_current(self, client: int, name: str) -> None:
        old = self._names.get(client)
        if old is not None and old != name:
            self._outdated.add(old)
            self._trusted.discard(old)
            self._unflushed.discard(old)
        self._names[client] = name

    def told(self, clients: Iterable[int]) -> dict[int, Any]:
        """Names of the files of these clients: the other processes read them themselves."""
        return {client: self._names[client] for client in clients if client in self._names}

    def hear(self, told: dict[int, Any]) -> None:
        """Take in what another process tells."""
        for client, name in told.items():
            self._set_current(client, name)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[Any, Any]:
        """Names of all files; each tells the checksum of its content."""
        for name in self._unflushed:
            with self._path(name).open("rb") as file:
                os.fsync(file.fileno())
        self._unflushed.clear()
        return {"folder": str(self.folder), "files": dict(self._names)}

    def load_state_dict(self, kept: dict[Any, Any]) -> None:
        """Take the files of a checkpoint, or what a checkpoint holds itself, to write it into files at the start.

        Raises:
            CheckpointError: Where files are missing.
        """
        self._names, self._pending, self._is_restored = {}, {}, is_reference(kept)
        if self._is_restored:
            _check_files(self.folder, kept)
            self._names = dict(kept["files"])
        else:
            self._pending = dict(kept)

    def refer(self, checkpoint: Path, names: Iterable[str]) -> None:
        """Note the files that a checkpoint needs, before it is written."""
        ledger = self._ledger()
        ledger[str(checkpoint)] = sorted({*names, *ledger.get(str(checkpoint), [])})
        self._write_ledger(ledger)

    def release(self, checkpoint: Path, names: Iterable[str]) -> None:
        """A checkpoint was written, or removed, and needs no other files than these: delete those of nobody."""
        ledger = {path: kept for path, kept in self._ledger().items() if Path(path).exists()}
        ledger.pop(str(checkpoint), None)
        if names := sorted(names):
            ledger[str(checkpoint)] = names
        self._write_ledger(ledger)
        self._delete_outdated()

    def end_round(self, is_first: bool = True) -> None:
        """End a round: the first process deletes states that were replaced in it and that no checkpoint needs."""
        if is_first:
            self._delete_outdated()
        else:
            self._outdated.clear()

    def _delete_outdated(self) -> None:
        if not self._outdated:
            return
        # only what has been current: another process may write new files at this moment
        unneeded = self._outdated - self._needed()
        self._delete(unneeded)
        self._outdated -= unneeded

    def _needed(self) -> set[str]:
        return {*self._names.values(), *(name for names in self._ledger().values() for name in names)}

    def _ledger(self) -> dict[str, list[str]]:
        if self._known_ledger is None:
            path = self.folder / _LEDGER
            self._known_ledger = json.loads(path.read_text()) if path.exists() else {}
        return dict(self._known_ledger)

    def _write_ledger(self, ledger: dict[str, list[str]]) -> None:
        self._make_folder()
        _write(self.folder / _LEDGER, json.dumps(ledger).encode(), flush=True)
        self._known_ledger = ledger

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return _path_in(self.folder, name)


class EvaluatedClientStates(ClientStates):
    """The values of clients that are evaluated and not trained: files of a checkpoint are read when they are needed.

    Args:
        kept: Values of all clients so far.
    """

    def __init__(self, kept: dict[int, dict[str, Any]]) -> None:
        super().__init__()
        self._kept = kept

    def state_dict(self) -> dict[Any, Any]:
        """Everything, in memory."""
        if isinstance(self._kept, dict):
            return self._kept
        return {client: kept_copy(values) for client, values in self._kept.items()}

    def load_state_dict(self, kept: dict[Any, Any]) -> None:
        """Everything, from a checkpoint; of files the names alone.

        Raises:
            CheckpointError: Where files are missing.
        """
        self._kept = cast(dict[int, dict[str, Any]], _Files(kept) if is_reference(kept) else dict(kept))


class KeepsReferences(_WrappingCheckpointIO):
    """Tell client states on disk which checkpoints refer to them.

    Args:
        states: The states.
        checkpoint_io: Writes and reads the checkpoints.
    """

    def __init__(self, states: StoredClientStates, checkpoint_io: CheckpointIO) -> None:
        super().__init__(checkpoint_io)
        self.states = states

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        """Save a checkpoint, and let go of the files that only its predecessor needed."""
        names = checkpoint.get("flightning", {}).get("clients", {}).get("files", {}).values()
        target = Path(path).absolute()
        self.states.refer(target, names)
        super().save_checkpoint(checkpoint, path, storage_options)
        self.states.release(target, names)

    def remove_checkpoint(self, path: _PATH) -> None:
        """Remove a checkpoint and the files that only it needed."""
        super().remove_checkpoint(path)
        self.states.release(Path(path).absolute(), ())


class _Files(Mapping[int, dict[str, Any]]):
    """Values of all clients that a checkpoint refers to, each mapped into memory when it is asked for."""

    def __init__(self, kept: References) -> None:
        self._folder, self._names = Path(kept["folder"]), dict(kept["files"])
        self._trusted: set[str] = set()
        _check_files(self._folder, kept)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[int]:
        return iter(self._names)

    def __contains__(self, client: object) -> bool:
        return client in self._names

    def __getitem__(self, client: int) -> dict[str, Any]:
        return _read(_path_in(self._folder, self._names[client]), client, self._trusted)


def read_files(kept: References) -> dict[int, dict[str, Any]]:
    """Values of all clients that a checkpoint refers to, in memory.

    Raises:
        CheckpointError: Where a file is missing or damaged.
    """
    return {client: kept_copy(values) for client, values in _Files(kept).items()}


def _check_files(folder: Path, kept: References) -> None:
    """Refuse to go on where files that a checkpoint refers to are missing.

    Args:
        folder: Where they are looked for.
        kept: What the checkpoint says.

    Raises:
        CheckpointError: Where one is missing.
    """
    missing = [client for client, name in kept["files"].items() if not _path_in(folder, name).is_file()]
    if missing:
        first = _path_in(folder, kept["files"][missing[0]])
        elsewhere = "" if Path(kept["folder"]) == folder else f" (the checkpoint was written with `{kept['folder']}`)"
        raise CheckpointError(
            f"the checkpoint needs the states of {len(kept['files'])} clients and {len(missing)} of them are missing "
            f"(first: `{first}` of client {missing[0]}): set `federation.state_dir` to the folder that holds "
            f"them{elsewhere}."
        )


def _read(path: Path, client: int, trusted: set[str]) -> dict[str, Any]:
    """Map a file into memory; its checksum is compared when it is first read."""
    try:
        if path.name not in trusted:
            found = _checksum(path.read_bytes())
            if found != path.stem.rpartition("-")[2]:
                raise CheckpointError(
                    f"the state of client {client}, `{path}`, is damaged: its checksum is {found}. Resume from an "
                    "older checkpoint, or start anew without `--ckpt_path`."
                )
            trusted.add(path.name)
        values: dict[str, Any] = torch.load(path, mmap=True, weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"the state of client {client}, `{path}`, is missing: `state_dir` must be a folder that all processes see, "
            "and nobody else may delete its files."
        ) from error
    return values


def _write(path: Path, content: bytes | memoryview, flush: bool = False) -> None:
    """Write a file, whole or not at all; ``flush`` makes sure of it where the machine fails, too."""
    # a process number is not enough of a name: other machines write into the same folder
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.unfinished")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _path_in(folder: Path, name: str) -> Path:
    return folder / str(int(name.partition("-")[0]) // _PER_FOLDER) / name


def _checksum(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
