"""The local steps of a client inside Lightning's training loop.

Lightning runs one optimization loop per item of its stream. Here an item is either an ordinary batch, and Lightning's
own loop takes the step, or whole clients (`Clients`), whose local steps are taken one after the other without
Lightning's bookkeeping in between. Both take the same steps, bit for bit.
"""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from lightning.fabric.plugins.precision import Precision as FabricPrecision
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, ProgressBar, Timer
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from flightning.algorithms.base import FederatedMixin
from flightning.callbacks.rounds import Round
from flightning.datamodules.stream import Clients, ClientStream
from flightning.functional.lean_steps import backward, bare_step

__all__ = ["LOCAL_LOOPS", "LocalLoop", "warn_about_batch_hooks"]

_Step = Callable[[Any, int], dict[str, Any]]

LOCAL_LOOPS = ("lightning", "fused")

#: Hooks inside a local step; where nobody listens, the step is taken without asking.
_STEP_HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
_STEP_METHODS = ("optimizer_step", "optimizer_zero_grad", "backward", "configure_gradient_clipping")
_TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_BATCH_HOOKS = ("on_train_batch_start", "on_train_batch_end")
_UNAFFECTED = (ProgressBar, ModelCheckpoint, Timer, LearningRateMonitor)


def warn_about_batch_hooks(trainer: Trainer) -> None:
    """Name the callbacks, and the module, that expect to be called for every local batch."""
    listeners: list[Callback | LightningModule] = [
        c
        for c in trainer.callbacks  # type: ignore[attr-defined]
        if not isinstance(c, _UNAFFECTED) and not type(c).__module__.startswith("flightning.")
    ]
    for listener in [*listeners, trainer.lightning_module]:
        hooks = [name for name in _BATCH_HOOKS if is_overridden(name, listener)]
        if hooks:
            warnings.warn(
                f"`{type(listener).__name__}` overrides {' and '.join(f'`{h}`' for h in hooks)}, which "
                "`federation.local_loop=fused` calls with whole clients, and not for each of their batches: "
                "set `local_loop: lightning` where it needs every local batch.",
                stacklevel=2,
            )


