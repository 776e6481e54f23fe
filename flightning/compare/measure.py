"""Measure a few local steps of a cell: ``python -m flightning.compare.measure FILE fit ...``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from flightning.callbacks import Federation
from flightning.cli import main as train
from flightning.datamodules.stream import Clients

__all__ = ["Measured", "Stopwatch", "main"]

STEPS, WARM_UP, MOST_SECONDS = 24, 4, 20.0
"""Local steps that are measured, those before them that are not, and the time after which measuring ends anyway."""


class Measured(Exception):
    """Enough has been measured."""


class Stopwatch(Callback):
    """Measure local steps and evaluation, write down what a whole run would do, and end this one.

    Args:
        path: JSON file to write.
        began: When the process began, in seconds of `time.perf_counter`.
    """

    def __init__(self, path: Path, began: float) -> None:
        self.path, self.began = path, began
        self.steps: list[float] = []
        self.evaluation: list[float] = []

    def on_validation_batch_start(self, *args: Any) -> None:
        """Start the clock of an evaluation step."""
        self._evaluation_began = time.perf_counter()

    def on_validation_batch_end(self, *args: Any) -> None:
        """Stop the clock of an evaluation step."""
        self.evaluation.append(time.perf_counter() - self._evaluation_began)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock of the start."""
        self.start = time.perf_counter() - self.began
        self._first = time.perf_counter()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock of the steps."""
        self._last = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the time of a step, or of all steps of clients that are one item of the stream."""
        now = time.perf_counter()
        taken = sum(visit.steps for visit in batch.visits) if isinstance(batch, Clients) else 1
        self.steps += [(now - self._last) / taken] * taken
        self._last = now
        if len(self.steps) >= STEPS + WARM_UP or now - self._first > MOST_SECONDS:
            self._write(trainer, pl_module)
            raise Measured

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make do with a run that is shorter than the measurement."""
        self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, module: Any) -> None:
        federation = next(c for c in trainer.callbacks if isinstance(c, Federation))  # type: ignore[attr-defined]
        rounds = int(trainer.max_epochs or 0)
        plans = [sum(visit.steps for visit in federation.plan(r).visits) for r in range(min(rounds, 10))]
        steps = self.steps[WARM_UP:] or self.steps
        # what was measured before the first round is the evaluation of one model
        models = module.num_clients if module.has_personal_weights else 1
        found = {
            "start": self.start,
            "step": sum(steps) / len(steps),
            "steps": sum(plans) / len(plans),
            "rounds": rounds,
            "evaluation": models * sum(trainer.num_val_batches) * sum(self.evaluation) / max(len(self.evaluation), 1),
            "evaluations": rounds // int(trainer.check_val_every_n_epoch or rounds),
        }
        self.path.write_text(json.dumps(found))


def main() -> int:
    """Run `flightning` until enough is measured."""
    path, began = Path(sys.argv.pop(1)), time.perf_counter()
    try:
        return train(callbacks=[Stopwatch(path, began)])
    except Measured:
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
