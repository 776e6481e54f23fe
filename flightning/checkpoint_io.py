"""Checkpoints that are never half-written."""

from __future__ import annotations

import os
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.types import _PATH

from flightning.errors import CheckpointError

__all__ = ["AtomicCheckpointIO"]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write beside the target, flush to disk, then rename: a crash or a full disk leaves the old file usable."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        """Save a checkpoint, whole or not at all.

        Raises:
            CheckpointError: Where the file cannot be written; what was there before stays as it is.
        """
        target = Path(path)
        # always the same name, so that killed runs leave at most one such file behind
        temporary = target.with_name(f".{target.name}.unfinished")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except (OSError, RuntimeError) as error:  # torch's zip writer reports a full disk as RuntimeError
            with suppress(OSError):
                temporary.unlink()
            kept = "the previous checkpoint there is unchanged" if target.exists() else "nothing was written"
            raise CheckpointError(
                f"could not write the checkpoint `{target}` ({error}); {kept}. Free some disk space or choose another "
                "folder, and go on with `--ckpt_path last`."
            ) from error

    def load_checkpoint(self, path: _PATH, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load a checkpoint.

        Raises:
            CheckpointError: Where the file is missing, truncated or no checkpoint.
        """
        if not Path(path).is_file():
            raise CheckpointError(f"there is no checkpoint `{path}`: give the path of a `.ckpt` file that exists.")
        broken = (
            f"`{path}` is truncated or no checkpoint at all: take an older one from the same folder, or start anew "
            "without `--ckpt_path`."
        )
        if not zipfile.is_zipfile(path):  # the zip directory is at the end, so a truncated file has none
            raise CheckpointError(broken)
        try:
            loaded: Any = super().load_checkpoint(path, *args, **kwargs)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{broken} ({error})") from error
        if not isinstance(loaded, dict) or "state_dict" not in loaded:
            raise CheckpointError(
                f"`{path}` is no checkpoint of a Trainer (it has no `state_dict`): give the `last.ckpt` of a "
                "flightning run, or load its weights with `load_state_dict` before training."
            )
        return loaded
