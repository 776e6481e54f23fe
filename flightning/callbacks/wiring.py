"""Connect data, module and Trainer to the processes of a run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.callbacks.timer import Interval
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn
from torch.utils._pytree import tree_leaves
from torchmetrics import Metric

from flightning.algorithms.base import FederatedMixin
from flightning.algorithms.shared_metrics import unsynchronised
from flightning.algorithms.state import ClientStates, worth_keeping
from flightning.algorithms.stored_states import EvaluatedClientStates, KeepsReferences, StoredClientStates
from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.stream import BatchList
from flightning.strategies.processes import Processes
from flightning.strategies.spread_states import SpreadClientStates

__all__ = [
    "connect_processes",
    "evaluated_alone",
    "is_repeated",
    "read_client_states_late",
    "spread_client_states",
    "store_client_states",
]

#: Hooks in which a module may sum up an evaluation by itself.
_SUMMARIES = ("batch_end", "epoch_end", "end")


def connect_processes(
    trainer: Trainer, module: FederatedMixin, data: FederatedDataModule, processes: Processes
) -> None:
    """Spread batches and evaluation over the processes; keep Lightning from saving or waiting inside a round."""
    _switch_off_requeue(trainer)
    data.batch_shard = (processes.rank, processes.count) if processes.split_batches else (0, 1)
    spreads = processes.count > 1 and not _sums_up_itself(module)
    data.evaluation_shard = (processes.rank, processes.count) if spreads else (0, 1)
    module.gather_evaluation = processes.gather if spreads else None
    module.splits_clients = processes.split_clients
    if processes.count == 1:
        return
    # what is logged without an exchange is the same on all processes: it was brought together before
    warnings.filterwarnings("ignore", message=r".*It is recommended to use `self\.log\(.*sync_dist=True\)`.*")
    if processes.split_clients:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Timer):
                callback._interval = Interval.epoch  # it exchanges the time after each batch, and batches differ


def _switch_off_requeue(trainer: Trainer) -> None:
    environment = trainer._accelerator_connector.cluster_environment
    if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
        environment.auto_requeue = False
        rank_zero_warn(
            "SLURM's automatic requeue would save inside a round, where no run can go on, so it is switched off: "
            "submit the job again with `--ckpt_path last`, and pass `SLURMEnvironment(auto_requeue=False)` as a plugin "
            "to silence this."
        )


def store_client_states(trainer: Trainer, module: FederatedMixin, folder: str | None) -> None:
    """Keep the state of clients in files of this folder; ``None`` keeps it in memory."""
    before, checkpoint_io = module.client_states, trainer.strategy.checkpoint_io
    if isinstance(checkpoint_io, KeepsReferences):  # of a fit before
        checkpoint_io = cast(CheckpointIO, checkpoint_io.checkpoint_io)
    if folder is None:
        module.client_states = before if type(before) is ClientStates else ClientStates()
    else:
        states = StoredClientStates(_run_folder(trainer) / folder)
        if isinstance(before, StoredClientStates) and before.folder == states.folder:
            states = before
        module.client_states, checkpoint_io = states, KeepsReferences(states, checkpoint_io)
    if module.client_states is not before and len(before):
        module.client_states.load_state_dict(before.state_dict())
    trainer.strategy.checkpoint_io = checkpoint_io


def read_client_states_late(module: FederatedMixin) -> None:
    """Where nobody trains, read the files that a checkpoint refers to one by one, when their client is evaluated."""
    if type(module.client_states) is ClientStates:
        module.client_states = EvaluatedClientStates(module.client_states.state_dict())


def spread_client_states(module: FederatedMixin, processes: Processes, keeps_optimizer: bool) -> bool:
    """Spread the states of clients over processes that train different ones; whether that changes who trains whom.

    Files are seen by all processes. Where clients keep weights of their own, every process needs all of them: each
    evaluates every client on its part of the validation samples.
    """
    keeps = keeps_optimizer or len(worth_keeping(dict.fromkeys(module.client_state.declared)))
    if not (processes.split_clients and keeps) or module.has_personal_weights:
        return False
    if isinstance(module.client_states, StoredClientStates):
        return False
    module.client_states = SpreadClientStates(processes, module.client_states.state_dict())
    return True


def is_repeated(loaders: Any, processes: Processes) -> bool:
    """Whether every process evaluates all batches; loaders of others are spread by Lightning."""
    own = [loader for loader in tree_leaves(loaders) if isinstance(loader, BatchList)]
    return processes.count > 1 and bool(own) and not any(loader.is_shared for loader in own)


@contextmanager
def evaluated_alone(trainer: Trainer, module: FederatedMixin) -> Iterator[None]:
    """Exchange nothing in an evaluation of which every process sees all samples: counts would be too large."""
    gather, module.gather_evaluation = module.gather_evaluation, None
    owners = [module, *(value for c in trainer.callbacks for value in _values_of(c))]  # type: ignore[attr-defined]
    modules = [m for owner in owners if isinstance(owner, nn.Module) for m in owner.modules()]
    with unsynchronised(m for m in modules if isinstance(m, Metric)):
        yield
    module.gather_evaluation = gather


def _values_of(callback: Callback) -> Iterator[Any]:
    """What a callback keeps, and what the dicts hold that it keeps."""
    for value in vars(callback).values():
        yield from value.values() if isinstance(value, dict) else (value,)


def _run_folder(trainer: Trainer) -> Path:
    """Folder of the run, that of the first process on all of them."""
    own = getattr(trainer.logger, "log_dir", None) or trainer.log_dir or trainer.default_root_dir
    return Path(trainer.strategy.broadcast(str(Path(own).absolute())))


def _sums_up_itself(module: LightningModule) -> bool:
    """Whether the module behind the mixins has its own end of an evaluation, which must see all batches."""
    names = [f"on_{stage}_{hook}" for stage in ("validation", "test") for hook in _SUMMARIES]
    behind = [c for c in type(module).__mro__ if not c.__module__.startswith(("flightning.", "lightning.", "torch."))]
    return any(name in vars(c) for c in behind for name in names)
