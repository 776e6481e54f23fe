"""What cannot work is refused before the first local step, with the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.core.optimizer import _MockOptimizer
from numpy.typing import NDArray

from flightning.algorithms.base import FederatedMixin
from flightning.datamodules.base import FederatedDataModule
from flightning.errors import ConfigurationError

__all__ = [
    "check_batches_of_one",
    "check_datamodule",
    "check_module",
    "check_optimizers",
    "check_tokens",
    "check_trainer",
]


def check_module(module: LightningModule) -> FederatedMixin:
    """Refuse a module without an algorithm, or one that steps its optimizers itself."""
    if not isinstance(module, FederatedMixin):
        name = type(module).__name__
        raise ConfigurationError(
            f"`{name}` has no federated algorithm: put a mixin in front of it, `class Federated{name}(FedAvgMixin, "
            f"{name}): ...`, and train that."
        )
    if not module.automatic_optimization:
        raise ConfigurationError(
            f"`{type(module).__name__}` uses manual optimization, which hides the local steps from the algorithm: "
            "remove `self.automatic_optimization = False` and return the loss from `training_step`."
        )
    return module


def check_datamodule(datamodule: Any) -> FederatedDataModule:
    """Refuse data that is not dealt to clients."""
    if not isinstance(datamodule, FederatedDataModule):
        raise ConfigurationError(
            f"the data is `{type(datamodule).__name__}`, but a federation needs clients: pass `datamodule=` a "
            "`FederatedDataModule`, for instance `FederatedDataModule.from_dataset(train, test)`."
        )
    return datamodule


def check_tokens(module: LightningModule, data: FederatedDataModule) -> None:
    """Refuse texts whose tokens the net does not read: more than its vocabulary, or filled up with another one."""
    net = getattr(module, "net", None)
    known = getattr(net, "vocabulary", None)
    if not isinstance(known, int) or data.vocabulary_size is None:
        return
    if known < data.vocabulary_size:
        raise ConfigurationError(
            f"the texts have {data.vocabulary_size} different tokens, but `model.net.vocabulary={known}`: raise it to "
            f"{data.vocabulary_size}, or lower `data.tokenizer.vocabulary_size` where the data has a tokenizer."
        )
    padding = getattr(net, "padding_index", None)
    if padding != data.padding_index:
        filled = "are not filled up" if data.padding_index is None else f"are filled up with {data.padding_index}"
        wanted = "null" if data.padding_index is None else data.padding_index
        raise ConfigurationError(
            f"short texts {filled} (the padding of `data.tokenizer`), but `model.net.padding_index={padding}`: set it "
            f"to {wanted}."
        )


def check_trainer(trainer: Trainer) -> None:
    """Refuse Trainer settings that would cut through a client or a round."""
    fast_dev_run, overfit_batches = trainer.fast_dev_run, trainer.overfit_batches  # type: ignore[attr-defined]
    limit, interval = trainer.limit_train_batches, getattr(trainer, "val_check_interval", None)
    seconds = getattr(trainer, "_val_check_time_interval", None)
    rules = (
        (
            trainer.strategy.root_device.type == "mps",
            "the server averages in double precision, which the device `mps` (the GPU of Apple silicon) lacks",
            "train on the CPU, `--trainer.accelerator cpu`",
        ),
        (
            trainer.accumulate_grad_batches != 1,
            f"`accumulate_grad_batches={trainer.accumulate_grad_batches}` would add gradients of different clients",
            "remove it and raise `data.batch_size` instead",
        ),
        (
            any(isinstance(c, GradientAccumulationScheduler) for c in trainer.callbacks),  # type: ignore[attr-defined]
            "`GradientAccumulationScheduler` would add gradients of different clients",
            "remove it and raise `data.batch_size` instead",
        ),
        (
            bool(overfit_batches),
            f"`overfit_batches={overfit_batches}` would cut the round's stream of clients",
            "set `federation.local_steps` to a small number instead",
        ),
        (
            # the whole number 1 is one batch, 1.0 is all of them
            (isinstance(limit, int) or limit != 1.0) and not fast_dev_run,
            f"`limit_train_batches={limit}` would cut the round's stream of clients",
            "set `federation.local_steps` or `federation.participation` instead",
        ),
        (
            trainer.max_epochs is not None and trainer.max_epochs < 1,
            f"`max_epochs={trainer.max_epochs}` is no number of rounds",
            "set it to at least 1",
        ),
        (
            trainer.max_steps != -1 and not fast_dev_run,
            f"`max_steps={trainer.max_steps}` would stop inside a round",
            "set `max_epochs`, the number of rounds, instead",
        ),
        (
            interval is not None and (isinstance(interval, int) or interval != 1.0),
            f"`val_check_interval={interval}` would validate the weights of a single client",
            "remove it; validation follows each round (`check_val_every_n_epoch`)",
        ),
        (
            seconds is not None,
            f"`val_check_interval` of {seconds} seconds would validate the weights of a single client",
            "remove it; validation follows each round (`check_val_every_n_epoch`)",
        ),
        (
            any(_saves_inside_rounds(c) for c in trainer.checkpoint_callbacks),
            "`ModelCheckpoint` would save inside a round",
            "use `every_n_epochs` in place of `every_n_train_steps`, `train_time_interval` and `save_on_exception`",
        ),
    )
    for broken, reason, remedy in rules:
        if broken:
            raise ConfigurationError(f"{reason}: {remedy}.")


def _saves_inside_rounds(callback: Any) -> bool:
    if not isinstance(callback, ModelCheckpoint):
        return False
    by_steps = bool(callback._every_n_train_steps) or callback._train_time_interval is not None
    return by_steps or bool(getattr(callback, "save_on_exception", False))


def check_optimizers(trainer: Trainer) -> None:
    """Refuse more than one optimizer, and schedulers that step inside a round."""
    # where `configure_optimizers` returns nothing, Lightning trains with a mock
    optimizers = [o for o in trainer.optimizers if not isinstance(o, _MockOptimizer)]
    if len(optimizers) != 1:
        raise ConfigurationError(
            f"`configure_optimizers` returned {len(optimizers)} optimizers, but a local step is one step of one: "
            "return a single optimizer, with parameter groups where rates differ."
        )
    for config in trainer.lr_scheduler_configs:
        if config.interval != "epoch":
            raise ConfigurationError(
                f"the scheduler `{type(config.scheduler).__name__}` has `interval={config.interval!r}`, but the rate "
                "is constant inside a round: use `interval: epoch`, one step per round."
            )


def check_batches_of_one(
    sizes: NDArray[np.int64], batch_size: int, dropped: NDArray[np.bool_], shards: int = 1
) -> None:
    """Refuse a client that would feed a single sample to BatchNorm in training mode.

    Args:
        sizes: Samples of each client.
        batch_size: Samples of a local step.
        dropped: Whether an incomplete last batch of a client is left out.
        shards: Processes over which each batch is spread.
    """
    remainder = np.where(dropped, 0, sizes % batch_size)
    smallest = np.where(remainder > 0, remainder, batch_size) // shards
    ones = np.flatnonzero((sizes > 0) & (smallest <= 1))
    if len(ones):
        client = int(ones[0])
        spread = f" spread over {shards} processes" if shards > 1 else ""
        raise ConfigurationError(
            f"client {client} with {sizes[client]} samples would train on a batch of one (`batch_size={batch_size}`"
            f"{spread}), from which BatchNorm cannot estimate a variance: raise the partition's `min_size`, set "
            "`drop_last: true`, or use a net without BatchNorm."
        )
