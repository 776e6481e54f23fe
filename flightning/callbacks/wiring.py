"""Connect data, module and Trainer to the processes of a run."""

from __future__ import annotations

import warnings

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.callbacks.timer import Interval

from flightning.algorithms.base import FederatedMixin
from flightning.datamodules.base import FederatedDataModule
from flightning.strategies.processes import Processes

__all__ = ["connect_processes"]

#: Hooks in which a module may sum up an evaluation by itself.
_SUMMARIES = ("batch_end", "epoch_end", "end")


def connect_processes(
    trainer: Trainer, module: FederatedMixin, data: FederatedDataModule, processes: Processes
) -> None:
    """Spread batches and evaluation over the processes, and keep Lightning from waiting for them inside a round."""
    data.batch_shard = (processes.rank, processes.count) if processes.split_batches else (0, 1)
    spreads = processes.count > 1 and not _sums_up_itself(module)
    data.evaluation_shard = (processes.rank, processes.count) if spreads else (0, 1)
    module.gather_evaluation = processes.gather_objects if spreads else None
    if processes.count == 1:
        return
    # what is logged without an exchange is the same on all processes: it was brought together before
    warnings.filterwarnings("ignore", message=r".*It is recommended to use `self\.log\(.*sync_dist=True\)`.*")
    if processes.split_clients:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Timer):
                callback._interval = Interval.epoch  # it exchanges the time after each batch, and batches differ


def _sums_up_itself(module: LightningModule) -> bool:
    """Whether the module behind the mixins has its own end of an evaluation, which must see all batches."""
    names = [f"on_{stage}_{hook}" for stage in ("validation", "test") for hook in _SUMMARIES]
    behind = [c for c in type(module).__mro__ if not c.__module__.startswith(("flightning.", "lightning.", "torch."))]
    return any(name in vars(c) for c in behind for name in names)