class LocalLoop(_AutomaticOptimization):
    """Lightning's optimization loop, which also trains whole clients.

    Args:
        trainer: The Trainer whose loop it replaces.
        current_round: Tells the round that is under way.
    """

    def __init__(self, trainer: Trainer, current_round: Callable[[], Round]) -> None:
        super().__init__(trainer)
        self._current_round = current_round
        self._steps_in_round = 0
        self._last_step: tuple[Any, Any, _Step] | None = None

    def run(self, optimizer: Optimizer, batch_idx: int, kwargs: OrderedDict[str, Any]) -> dict[str, Any]:
        """Take one step, or all steps of some clients."""
        clients = kwargs["batch"]
        if not isinstance(clients, Clients):
            if self._nobody_listens:
                return self._step_of_client(optimizer)(clients, batch_idx)
            output: dict[str, Any] = super().run(optimizer, batch_idx, kwargs)
            return output
        if batch_idx == 0:
            self._steps_in_round = 0
        output = {}
        current = self._current_round()
        for client in clients:
            with current.client(client.visit.client):
                output = self._run_client(optimizer, client, kwargs, current)
        return output

    @property
    def _module(self) -> FederatedMixin:
        return cast(FederatedMixin, self.trainer.lightning_module)

    def _run_client(
        self, optimizer: Optimizer, client: ClientStream, kwargs: OrderedDict[str, Any], current: Round
    ) -> dict[str, Any]:
        step = self._direct_step(optimizer) if self._nobody_listens else self._lightning_step(optimizer, kwargs)
        transfer, results = self._transfer, self.trainer._results
        output: dict[str, Any] = {}
        for batch in client:
            batch = transfer(batch)
            if results is not None:  # what `training_step` logs is weighted by the size of its batch
                results.batch, results.batch_size = batch, None
            if current.processes.split_batches:
                current.before_step()
            output = step(batch, self._steps_in_round)
            self._steps_in_round += 1
            if self.trainer.received_sigterm:  # a process that is a step ahead waits in an exchange, which then fails
                raise SIGTERMException
        if results is not None:
            results.batch = results.batch_size = None
        return output

    # --- one local step, as Lightning takes it ------------------------------------------------------------------

    def _lightning_step(self, optimizer: Optimizer, kwargs: OrderedDict[str, Any]) -> _Step:
        def step(batch: Any, index: int) -> dict[str, Any]:
            own = OrderedDict(kwargs, batch=batch)
            if "batch_idx" in own:
                own["batch_idx"] = index
            self._optimizer_step(index, closure := self._make_closure(own, optimizer, index))
            result: dict[str, Any] = closure.consume_result().asdict()
            return result

        return step

    # --- one local step, where nobody listens -------------------------------------------------------------------

    @functools.cached_property
    def _nobody_listens(self) -> bool:
        module, strategy = self._module, self.trainer.strategy
        precision = strategy.precision_plugin
        listeners = [*self.trainer.callbacks, module]  # type: ignore[attr-defined]
        return (
            strategy.model is module
            and type(strategy).training_step is Strategy.training_step
            and type(strategy).backward is Strategy.backward
            and type(strategy).optimizer_step in (Strategy.optimizer_step, DDPStrategy.optimizer_step)
            and type(precision).backward is Precision.backward
            and _steps_plainly(precision)
            and not any(is_overridden(hook, listener) for hook in _STEP_HOOKS for listener in listeners)
            and not any(_is_customised(module, name) for name in _STEP_METHODS)
            and isinstance(self.trainer.profiler, PassThroughProfiler)  # type: ignore[attr-defined]
        )

    def _step_of_client(self, optimizer: Optimizer) -> _Step:
        """The direct step, made once for each client."""
        client, last = self._module.client, self._last_step
        if last is None or last[0] is not optimizer or last[1] is not client:
            last = self._last_step = optimizer, client, self._direct_step(optimizer)
        return last[2]

    def _direct_step(self, optimizer: Optimizer) -> _Step:
        trainer, module, client = self.trainer, self._module, self._module._training_client
        progress, groups = self.optim_progress.optimizer.step, optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        forward_context = _forward_context(trainer.strategy.precision_plugin)
        clipping = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        evaluates_once = _evaluates_once(optimizer)
        optimizer_step: Callable[..., Any] = bare_step(optimizer) if evaluates_once else optimizer.step

        zero_grad = _own_zero_grad(optimizer)
        output: Any = None

        def closure(batch: Any, index: int) -> Tensor:
            nonlocal output
            module._current_fx_name = "training_step"  # `self.log` asks for it
            with forward_context():
                output = module.training_step(batch, index)
            module._current_fx_name = None
            loss: Tensor = output["loss"] if isinstance(output, dict) else output
            if zero_grad is None:
                for parameter in parameters:
                    parameter.grad = None
            else:
                zero_grad()
            backward(loss)
            if clipping[0]:
                module.configure_gradient_clipping(optimizer, *clipping)
            else:
                module.correct_gradients()
            return loss

        repeated = torch.enable_grad()(closure)  # an optimizer may call it where gradients are switched off

        def step(batch: Any, index: int) -> dict[str, Any]:
            progress.increment_ready()
            with module.client_stage("optimizer_step"):
                if evaluates_once:
                    closure(batch, index)
                    optimizer_step()
                else:
                    optimizer_step(functools.partial(repeated, batch, index))
            progress.increment_completed()
            client.steps += 1
            client.step_sizes.append(float(groups[0]["lr"]))
            # a kept graph would keep the activations
            return {"loss": output.detach()} if isinstance(output, Tensor) else _detach(output)

        return step

    @functools.cached_property
    def _transfer(self) -> Callable[[Any], Any]:
        module, strategy = self._module, self.trainer.strategy
        precision = strategy.precision_plugin
        owners = (module, self.trainer.datamodule)  # type: ignore[attr-defined]
        is_needed = any(is_overridden(hook, owner) for hook in _TRANSFER_HOOKS for owner in owners)
        if strategy.root_device.type == "cpu" and not is_needed:
            return precision.convert_input

        def transfer(batch: Any) -> Any:
            return strategy.batch_to_device(module._on_before_batch_transfer(precision.convert_input(batch)))

        return transfer


def _steps_plainly(precision: Precision) -> bool:
    """Whether the plugin does no more than run the closure and step."""
    if isinstance(precision, MixedPrecision):
        return precision.scaler is None
    return type(precision).optimizer_step is Precision.optimizer_step


def _evaluates_once(optimizer: Optimizer) -> bool:
    """Whether it begins its step with the closure and does not call it again."""
    return type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)


def _own_zero_grad(optimizer: Optimizer) -> Callable[[], Any] | None:
    """How it clears gradients, where it does it another way than PyTorch."""
    is_plain = type(optimizer).zero_grad is Optimizer.zero_grad and "zero_grad" not in vars(optimizer)
    return None if is_plain else optimizer.zero_grad


def _forward_context(precision: Precision) -> Callable[[], AbstractContextManager[None]]:
    if type(precision).forward_context is FabricPrecision.forward_context:
        return nullcontext
    context: Callable[[], AbstractContextManager[None]] = precision.forward_context
    return context


def _detach(output: dict[str, Any]) -> dict[str, Any]:
    detached: dict[str, Any] = apply_to_collection(output, Tensor, Tensor.detach)
    return detached


def _is_customised(module: LightningModule, name: str) -> bool:
    """Whether somebody else than the round engine and Lightning defines this method."""
    return any(name in vars(c) for c in type(module).__mro__ if c not in (FederatedMixin, LightningModule))
