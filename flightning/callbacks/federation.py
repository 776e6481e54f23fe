"""The round engine: the order of events in a federation, inside one `Trainer.fit`.

One Lightning epoch is one round. The plan of a round is a pure function of seed and round, so a resumed run makes the
same plan and nothing about it is stored.
"""

from __future__ import annotations

from typing import Any, Literal

from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.exceptions import SIGTERMException

from flightning.algorithms.base import FederatedMixin
from flightning.callbacks.checks import check_datamodule, check_module, check_optimizers, check_tokens, check_trainer
from flightning.callbacks.local_loop import LOCAL_LOOPS, LocalLoop, warn_about_batch_hooks
from flightning.callbacks.logged_numbers import log_numbers
from flightning.callbacks.planning import Planner
from flightning.callbacks.record import RoundRecord
from flightning.callbacks.round_checkpoints import RoundCheckpoints
from flightning.callbacks.rounds import Round
from flightning.callbacks.stopping import explain_failures, report_stop
from flightning.callbacks.wiring import connect_processes, spread_client_states, store_client_states
from flightning.checkpoint_io import AtomicCheckpointIO
from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.stream import Clients, RoundPlan
from flightning.errors import ConfigurationError
from flightning.functional.cohort import SAMPLERS
from flightning.functional.layers import arrange_convolutions
from flightning.functional.seeding import resolve_seed
from flightning.strategies.processes import Processes
from flightning.strategies.watch import Watch, has_lost_process

__all__ = ["Federation"]


