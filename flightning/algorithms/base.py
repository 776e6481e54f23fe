"""The contract between an algorithm and the round engine.

An algorithm is a mixin in front of any `LightningModule`. It overrides the hooks it changes, calls ``super()`` in each,
and leaves the order of events to the engine. Only `download` and `on_client_end` (dicts of tensors) cross between
server and client.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim import Optimizer

from flightning.algorithms.client import Client, Weights, at_least_float32
from flightning.algorithms.composition import check_bases, check_module_behind, check_names, merged_reductions
from flightning.algorithms.observe import LayerTaps
from flightning.algorithms.state import ClientStates, State
from flightning.algorithms.view import FederatedView
from flightning.errors import CheckpointError, ClientError, ConfigurationError, FlightningError
from flightning.functional.aggregation import Payload

__all__ = ["Client", "FederatedMixin", "Weights"]

_HALF = (torch.float16, torch.bfloat16)


class FederatedMixin(FederatedView, LightningModule):
    """Federated averaging of any `LightningModule`, and the hooks that other algorithms change.

    The hooks, in the order of a round. Server: `on_round_start`, `download`; client: `on_client_start`, then in each
    local step `task_loss`, `regularization` and `correct_gradients`, then `on_client_end`; server: `receive`,
    `aggregate`; client again, with the new global weights: `after_aggregation`; server: `collect`, `on_round_end`.

    Args:
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> class FedAvgBoring(FederatedMixin, BoringModel): ...
        >>> FedAvgBoring().reductions
        {'weights': 'mean'}
        >>> class Wrong(BoringModel, FederatedMixin): ...
        Traceback (most recent call last):
            ...
        flightning.errors.CompositionError: `Wrong` puts `BoringModel` before the mixin `FederatedMixin`, so the \
