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
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor, nn
from torch.optim import Optimizer

from flightning.algorithms.evaluation import PersonalEvaluation
from flightning.algorithms.observe import LayerTaps, frozen_forward, without_noise
from flightning.algorithms.state import ClientStates, State
from flightning.errors import CheckpointError, ClientError, CompositionError, ConfigurationError, FlightningError
from flightning.functional.aggregation import REDUCTIONS, Payload
from flightning.functional.layers import last_linear

__all__ = ["Client", "FederatedMixin", "Weights"]

Weights = dict[str, Tensor]


@dataclass
class Client:
    """The client that is training now.

    Args:
        id: Its number.
        num_samples: Its training samples.
        weight: Its weight in ``mean`` reductions, not normalised.
        steps_per_epoch: Local steps of one pass over its samples.
        share: Its share of the objective: its weight over that of all clients that can train, sampled or not.
        steps: Optimizer steps it has taken this round; a step that a gradient scaler skipped is not counted.
        step_sizes: Learning rate of each of these steps.
        losses: Sums over the round of the task loss and each regularization term.
        counts: Numbers that are added up over the cohort and logged as ``round/<name>``.
    """

    id: int
    num_samples: int
    weight: float
    steps_per_epoch: int = 1
    share: float = 1.0
    steps: int = 0
    step_sizes: list[float] = field(default_factory=list)
    losses: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


