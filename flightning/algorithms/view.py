"""What an algorithm may look at: rounds, layers, weights and the data of the current client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor, nn

from flightning.algorithms.client import Client, Weights, at_least_float32
from flightning.algorithms.evaluation import PersonalEvaluation
from flightning.algorithms.observe import frozen_forward, metrics_kept, without_noise
from flightning.algorithms.state import State
from flightning.errors import ConfigurationError
from flightning.functional.layers import last_linear

__all__ = ["FederatedView"]


class FederatedView(PersonalEvaluation):
    """Read-only access for algorithms; the federated mixin sets what is read here."""

    client_state: State
    _held: Weights | None = None
    _held_buffers: dict[str, tuple[dict[str, Tensor | None], str]] | None = None
    _persistent: set[str]
    _has_buffers: bool
    _initial_buffers: Weights
    _feature_layer: str | None

    if TYPE_CHECKING:  # defined by the federated mixin

        @property
        def _training_client(self) -> Client: ...
        def is_shared(self, name: str) -> bool: ...  # noqa: D102
        def task_loss(self, loss: Tensor, batch: Any) -> Tensor: ...  # noqa: D102

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
        if layer := until or before:
            self._taps.check_called_once(layer, prefix.rstrip("."))
        # what it has received, with what it keeps of the model
        weights = weights or {**self.global_weights, **self._initial_buffers, **self.client_state.weights}
        named = {n[len(prefix) :]: w for n, w in weights.items() if n.startswith(prefix)}
        until, before = (name[len(prefix) :] if name else None for name in (until, before))
        with self._taps.paused():
            return frozen_forward(self.forward_root, named, args, kwargs, until, before, training)

    def hold_layers(self) -> None:
        """Remember where the weights are: a walk over all layers for each client would show in small models."""
        self.release_layers()
        self._held = self.trainable()
        # a layer may replace a buffer by another tensor
        self._held_buffers = {n: (home, own) for n, home, own in self._buffer_homes() if n in self._persistent}

    def release_layers(self) -> None:
        """Look again at the layers whenever somebody asks."""
        self._held = self._held_buffers = None

    def _buffer_homes(self) -> Iterator[tuple[str, dict[str, Tensor | None], str]]:
        for prefix, layer in self.named_modules():
            for own, buffer in layer._buffers.items():
                if buffer is not None:
                    yield f"{prefix}.{own}" if prefix else own, layer._buffers, own

    def trainable(self) -> Weights:
        """Live parameters that are trained, by name; updates of clients are over these."""
        if self._held is not None:
            return dict(self._held)
        return {n: p for n, p in self.named_parameters() if p.requires_grad}

    def shared_parameters(self) -> Weights:
        """Live parameters that are trained and exchanged, by name."""
        return {n: p for n, p in self.trainable().items() if self.is_shared(n)}

    def live_weights(self) -> Weights:
        """Live trained parameters and persistent buffers, by name."""
        if not self._has_buffers:
            return self.trainable()
        homes = self._held_buffers
        if homes is None:
            homes = {n: (home, own) for n, home, own in self._buffer_homes() if n in self._persistent}
        return {**self.trainable(), **{n: cast(Tensor, home[own]) for n, (home, own) in homes.items()}}

    def zeros_like_parameters(self) -> Weights:
        """A zero for every trained parameter, in at least single precision."""
        return {n: torch.zeros_like(p, dtype=at_least_float32(p)).detach() for n, p in self.trainable().items()}

    def client_batches(self) -> Iterator[Any]:
        """All training batches of the current client on the module's device, in stored order, without augmentation."""
        return self._batches_of(self._training_client.id)

    def _batches_of(self, client: int) -> Iterator[Any]:
        for batch in self.federated_data.client_batches(client):
            yield self.trainer.strategy.batch_to_device(self.trainer.precision_plugin.convert_input(batch))

    def task_losses(self) -> Iterator[tuple[Tensor, int]]:
        """Task loss of each batch of `client_batches` at the live weights, with its number of samples.

        BatchNorm uses its running statistics, dropout is off, nothing is logged, metrics stay as they are. Gradients
        are recorded unless the caller switches them off.
        """
        for index, batch in enumerate(self.client_batches()):
            precision = self.trainer.precision_plugin.forward_context()
            with self.silence(), without_noise(self), metrics_kept(self), self._taps.listening(), precision:
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