algorithm would be ignored: write the mixins first, `class Wrong(FederatedMixin, BoringModel)`.
    """

    #: How each upload name is reduced over the cohort; the declarations of all bases are merged.
    reductions: ClassVar[Mapping[str, str]] = {"weights": "mean"}
    #: What only one mixin of a class may do, such as ``"drift correction"``. The owner of the ``"aggregation rule"``
    #: comes before other mixins with an `aggregate`, which then see new weights.
    owns: ClassVar[frozenset[str]] = frozenset()
    #: Train every client in every round, whatever the participation.
    trains_everybody: ClassVar[bool] = False
    #: Pool the data of all clients into one.
    pools_data: ClassVar[bool] = False
    #: Whether a client's optimizer state lives on by default.
    keeps_optimizer: ClassVar[bool] = False
    #: Share of the training samples that the server owns where ``data.shared_fraction`` is 0.
    default_shared_fraction: ClassVar[float] = 0.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_bases(cls, FederatedMixin)
        cls.reductions = merged_reductions(cls, FederatedMixin)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_names(self, FederatedMixin)
        check_module_behind(type(self), FederatedMixin)
        # a class or function, such as that of the network, would make the checkpoint unreadable for a safe loader
        self.save_hyperparameters(ignore=[name for name, value in kwargs.items() if callable(value)])
        self.server_state = State()
        self.client_state = State()
        self.client_states = ClientStates()
        self.global_weights: Weights = {}
        self.client: Client | None = None
        self.cohort: list[int] = []
        #: Weight of each client of the cohort in ``mean`` reductions, for rules that hold all uploads (``stack``).
        self.cohort_weights: dict[int, float] = {}
        self.num_clients = 0
        #: Clients that can train, sampled or not: those that have at least one batch.
        self.num_training_clients = 0
        #: Clients whose update enters this round's `aggregate`.
        self.num_updates = 0
        self.buffer_policy = "average"
        self.setup_bytes = 0
        #: Factor of the loss where processes share a batch, so that the mean of their gradients is that of the batch.
        self.loss_scale = 1.0
        #: Numbers that the algorithm wants logged for this round; logged and cleared when the round ends.
        self.round_metrics: dict[str, float] = {}
        self.client_state.declare("weights", dict)
        self.client_state.declare("optimizer", dict)
        self._taps = LayerTaps(self)
        self._stays_in_place = False
        self._feature_layer: str | None = None
        self._restored_weights: Weights = {}
        self._takes: dict[str, int] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning notes the running hook some 40 times per local step, and `nn.Module` looks at each value's type
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    # --- what an algorithm declares -----------------------------------------------------------------------------

    def add_server_state(self, name: str, default: Any | Callable[[], Any]) -> None:
        """Declare a value that the server keeps: ``self.server_state.<name>``.

        Args:
            name: Its name.
            default: First value (tensors, dicts, lists of them), or a function that makes it.
        """
        self.server_state.declare(name, default)

    def add_client_state(self, name: str, default: Any | Callable[[], Any]) -> None:
        """Declare a value that each client keeps between its rounds: ``self.client_state.<name>``.

        Args:
            name: Its name.
            default: First value, or a function that makes it.
        """
        self.client_state.declare(name, default)

    def watch_layers(self, *names: str) -> None:
        """Make inputs and outputs of these layers available in `regularization`; call it in `on_federation_start`."""
        for name in names:
            self._taps.watch(name)

    # --- server hooks -------------------------------------------------------------------------------------------

    def on_federation_start(self) -> None:
        """Look at the data and declare what depends on the built module; called once, before the first round."""

    def on_round_start(self) -> None:
        """Prepare the server for `self.cohort`."""

    def download(self, client: int) -> Payload:
        """What the server sends to a client at the start of its round."""
        sent = {n: w for n, w in self.global_weights.items() if self.is_shared(n) and self._is_sent(n)}
        return {"weights": sent} if sent else {}

    def receive(self, upload: Payload) -> Payload:
        """What the server reduces of a client's upload; what it adds from what it knows is not sent nor counted."""
        return upload

    def aggregate(self, uploads: Payload) -> None:
        """Make the new global weights from the reduced uploads (double precision)."""
        if "weights" in uploads:
            self.set_global_weights(uploads["weights"])

    def collect(self, uploads: Payload) -> None:
        """Take in the reduced results of `after_aggregation`."""

    def on_round_end(self) -> None:
        """Finish the round at the server."""

    # --- client hooks -------------------------------------------------------------------------------------------

    def on_client_start(self, download: Payload) -> None:
        """Prepare the client; the downloaded weights and its own are already in the module."""

    def task_loss(self, loss: Tensor, batch: Any) -> Tensor:
        """The part of the loss that comes from `training_step`; change it to re-weight the task."""
        return loss

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """Terms added to the task loss, by the name under which they are logged."""
        return {}

    def correct_gradients(self) -> None:
        """Change ``.grad`` after unscaling, clipping and all-reduce, before the optimizer's step."""

    def on_client_end(self) -> Payload:
        """What the client sends to the server after its local steps."""
        live = self.live_weights()
        sent = {n: live[n].detach() for n in self.global_weights if self.is_shared(n)}
        return {"weights": sent} if sent else {}

    def after_aggregation(self) -> Payload:
        """What each client of the *next* cohort computes with the new global weights and sends at once."""
        return {}

    # --- which weights travel -----------------------------------------------------------------------------------

    def is_shared(self, name: str) -> bool:
        """Whether this weight is exchanged; what is not is kept by the client (see `is_personal`)."""
        return self.buffer_policy != "local" or name in self._trained

    def is_personal(self, name: str) -> bool:
        """Whether each client keeps its own copy of this weight."""
        return not self.is_shared(name)

    def _is_sent(self, name: str) -> bool:
        return self.buffer_policy != "reset" or name in self._trained

    # --- what the engine calls ----------------------------------------------------------------------------------

    def start_federation(self, num_clients: int, buffer_policy: str) -> None:
        """Take the live weights as global weights and let the algorithm prepare itself."""
        self.num_clients, self.buffer_policy = num_clients, buffer_policy
        self.setup_bytes, self._feature_layer = 0, None
        self.release_layers()
        self._persistent = set(self.state_dict())
        self._has_buffers = any(n in self._persistent for n, _ in self.named_buffers())
        self._trained = set(self.trainable())
        self.global_weights = {n: w.detach().to(at_least_float32(w)).clone() for n, w in self.live_weights().items()}
        self._initial_buffers = {
            n: w.clone() for n, w in self.global_weights.items() if buffer_policy == "reset" and n not in self._trained
        }
        hooks = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
        owners = (self, self.trainer.datamodule) if self._trainer is not None else ()  # type: ignore[attr-defined]
        self._stays_in_place = self.device.type == "cpu" and not any(
            is_overridden(hook, owner) for hook in hooks for owner in owners
        )
        self.set_global_weights(self._restored_weights)
        self._restored_weights = {}
        self.server_state.to(self.device)
        self.on_federation_start()

    def load_client(self, client: Client, download: Payload) -> None:
        """Put what was downloaded, and what the client keeps, into the module."""
        self.client = client
        self.client_state.replace(self.client_states.load(client.id, self.device))
        self.load_weights(
            {**self.global_weights, **self._initial_buffers, **download.get("weights", {}), **self.client_state.weights}
        )
        with self.client_stage("on_client_start"):
            self.on_client_start(download)

    def finish_client(self) -> Payload:
        """Let the client build its upload and gather the weights that it keeps."""
        with self.client_stage("on_client_end"):
            upload = self.on_client_end()
        if self.has_personal_weights:
            live = self.live_weights()
            personal = {n: live[n] for n in self.global_weights if self.is_personal(n)}
            self.client_state.weights = {**self.client_state.weights, **personal}
        return upload

    def save_client(self) -> None:
        """Keep the state of the current client."""
        self.client_states.save(self._training_client.id, self.client_state.values)

    def load_global_weights(self) -> None:
        """Put the global weights into the module."""
        self.load_weights(self.global_weights)

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into the live module, by name."""
        live = self.live_weights()
        for name, weight in weights.items():
            live[name].copy_(weight)

    @torch.no_grad()
    def set_global_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Replace global weights by name, rounding to their precision."""
        for name, weight in weights.items():
            self.global_weights[name].copy_(weight)

    @contextmanager
    def client_stage(self, stage: str) -> Iterator[None]:
        """Name client, stage and round in any error that leaves this block."""
        try:
            yield
        except FlightningError:
            raise
        except Exception as cause:
            raise ClientError(self._training_client.id, stage, self.round_index, cause) from cause

    @property
    def _training_client(self) -> Client:
        if self.client is None:
            raise ConfigurationError(
                f"`{type(self).__name__}` is trained without a round engine: add `Federation()` from "
                "`flightning.callbacks` to `Trainer(callbacks=[...])`."
            )
        return self.client

    # --- Lightning hooks ----------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Add the regularization terms to the loss of the module behind the mixin, and keep what else it returns."""
        client = self._training_client
        with self.client_stage("training_step"), self._taps.listening():
            output = self._call_user_step("training_step", super().training_step, (batch, batch_idx))
            loss = output["loss"] if isinstance(output, Mapping) else output
            if not isinstance(loss, Tensor):
                raise ConfigurationError(
                    f"`training_step` returned {type(output).__name__}: return the loss as a tensor, or a dict with "
                    "the loss under 'loss'."
                )
            terms = {"task": self.task_loss(loss, batch), **self.regularization(batch)}
        if self.loss_scale != 1.0:
            terms = {name: self.loss_scale * term for name, term in terms.items()}
        client.num_losses += 1
        for name, term in terms.items():
            own = term.detach()
            client.losses[name] = client.losses.get(name, 0.0) + (own.float() if own.dtype in _HALF else own)
        total = functools.reduce(torch.add, terms.values())
        return {**output, "loss": total} if isinstance(output, Mapping) else total

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip as the Trainer was told, then correct the gradients."""
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False) and self._corrects_gradients:
            scaler.unscale_(optimizer)  # such an optimizer would do it inside its step
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        self.correct_gradients()

    @property
    def _corrects_gradients(self) -> bool:
        return type(self).correct_gradients is not FederatedMixin.correct_gradients

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Optimizer | Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Step, and count the step for the client unless a gradient scaler skipped it."""
        client = self._training_client
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        scale = scaler.get_scale() if scaler is not None else 0.0
        with self.client_stage("optimizer_step"):
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        # a scaler lowers its scale exactly when it has skipped the step
        if scaler is None or scaler.get_scale() >= scale:
            client.steps += 1
            client.step_sizes.append(float(optimizer.param_groups[0]["lr"]))

    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        # a whole client's batches are transferred one by one; on the CPU there is nothing to transfer
        if self._stays_in_place or getattr(batch, "holds_batches", False):
            return batch
        return super()._on_before_batch_transfer(batch, dataloader_idx)

    def _apply_batch_transfer_handler(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        if self._stays_in_place or getattr(batch, "holds_batches", False):
            return batch
        return super()._apply_batch_transfer_handler(batch, device, dataloader_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the declared state."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["flightning"] = {
            "server": dict(self.server_state.values),
            "clients": self.client_states.state_dict(),
            "setup_bytes": self.setup_bytes,
            "global": self._finer_global_weights(),
        }

    def _finer_global_weights(self) -> Weights:
        """Global weights that the live ones, which Lightning saves, hold in lower precision."""
        if not self.global_weights:
            return {}
        live = self.live_weights()
        return {n: w for n, w in self.global_weights.items() if w.dtype != live[n].dtype}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the declared state."""
        super().on_load_checkpoint(checkpoint)
        if "flightning" not in checkpoint:
            raise CheckpointError(
                "this checkpoint was not written by a federation (it has no `flightning` entry): give the `last.ckpt` "
                "of a flightning run, or load its weights with `load_state_dict` before training."
            )
        self._check_weights(checkpoint["state_dict"])
        kept = checkpoint["flightning"]
        self.server_state.replace(kept["server"])
        self.client_states.load_state_dict(kept["clients"])
        self.setup_bytes = kept["setup_bytes"]
        self._restored_weights = kept.get("global", {})

    def _check_weights(self, kept: Mapping[str, Tensor]) -> None:
        own = self.state_dict()
        for name in sorted(own.keys() | kept.keys()):
            there, here = (tuple(w[name].shape) if name in w else "missing" for w in (kept, own))
            if there != here:
                raise CheckpointError(
                    f"the checkpoint holds another network: `{name}` is {there} there and {here} in this run: resume "
                    "with the network that wrote it."
                )

    def _call_user_step(self, name: str, step: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name not in self._takes:
            self._takes[name] = _num_positional(step)
        return step(*args[: self._takes[name]])


# Lightning asks for the signature in every step; a kept one is returned at once.
vars(FederatedMixin)["training_step"].__signature__ = inspect.signature(FederatedMixin.training_step)


def _num_positional(function: Callable[..., Any]) -> int:
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 99
    return sum(k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for k in kinds)