class FederatedMixin(PersonalEvaluation, LightningModule):
    """Federated averaging of any `LightningModule`, and the hooks that other algorithms change.

    The hooks, in the order of a round. Server: `on_round_start`, `download`; client: `on_client_start`, then in each
    local step `task_loss`, `regularization` and `correct_gradients`, then `on_client_end`; server: `aggregate`; client
    again, with the new global weights: `after_aggregation`; server: `collect`, `on_round_end`.

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
        _check_order(cls)
        _check_ownership(cls)
        _check_aggregation_order(cls)
        cls.reductions = _merged_reductions(cls)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _check_names(self)
        _check_module_behind(type(self))
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
        #: Numbers that the algorithm wants logged for this round; logged and cleared when the round ends.
        self.round_metrics: dict[str, float] = {}
        self.client_state.declare("weights", dict)
        self.client_state.declare("optimizer", dict)
        self._taps = LayerTaps(self)
        self._feature_layer: str | None = None
        self._takes: dict[str, int] = {}

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

    # --- what an algorithm may look at --------------------------------------------------------------------------

    @property
    def round_index(self) -> int:
        """The current round, counted from 0."""
        return self.current_epoch

    @property
    def num_rounds(self) -> int:
        """Rounds of the whole federation."""
        return int(self.trainer.max_epochs or 0)

    @property
    def federated_data(self) -> Any:
        """The federated data module."""
        return self.trainer.datamodule  # type: ignore[attr-defined]

    @property
    def forward_root(self) -> nn.Module:
        """The module whose call is the forward pass: ``self.net`` if there is one, else the module itself."""
        net = getattr(self, "net", None)
        return net if isinstance(net, nn.Module) else self

    @property
    def forward_root_prefix(self) -> str:
        """What the names of `forward_root` begin with in the names of this module."""
        return "" if self.forward_root is self else "net."

    @property
    def feature_layer(self) -> str:
        """Name of the layer whose input is the feature vector: the last `Linear`."""
        if self._feature_layer is None:  # kept: a walk over all layers would show in small local steps
            self._feature_layer = last_linear(self)
        return self._feature_layer

    @property
    def penultimate(self) -> Tensor:
        """Input of the last `Linear` in this local step, with gradient; needs `watch_layers(self.feature_layer)`."""
        return self._taps.input(self.feature_layer)

    def layer_output(self, name: str) -> Tensor:
        """Output of a watched layer in this local step, with gradient."""
        return self._taps.output(name)

    @property
    def feature_size(self) -> int:
        """Number of features."""
        return int(self.get_submodule(self.feature_layer).in_features)  # type: ignore[arg-type]

    def frozen_forward(
        self, weights: Weights | None = None, until: str | None = None, training: bool = False
    ) -> Tensor:
        """Run the batch of this local step through frozen weights, without gradient.

        Args:
            weights: Weights by name in this module; ``None`` takes the global weights.
            until: Layer of this module after which the pass is cut short; ``None`` runs to the end of `forward_root`.
            training: Whether BatchNorm and dropout stay in training mode; no running statistics are changed.

        Returns:
            Output of that layer. Needs `watch_layers` of the network (``"net"``, or ``""`` where it is the module).
        """
        return self._run_frozen(weights, until=until, training=training)

    def frozen_features(self, weights: Weights | None = None) -> Tensor:
        """Features (input of the last `Linear`) of the batch of this local step under frozen weights.

        Args:
            weights: Weights by name in this module; ``None`` takes the global weights.
        """
        return self._run_frozen(weights, before=self.feature_layer)

    def _run_frozen(
        self, weights: Weights | None, until: str | None = None, before: str | None = None, training: bool = False
    ) -> Tensor:
        prefix = self.forward_root_prefix
        args, kwargs = self._taps.call(prefix.rstrip("."))
        # what the client keeps of the model belongs to what it has received
        weights = weights or {**self.global_weights, **self.client_state.weights}
        named = {n[len(prefix) :]: w for n, w in weights.items() if n.startswith(prefix)}
        until, before = (name[len(prefix) :] if name else None for name in (until, before))
        with self._taps.paused():
            return frozen_forward(self.forward_root, named, args, kwargs, until, before, training)

    def trainable(self) -> Weights:
        """Live parameters that are trained, by name; updates of clients are over these."""
        return {n: p for n, p in self.named_parameters() if p.requires_grad}

    def shared_parameters(self) -> Weights:
        """Live parameters that are trained and exchanged, by name."""
        return {n: p for n, p in self.trainable().items() if self.is_shared(n)}

    def live_weights(self) -> Weights:
        """Live trained parameters and persistent buffers, by name."""
        buffers = {n: b for n, b in self.named_buffers() if n in self._persistent}
        return {**self.trainable(), **buffers}

    def zeros_like_parameters(self) -> Weights:
        """A zero for every trained parameter, in at least single precision."""
        return {n: torch.zeros_like(p, dtype=_at_least_float32(p)).detach() for n, p in self.trainable().items()}

    def client_batches(self) -> Iterator[Any]:
        """All training batches of the current client on the module's device, in stored order, without augmentation."""
        for batch in self.federated_data.client_batches(self._training_client.id):
            yield self.trainer.strategy.batch_to_device(self.trainer.precision_plugin.convert_input(batch))

    def task_losses(self) -> Iterator[tuple[Tensor, int]]:
        """Task loss of each batch of `client_batches` at the live weights, with its number of samples.

        BatchNorm uses its running statistics and dropout is off; nothing is logged. Gradients are recorded unless the
        caller switches them off.
        """
        for index, batch in enumerate(self.client_batches()):
            precision = self.trainer.precision_plugin.forward_context()
            with self.silence(), without_noise(self), self._taps.listening(), precision:
                output = self._call_user_step("training_step", super().training_step, (batch, index))
                loss = self.task_loss(output["loss"] if isinstance(output, Mapping) else output, batch)
            yield loss, extract_batch_size(batch)

    def split_batch(self, batch: Any) -> tuple[Any, Tensor]:
        """Inputs and targets of a batch; define it in your module where batches are no ``(inputs, targets)`` pairs."""
        own = getattr(super(), "split_batch", None)
        if own is not None:
            pair: tuple[Any, Tensor] = own(batch)
            return pair
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise ConfigurationError(
                f"a batch is a `{type(batch).__name__}`, but `{type(self).__name__}` needs inputs and targets: "
                "define `split_batch(self, batch)` in your module to return the pair."
            )
        return batch[0], batch[1]

    @torch.no_grad()
    def client_features(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and targets of all samples of the current client, in evaluation mode and without gradient."""
        prefix = self.forward_root_prefix
        weights = {n[len(prefix) :]: w for n, w in self.live_weights().items() if n.startswith(prefix)}
        for batch in self.client_batches():
            inputs, targets = self.split_batch(batch)
            with self.trainer.precision_plugin.forward_context():
                before = self.feature_layer[len(prefix) :]
                features = frozen_forward(self.forward_root, weights, (inputs,), {}, before=before)
            yield features, targets

    # --- server hooks -------------------------------------------------------------------------------------------

    def on_federation_start(self) -> None:
        """Look at the data and declare what depends on the built module; called once, before the first round."""

    def on_round_start(self) -> None:
        """Prepare the server for `self.cohort`."""

    def download(self, client: int) -> Payload:
        """What the server sends to a client at the start of its round."""
        sent = {n: w for n, w in self.global_weights.items() if self.is_shared(n) and self._is_sent(n)}
        return {"weights": sent} if sent else {}

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
        self._persistent = set(self.state_dict())
        self._trained = set(self.trainable())
        self.global_weights = {n: w.detach().to(_at_least_float32(w)).clone() for n, w in self.live_weights().items()}
        self._initial_buffers = {
            n: w.clone() for n, w in self.global_weights.items() if buffer_policy == "reset" and n not in self._trained
        }
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
            self.client_state.weights = {n: live[n] for n in self.global_weights if self.is_personal(n)}
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

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Add the regularization terms to the loss of the module behind the mixin."""
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
        for name, term in terms.items():
            client.losses[name] = client.losses.get(name, 0.0) + term.detach()
        return functools.reduce(torch.add, terms.values())

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip as the Trainer was told, then correct the gradients."""
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        self.correct_gradients()

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
        if getattr(batch, "holds_batches", False):  # a whole client, whose batches are transferred one by one
            return batch
        return super()._on_before_batch_transfer(batch, dataloader_idx)

    def _apply_batch_transfer_handler(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        if getattr(batch, "holds_batches", False):
            return batch
        return super()._apply_batch_transfer_handler(batch, device, dataloader_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the declared state."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["flightning"] = {
            "server": dict(self.server_state.values),
            "clients": self.client_states.state_dict(),
            "setup_bytes": self.setup_bytes,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the declared state."""
        super().on_load_checkpoint(checkpoint)
        if "flightning" not in checkpoint:
            raise CheckpointError(
                "this checkpoint was not written by a federation (it has no `flightning` entry): give the `last.ckpt` "
                "of a flightning run, or load its weights with `load_state_dict` before training."
            )
        kept = checkpoint["flightning"]
        self.server_state.replace(kept["server"])
        self.client_states.load_state_dict(kept["clients"])
        self.setup_bytes = kept["setup_bytes"]

    def _call_user_step(self, name: str, step: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name not in self._takes:
            self._takes[name] = _num_positional(step)
        return step(*args[: self._takes[name]])


def _num_positional(function: Callable[..., Any]) -> int:
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 99
    return sum(k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for k in kinds)


def _at_least_float32(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32) if tensor.is_floating_point() else tensor.dtype


def _mixins(cls: type) -> list[type[FederatedMixin]]:
    return [c for c in cls.__mro__ if issubclass(c, FederatedMixin)]


def _check_order(cls: type) -> None:
    last_mixin = cls.__mro__.index(FederatedMixin) if FederatedMixin in cls.__mro__ else 0
    for base in cls.__mro__[:last_mixin]:
        if issubclass(base, LightningModule) and not issubclass(base, FederatedMixin):
            mixin = next(c for c in cls.__mro__[cls.__mro__.index(base) :] if issubclass(c, FederatedMixin))
            raise CompositionError(
                f"`{cls.__name__}` puts `{base.__name__}` before the mixin `{mixin.__name__}`, so the algorithm would "
                f"be ignored: write the mixins first, `class {cls.__name__}({mixin.__name__}, {base.__name__})`."
            )


def _check_module_behind(cls: type) -> None:
    behind = cls.__mro__[cls.__mro__.index(FederatedMixin) + 1 :]
    framework = (PersonalEvaluation, LightningModule)
    if any("training_step" in vars(c) for c in behind if issubclass(c, LightningModule) and c not in framework):
        return
    mixin = next(c for c in _mixins(cls) if c.__module__ != cls.__module__ or c is FederatedMixin)
    raise CompositionError(
        f"`{cls.__name__}` has no module with a `training_step` behind `{mixin.__name__}`, so the algorithm would be "
        f"skipped: write the module as a class of its own, `class Model(LightningModule)`, and put the mixin in front "
        f"of it, `class {cls.__name__}({mixin.__name__}, Model)`."
    )


def _check_names(module: LightningModule) -> None:
    for name, _ in [*module.named_children(), *module.named_parameters(recurse=False)]:
        if hasattr(FederatedMixin, name) and not hasattr(LightningModule, name):
            raise CompositionError(
                f"`{type(module).__name__}` has a layer or parameter called `{name}`, a name that the algorithms use: "
                f"rename it, for instance to `{name}_layer`."
            )


def _check_ownership(cls: type) -> None:
    owners: dict[str, str] = {}
    for mixin in _mixins(cls):
        for power in vars(mixin).get("owns", ()):
            if power in owners:
                raise CompositionError(
                    f"`{cls.__name__}` cannot combine `{owners[power]}` and `{mixin.__name__}`: both own the "
                    f"{power}. Keep one of them."
                )
            owners[power] = mixin.__name__


def _check_aggregation_order(cls: type) -> None:
    mixins = _mixins(cls)
    for owner in [m for m in mixins if "aggregation rule" in vars(m).get("owns", ())]:
        for mixin in mixins[: mixins.index(owner)]:
            if "aggregate" in vars(mixin) and not issubclass(mixin, owner):
                raise CompositionError(
                    f"`{cls.__name__}` puts `{mixin.__name__}` before `{owner.__name__}`, which alone knows how to "
                    f"turn its uploads into weights: write `{owner.__name__}` first."
                )


def _merged_reductions(cls: type) -> dict[str, str]:
    merged: dict[str, str] = {}
    declared: dict[str, tuple[str, str]] = {}
    for mixin in reversed(_mixins(cls)):
        for name, rule in dict(vars(mixin).get("reductions", {})).items():
            if rule not in REDUCTIONS:
                raise CompositionError(
                    f"`{mixin.__name__}` reduces `{name}` by `{rule}`: choose one of {', '.join(REDUCTIONS)}."
                )
            owner, other = declared.get(name, ("", rule))
            if other != rule and not issubclass(mixin, _class_named(cls, owner)):
                raise CompositionError(
                    f"`{cls.__name__}` cannot combine `{mixin.__name__}` and `{owner}`: they reduce the upload "
                    f"`{name}` by different rules (`{rule}`, `{other}`). Keep one of them."
                )
            if mixin is not FederatedMixin and rule != merged.get(name):
                declared[name] = mixin.__name__, rule
            merged[name] = rule
    return merged


def _class_named(cls: type, name: str) -> type:
    return next(c for c in cls.__mro__ if c.__name__ == name)