class Federation(RoundCheckpoints):
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
        local_loop: ``lightning``: every local batch is a batch of Lightning, and every callback sees it. ``fused``:
            every client is one, which costs less for small models; callbacks see clients in place of batches. Both
            give the same weights, bit for bit.
        channels_last: Whether convolutions keep their weights, and with them their outputs, in the memory order
            ``channels_last``, which is faster on most processors. ``None`` leaves them as they were built: the networks
            of `flightning.nets` choose it where it wins. A network of your own must flatten by ``flatten`` or
            ``reshape``, not by ``view``.
        state_dir: Folder in which the state of clients lies, one memory-mapped file each, in place of memory; below the
            folder of the run where it is no absolute path. Checkpoints then refer to these files. ``None`` keeps it in
            memory and in the checkpoints.
        serialisation_overhead: Bytes counted for each tensor that is sent, besides its numbers. ``0`` counts the
            numbers alone; 760 is what a file of PyTorch adds in the rFedAvg paper.
        seed: Seed of cohorts and local randomness; ``None`` takes that of `seed_everything`, or 0.

    Example:
        >>> Federation(local_epochs=2, participation=0.1).participation
        0.1
        >>> Federation(local_epochs=2, local_steps=5)
        Traceback (most recent call last):
            ...
        flightning.errors.ConfigurationError: `local_epochs=2` and `local_steps=5` exclude each other: make one `null`.
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
        local_loop: Literal["lightning", "fused"] = "lightning",
        channels_last: bool | None = None,
        state_dir: str | None = None,
        serialisation_overhead: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if local_epochs is not None and local_steps is not None:
            raise ConfigurationError(
                f"`local_epochs={local_epochs}` and `local_steps={local_steps}` exclude each other: make one `null`."
            )
        for name, value in (("local_epochs", local_epochs), ("local_steps", local_steps)):
            if value is not None and value < 1:
                raise ConfigurationError(f"`{name}={value}` must be at least 1: use 1 for the shortest round.")
        if serialisation_overhead < 0:
            raise ConfigurationError(
                f"`serialisation_overhead={serialisation_overhead}` must be at least 0 bytes: use 0 to count the "
                "numbers alone."
            )
        for name, choice, known in (
            ("sampler", sampler, tuple(SAMPLERS)),
            ("weighting", weighting, ("samples", "uniform")),
            ("buffers", buffers, ("average", "local", "reset")),
            ("on_bad_update", on_bad_update, ("skip", "raise")),
            ("local_loop", local_loop, LOCAL_LOOPS),
        ):
            if choice not in known:
                raise ConfigurationError(f"`{name}={choice!r}` is none of {', '.join(known)}: choose one of them.")
        self.local_epochs = local_epochs if local_epochs or local_steps else 1
        self.local_steps = local_steps
        self.participation, self.sampler, self.weighting = participation, sampler, weighting
        self.buffers, self.on_bad_update = buffers, on_bad_update
        self.persist_client_optimizer, self.local_loop = persist_client_optimizer, local_loop
        self.channels_last = channels_last
        self.state_dir, self.serialisation_overhead = state_dir, serialisation_overhead
        self.seed = resolve_seed(seed)
        self._watch: Watch | None = None

    def plan(self, round_index: int) -> RoundPlan:
        """Who trains in this round, in which order and how long."""
        return self._planner.plan(round_index)

    @property
    def record(self) -> RoundRecord:
        """What the current round has cost so far."""
        return RoundRecord(self.serialisation_overhead) if self._round is None else self._round.record

    @property
    def cohort(self) -> list[int]:
        """The clients of the current round, in order."""
        return self._module.cohort

    @property
    def keeps_optimizer(self) -> bool:
        """Whether a client's optimizer state lives on."""
        chosen = self.persist_client_optimizer
        return self._module.keeps_optimizer if chosen is None else chosen

    # --- Lightning hooks ----------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that everything fits, and take over the stream of training batches."""
        self._module: FederatedMixin = check_module(pl_module)
        self._data: FederatedDataModule = check_datamodule(trainer.datamodule)  # type: ignore[attr-defined]
        check_tokens(pl_module, self._data)
        if self._module.default_shared_fraction and not len(self._data.shared):
            self._share_data(self._module.default_shared_fraction)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        if stage == "fit":
            store_client_states(trainer, self._module, self.state_dir)
        self._processes = Processes.of(trainer.strategy)
        connect_processes(trainer, self._module, self._data, self._processes)
        if stage != "fit":
            return
        check_trainer(trainer)
        explain_failures(trainer, lambda: self._watch)
        if self.channels_last is not None:
            arrange_convolutions(self._module, self.channels_last)
        if self._module.pools_data and self._data.num_clients > 1:
            self._data.pool()
        self._planner = self._make_planner(int(trainer.fast_dev_run))  # type: ignore[attr-defined]
        self._data.plan_round = self._own_plan
        self._data.stream_clients = self.local_loop == "fused"
        trainer.fit_loop.epoch_loop.automatic_optimization = LocalLoop(trainer, lambda: self._current)
        if self._data.stream_clients:
            warn_about_batch_hooks(trainer)
        self._identity = {
            "algorithm": type(self._module).__name__,
            "seed": self.seed,
            "data seed": self._data.seed,
            "partition": self._data.partition_hash,
        }
        # every round has its own stream
        trainer.reload_dataloaders_every_n_epochs = 1  # type: ignore[attr-defined]

    def _make_planner(self, most_steps: int) -> Planner:
        planner = Planner(
            self._module,
            self._data,
            self.local_epochs,
            self.local_steps,
            self.participation,
            self.sampler,
            self.weighting,
            self.seed,
            most_steps,
            self._processes.count if self._processes.split_batches else 1,
        )
        planner.plan(0)  # refuses a participation that cannot be met
        return planner

    def _own_plan(self, round_index: int) -> RoundPlan:
        return self._planner.part(self.plan(round_index), self._processes)

    def _share_data(self, fraction: float) -> None:
        rank_zero_info(
            f"`{type(self._module).__name__}` needs samples at the server and `data.shared_fraction` is 0: it takes "
            f"{fraction:g} of the training samples, equal over classes, away from the clients."
        )
        self._data.share(fraction)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the module's weights, fresh or restored, as global weights."""
        check_optimizers(trainer)
        self._module.client_states.check()
        self._processes.wait()
        self._module.client_states.start(self._processes.rank == 0)
        if self._processes.count > 1:
            self._watch = Watch(self._processes, trainer, lambda: report_stop(trainer, SIGTERMException()))
            self._watch.start()
        self._module.start_federation(self._data.num_clients, self.buffers)
        if spread_client_states(self._module, self._processes, self.keeps_optimizer) | self._planner.refresh():
            # Lightning made the stream of the first round before it was known which process trains which client, or
            # before the algorithm gave shared samples to clients
            trainer.fit_loop._last_train_dl_reload_epoch = float("-inf")
        self._end_restored_round(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a round."""
        # who asks to stop, such as a timer, stops the run at the end of this round and not between two clients
        trainer.fit_loop.min_epochs = max(trainer.fit_loop.min_epochs or 0, trainer.current_epoch + 1)
        self._finished = None
        self._round = Round(
            self, self._module, self._planner, self._processes, trainer.optimizers[0], trainer.current_epoch
        )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a client with its first batch."""
        if not isinstance(batch, Clients):  # their local loop begins and ends them
            self._current.before_batch()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End a client with its last batch, and the round with its last client."""
        if not isinstance(batch, Clients):
            self._current.after_batch()
        self._current.end_if_done(is_last=trainer.current_epoch + 1 == trainer.max_epochs)

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
        self._module.client_states.end_round(self._processes.rank == 0)
        log_numbers(pl_module, self.finished_metrics())
        self._log_round(trainer)

    def _log_round(self, trainer: Trainer) -> None:
        # the number of finished rounds is the x axis: Lightning takes a metric called `step` for it
        finished = float(trainer.current_epoch + 1)
        log_numbers(self._module, {"round": finished, "step": finished})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the global weights in the module, also where a stop came inside a round."""
        self._module.load_global_weights()
        self._round = None
        self._processes.wait()  # from here on a process may end before another
        self._stop_watching()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the global weights in the module, and say what has ended the run and how it goes on."""
        if self._round is not None and not has_lost_process():
            report_stop(trainer, exception)
        self._stop_watching()
        if isinstance(pl_module, FederatedMixin) and pl_module.global_weights:
            pl_module.load_global_weights()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def _prepare_evaluation(self, trainer: Trainer) -> None:
        if trainer.state.fn != "fit":
            self._module.start_federation(self._data.num_clients, self.buffers)
