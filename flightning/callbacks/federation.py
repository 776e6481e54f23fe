"""The round engine: the order of events in a federation, inside one `Trainer.fit`.

One Lightning epoch is one round. The plan of a round is a pure function of seed and round, so a resumed run makes the
same plan and nothing about it is stored.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.optim import Optimizer

from flightning.algorithms.base import Client, FederatedMixin
from flightning.callbacks.checks import (
    check_batches_of_one,
    check_datamodule,
    check_module,
    check_optimizers,
    check_trainer,
)
from flightning.callbacks.plateau import step_plateau_schedulers, waited_for
from flightning.callbacks.record import RoundRecord
from flightning.checkpoint_io import AtomicCheckpointIO
from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.stream import RoundPlan, Visit
from flightning.errors import CheckpointError, ClientError, ConfigurationError
from flightning.functional.aggregation import Payload, Reducer, is_finite
from flightning.functional.cohort import SAMPLERS, sample_cohort
from flightning.functional.layers import batch_norm_names
from flightning.functional.seeding import numpy_generator, resolve_seed, seed_global_generators

__all__ = ["Federation"]

_COHORT = 11


class Federation(Callback):
    """Train the clients of each round one after the other, aggregate, and let Lightning evaluate the result.

    Args:
        local_epochs: Passes of a client over its samples in a round; 1 where neither this nor `local_steps` is given.
        local_steps: Local steps of a client in a round, in place of `local_epochs`.
        participation: Who takes part: a float in (0, 1] is a fraction of the clients, a whole number a count.
        sampler: ``fixed`` (that many clients), ``bernoulli`` (each by itself with that probability) or ``weighted``
            (that many, drawn by number of samples).
        weighting: Weights of the mean over clients: ``samples`` or ``uniform``.
        buffers: BatchNorm statistics: ``average`` them like weights, keep them ``local`` to each client, or ``reset``
            (every client starts its round with fresh ones, which are averaged for evaluation). Integer buffers are
            never averaged: their maximum is taken.
        on_bad_update: A client whose update is NaN or infinite: ``skip`` it (left out, counted in
            ``round/bad_updates``) or ``raise``.
        persist_client_optimizer: Whether a client's optimizer state lives on between its rounds; ``None`` leaves it to
            the algorithm (only where nothing is exchanged).
        serialisation_overhead: Bytes counted for each tensor that is sent, besides its numbers. ``0`` counts the
            numbers alone; 760 is what a file of PyTorch adds in the rFedAvg paper.
        seed: Seed of cohorts and local randomness; ``None`` takes that of `seed_everything`, or 0.

    Example:
        >>> Federation(local_epochs=2, participation=0.1).participation
        0.1
        >>> Federation(local_epochs=2, local_steps=5)
        Traceback (most recent call last):
            ...
        flightning.errors.ConfigurationError: `local_epochs=2` and `local_steps=5` exclude each other: give one of them.
    """

    def __init__(
        self,
        local_epochs: int | None = None,
        local_steps: int | None = None,
        participation: int | float = 1.0,
        sampler: Literal["fixed", "bernoulli", "weighted"] = "fixed",
        weighting: Literal["samples", "uniform"] = "samples",
        buffers: Literal["average", "local", "reset"] = "average",
        on_bad_update: Literal["skip", "raise"] = "skip",
        persist_client_optimizer: bool | None = None,
        serialisation_overhead: int = 0,
        seed: int | None = None,
    ) -> None:
        if local_epochs is not None and local_steps is not None:
            raise ConfigurationError(
                f"`local_epochs={local_epochs}` and `local_steps={local_steps}` exclude each other: give one of them."
            )
        for name, value in (("local_epochs", local_epochs), ("local_steps", local_steps)):
            if value is not None and value < 1:
                raise ConfigurationError(f"`{name}={value}` must be at least 1.")
        if serialisation_overhead < 0:
            raise ConfigurationError(f"`serialisation_overhead={serialisation_overhead}` must be at least 0 bytes.")
        for name, choice, known in (
            ("sampler", sampler, tuple(SAMPLERS)),
            ("weighting", weighting, ("samples", "uniform")),
            ("buffers", buffers, ("average", "local", "reset")),
            ("on_bad_update", on_bad_update, ("skip", "raise")),
        ):
            if choice not in known:
                raise ConfigurationError(f"`{name}={choice!r}` is none of {', '.join(known)}: choose one of them.")
        self.local_epochs = local_epochs if local_epochs or local_steps else 1
        self.local_steps = local_steps
        self.participation, self.sampler, self.weighting = participation, sampler, weighting
        self.buffers, self.on_bad_update = buffers, on_bad_update
        self.persist_client_optimizer = persist_client_optimizer
        self.serialisation_overhead = serialisation_overhead
        self.seed = resolve_seed(seed)
        self.record = RoundRecord(serialisation_overhead)
        self._identity: dict[str, Any] = {}
        self._finished: dict[str, float] | None = None
        self._restored: dict[str, Any] | None = None
        self._is_in_round = False

    # --- the plan -----------------------------------------------------------------------------------------------

    def plan(self, round_index: int) -> RoundPlan:
        """Who trains in this round, in which order and how long."""
        rng = numpy_generator(self.seed, round_index, _COHORT)
        able = np.where(self._steps > 0, self._data.sizes, 0)
        participation = 1.0 if self._module.trains_everybody else self.participation
        cohort = sample_cohort(able, participation, self.sampler, rng)
        visits = [Visit(c, int(self._steps[c]), bool(self._dropped[c])) for c in cohort]
        if self._fast_dev_run:
            visits = [Visit(visits[0].client, min(self._fast_dev_run, visits[0].steps), visits[0].drop_last)]
        return RoundPlan(round_index, tuple(visits))

    @property
    def cohort(self) -> list[int]:
        """The clients of the current round, in order."""
        return self._plan.cohort

    def _measure_clients(self) -> None:
        data, sizes = self._data, self._data.sizes
        has_batch_norm = bool(batch_norm_names(self._module))
        automatic = has_batch_norm & (sizes > data.batch_size)
        self._dropped = automatic if data.drop_last is None else np.full(len(sizes), data.drop_last)
        per_epoch = np.where(self._dropped, sizes // data.batch_size, -(-sizes // data.batch_size))
        steps = (
            per_epoch * (self.local_epochs or 0) if self.local_steps is None else np.full(len(sizes), self.local_steps)
        )
        self._steps, self._per_epoch = np.where(per_epoch > 0, steps, 0), per_epoch
        idle = int(((self._steps == 0) & (sizes > 0)).sum())
        if idle:
            warnings.warn(
                f"{idle} clients have fewer samples than `batch_size={data.batch_size}` and `drop_last` leaves them "
                "nothing to train on, so they are never sampled: lower `batch_size` or set `drop_last: false`.",
                stacklevel=2,
            )
        if has_batch_norm:
            check_batches_of_one(np.where(self._steps > 0, sizes, 0), data.batch_size, self._dropped)

    # --- Lightning hooks ----------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that everything fits, and take over the stream of training batches."""
        self._module: FederatedMixin = check_module(pl_module)
        self._data: FederatedDataModule = check_datamodule(trainer.datamodule)  # type: ignore[attr-defined]
        if self._module.default_shared_fraction and not len(self._data.shared):
            self._share_data(self._module.default_shared_fraction)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        if stage != "fit":
            return
        check_trainer(trainer)
        if self._module.pools_data and self._data.num_clients > 1:
            self._data.pool()
        self._fast_dev_run = int(trainer.fast_dev_run)  # type: ignore[attr-defined]
        self._measure_clients()
        self.plan(0)
        self._data.plan_round = self.plan
        self._identity = {
            "algorithm": type(self._module).__name__,
            "seed": self.seed,
            "data seed": self._data.seed,
            "partition": self._data.partition_hash,
        }
        # every round has its own stream
        trainer.reload_dataloaders_every_n_epochs = 1  # type: ignore[attr-defined]

    def _share_data(self, fraction: float) -> None:
        rank_zero_info(
            f"`{type(self._module).__name__}` needs samples at the server and `data.shared_fraction` is 0: it takes "
            f"{fraction:g} of the training samples, equal over classes, away from the clients."
        )
        self._data.share(fraction)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the module's weights, fresh or restored, as global weights."""
        check_optimizers(trainer)
        sizes = self._data.sizes.copy()
        self._module.start_federation(self._data.num_clients, self.buffers)
        if not np.array_equal(sizes, self._data.sizes):
            # Lightning made the stream of the first round before the algorithm gave shared samples to clients
            self._measure_clients()
            trainer.fit_loop._last_train_dl_reload_epoch = float("-inf")
        if self._restored is not None:
            self._end_restored_round(trainer, self._restored)
            self._restored = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a round."""
        self.record = RoundRecord(self.serialisation_overhead)
        self._finished, self._is_in_round = None, True
        self._plan = self.plan(trainer.current_epoch)
        self._reducer = Reducer(self._module.reductions)
        self._position = self._step_in_visit = 0
        self._module.cohort = self._plan.cohort
        self._module.cohort_weights = {c: self._client(c).weight for c in self._plan.cohort}
        self._module.num_training_clients = int((self._steps > 0).sum())
        self._module.on_round_start()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a client with its first batch."""
        if self._step_in_visit == 0:
            self._begin_client(trainer.optimizers[0], self._plan.visits[self._position].client)
        self._step_in_visit += 1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End a client with its last batch, and the round with its last client."""
        if self._step_in_visit < self._plan.visits[self._position].steps:
            return
        self._end_client(trainer.optimizers[0])
        self._position, self._step_in_visit = self._position + 1, 0
        if self._position == len(self._plan.visits):
            with self.record.timing("aggregation"):
                self._end_round(is_last=trainer.current_epoch + 1 == trainer.max_epochs)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let clients with weights of their own be evaluated outside of a fit, too."""
        self._evaluation = self.record.timing("evaluation")
        self._evaluation.__enter__()
        self._prepare_evaluation(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock of the evaluation."""
        self._evaluation.__exit__(None, None, None)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let clients with weights of their own be evaluated outside of a fit, too."""
        self._prepare_evaluation(trainer)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the metrics of the evaluation their round."""
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self._log_round(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the round."""
        # double precision: single cannot hold 16.8 million bytes exactly
        metrics = {name: torch.tensor(value, dtype=torch.float64) for name, value in self.finished_metrics().items()}
        pl_module.log_dict(metrics)
        self._log_round(trainer)

    def finished_metrics(self) -> dict[str, float]:
        """What is logged for the round that has just ended; its clocks stop at the first call."""
        if self._finished is None:
            setup_bytes = float(self._module.setup_bytes) if self._plan.round_index == 0 else 0.0
            own = self._module.round_metrics
            self._finished = {**self.record.metrics(), "round/setup_bytes": setup_bytes, **own}
            own.clear()
        return self._finished

    def _log_round(self, trainer: Trainer) -> None:
        # the number of finished rounds is the x axis: Lightning takes a metric called `step` for it
        finished = float(trainer.current_epoch + 1)
        self._module.log_dict({"round": finished, "step": finished})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the global weights in the module, also where a stop came inside a round."""
        self._module.load_global_weights()
        self._is_in_round = False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the global weights in the module."""
        if isinstance(pl_module, FederatedMixin) and pl_module.global_weights:
            pl_module.load_global_weights()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep what Lightning does with a round only after its checkpoint is written."""
        if self._is_in_round:
            is_complete = self._position == len(self._plan.visits)
            checkpoint["flightning_round"] = {
                "index": self._plan.round_index,
                "is_complete": is_complete,
                "metrics": self.finished_metrics() if is_complete else {},
                "waited_for": waited_for(trainer),
            }

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint from inside a round: half of its cohort would be missing."""
        kept = checkpoint.get("flightning_round")
        if kept is not None and not kept["is_complete"] and trainer.state.fn == "fit":
            raise CheckpointError(
                f"the checkpoint was saved inside round {kept['index'] + 1}, before its clients had finished: resume "
                "from one that was saved after a round, such as `last.ckpt` in the run's folder."
            )
        self._restored = kept

    def _end_restored_round(self, trainer: Trainer, kept: dict[str, Any]) -> None:
        # where a checkpoint was saved after validation, Lightning runs the end of that round again
        self._finished = kept["metrics"]
        self._plan = self.plan(kept["index"])
        self._module.cohort = self._plan.cohort
        step_plateau_schedulers(trainer, kept["index"], kept["waited_for"])

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must agree with."""
        return dict(self._identity)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse to go on with another algorithm, seed or partition."""
        for what, now in self._identity.items():
            before = state_dict.get(what)
            if before != now:
                raise CheckpointError(
                    f"the checkpoint was written with {what} `{before}`, but this run has {what} `{now}`: resume with "
                    "the same settings, or start anew without `ckpt_path`."
                )

    # --- events of a round --------------------------------------------------------------------------------------

    def _begin_client(self, optimizer: Optimizer, client: int) -> None:
        module = self._module
        seed_global_generators(self.seed, self._plan.round_index, client)
        download = module.download(client)
        self._count("down", download)
        module.load_client(self._client(client), download)
        optimizer.state.clear()
        if self._keeps_optimizer:
            _restore_optimizer(optimizer, module.client_state.optimizer)

    def _end_client(self, optimizer: Optimizer) -> None:
        module, client = self._module, self._module.client
        if client is None:  # pragma: no cover
            raise RuntimeError("a client ended that never began")
        upload = module.finish_client()
        with self.record.timing("aggregation"):
            self.record.add_client(client)
            self._count("up", upload)
            if not (is_finite(upload) and is_finite({"kept": module.client_state.weights})):
                self._handle_bad_update(client)
                return
            if self._keeps_optimizer:
                module.client_state.optimizer = _optimizer_state(optimizer)
            self._reducer.add(client.id, client.weight, upload)
            module.save_client()

    def _handle_bad_update(self, client: Client) -> None:
        cause = FloatingPointError("its update holds NaN or infinity; lower the learning rate or clip gradients")
        if self.on_bad_update == "raise":
            raise ClientError(client.id, "local training", self._plan.round_index, cause) from cause
        self.record.bad_updates += 1

    def _end_round(self, is_last: bool) -> None:
        module = self._module
        if self._reducer.num_clients:  # a round without one good update leaves everything as it was
            module.num_updates = self._reducer.num_clients
            module.aggregate(self._reducer.result())
        module.load_global_weights()
        if not is_last and type(module).after_aggregation is not FederatedMixin.after_aggregation:
            self._second_exchange()
        module.on_round_end()
        module.client = None
        self._measure_clients()  # an algorithm may have given or taken shared samples

    def _second_exchange(self) -> None:
        module = self._module
        reducer = Reducer(module.reductions)
        for client in self.plan(self._plan.round_index + 1).cohort:
            # the global weights that this client receives here replace its next download
            module.load_client(self._client(client), {})
            with module.client_stage("after_aggregation"):
                upload = module.after_aggregation()
            self._count("up", upload)
            reducer.add(client, self._client(client).weight, upload)
            module.save_client()
        module.collect(reducer.result())
        module.load_global_weights()

    def _prepare_evaluation(self, trainer: Trainer) -> None:
        if trainer.state.fn != "fit":
            self._module.start_federation(self._data.num_clients, self.buffers)

    def _count(self, direction: str, payload: Payload) -> None:
        if not self._module.pools_data:  # pooled data and model are in one place: nothing crosses a network
            self.record.count(direction, payload)

    def _client(self, client: int) -> Client:
        able = self._steps > 0
        weights = np.where(able, self._data.sizes if self.weighting == "samples" else 1, 0).astype(float)
        weight, size = float(weights[client]), int(self._data.sizes[client])
        share = weight / float(weights.sum())
        return Client(client, size, weight, steps_per_epoch=int(self._per_epoch[client]), share=share)

    @property
    def _keeps_optimizer(self) -> bool:
        chosen = self.persist_client_optimizer
        return self._module.keeps_optimizer if chosen is None else chosen


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _optimizer_state(optimizer: Optimizer) -> dict[int, Any]:
    return {i: optimizer.state[p] for i, p in enumerate(_parameters(optimizer)) if p in optimizer.state}


def _restore_optimizer(optimizer: Optimizer, kept: dict[int, Any]) -> None:
    for i, parameter in enumerate(_parameters(optimizer)):
        if i in kept:
            optimizer.state[parameter] = apply_to_collection(kept[i], Tensor, Tensor.clone)
