"""Keep `ReduceLROnPlateau` in step when a run is resumed.

Lightning writes the checkpoints of a round before it steps the schedulers that wait for a metric, and does not make up
for that step when it resumes. The metric is kept in the checkpoint, and the step is taken when the run goes on.
"""

from __future__ import annotations

from lightning.pytorch import Trainer

__all__ = ["step_plateau_schedulers", "waited_for"]


def waited_for(trainer: Trainer) -> dict[str, float]:
    """Current value of every metric that a plateau scheduler waits for."""
    names = {str(c.monitor) for c in trainer.lr_scheduler_configs if c.reduce_on_plateau}
    return {n: float(trainer.callback_metrics[n]) for n in names if n in trainer.callback_metrics}


def step_plateau_schedulers(trainer: Trainer, round_index: int, values: dict[str, float]) -> None:
    """Take the step of a round that the checkpoint lacks."""
    for config in trainer.lr_scheduler_configs:
        is_due = config.interval == "epoch" and (round_index + 1) % config.frequency == 0
        if config.reduce_on_plateau and is_due and config.monitor in values:
            trainer.lightning_module.lr_scheduler_step(config.scheduler, values[config.monitor])
