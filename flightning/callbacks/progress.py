"""What a person sees while a federation runs."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from flightning.callbacks.federation import Federation

__all__ = ["RoundProgress"]

#: Metrics shown after a round, where they are logged.
_SHOWN = {"round/loss": "loss", "val/loss": "val loss", "val/accuracy": "accuracy", "val/accuracy_std": "±"}


class RoundProgress(ProgressBar):
    """A bar with round, client k of m and loss in a terminal; one line per finished round elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._bar: tqdm[Any] | None = None
        self._last = ""

    def disable(self) -> None:
        """Show nothing (Lightning calls this on processes other than the first)."""
        self._enabled = False

    def enable(self) -> None:
        """Show again."""
        self._enabled = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the bar of a round."""
        if self._enabled and sys.stderr.isatty():
            self._bar = tqdm(
                total=int(trainer.num_training_batches),
                desc=f"Round {trainer.current_epoch + 1}/{trainer.max_epochs}",
                leave=False,
                dynamic_ncols=True,
                unit="step",
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar; the loss is read only when a client has finished."""
        if self._bar is None:
            return
        record = _federation(trainer).record
        self._bar.update(1)
        if record.losses and len(record.clients) != getattr(self, "_shown_clients", -1):
            self._shown_clients = len(record.clients)
            loss = sum(record.losses[-1].values())
            self._bar.set_postfix_str(
                f"client {len(record.clients)} of {len(_federation(trainer).cohort)}, loss {loss:.4f}{self._last}",
                refresh=False,
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the bar, or print the round's line."""
        metrics = {k: float(v) for k, v in trainer.callback_metrics.items() if k in _SHOWN}
        metrics["round/loss"] = _federation(trainer).finished_metrics().get("round/loss", float("nan"))
        shown = "  ".join(f"{label} {metrics[key]:.4f}" for key, label in _SHOWN.items() if key in metrics)
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            self._last = f", last round: {shown}"
        elif self._enabled:
            seconds = _federation(trainer).finished_metrics()["round/seconds"]
            print(f"round {trainer.current_epoch + 1}/{trainer.max_epochs}  {shown}  {seconds:.2f} s", flush=True)


def _federation(trainer: Trainer) -> Federation:
    return next(c for c in trainer.callbacks if isinstance(c, Federation))  # type: ignore[attr-defined]
