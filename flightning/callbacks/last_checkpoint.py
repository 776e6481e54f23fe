"""The checkpoint from which a run goes on."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch.callbacks import ModelCheckpoint

__all__ = ["LastCheckpoint"]


class LastCheckpoint(ModelCheckpoint):
    """Write ``last.ckpt`` after every round, in place of that of the round before.

    `ModelCheckpoint(save_last=True)` writes one only when a round is among the best, and with `save_top_k=0` only at
    the very end. A `ModelCheckpoint` of your own can stand beside this one.

    Args:
        folder: Where it lies.

    Example:
        >>> LastCheckpoint("runs/checkpoints").filename
        'last'
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(
            dirpath=folder, filename="last", save_top_k=1, enable_version_counter=False, save_on_train_epoch_end=True
        )
