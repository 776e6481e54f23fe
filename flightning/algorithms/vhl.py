r"""VHL: align the clients' features through noise images with classes, the same on every client.

Tang et al., "Virtual Homogeneity Learning: Defending against Data Heterogeneity in Federated Learning", ICML 2022,
section 4. https://arxiv.org/abs/2206.02465
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload, num_bytes
from flightning.functional.layers import last_linear
from flightning.functional.losses import supervised_contrastive
from flightning.functional.seeding import torch_generator
from flightning.functional.virtual import virtual_samples

__all__ = ["VHL", "VHLMixin"]

_VIRTUAL, _DRAW = 28, 29


class VHLMixin(FederatedMixin):
    r"""Add :math:`a \, \mathrm{CE}_v + w_c \, \mathrm{SupCon}(z \cup z_v) + w_n \, \mathrm{SupCon}(z_v)`.

    The virtual samples of class :math:`c` are the meeting point of all clients' samples of class :math:`c`: in the
    first contrast real features are pulled to the virtual ones, which take no gradient there. Virtual classes are
    classes of their own, so that the last `Linear` of the module is replaced by one with twice the outputs; in
    evaluation it gives the real ones.

    Args:
        a: Weight of the cross-entropy of virtual samples, at least 0.
        w_c: Weight of the contrast of real and virtual features, at least 0.
        w_n: Weight of the contrast of virtual features, at least 0. All three ``0`` are FedAvg with the wider layer.
        temperature: Temperature of both contrasts, > 0.
        virtual_batch_size: Virtual samples of a local step.
        virtual_per_class: Virtual samples of each class, drawn once by the server.
        align_epochs: Local epochs at the beginning of each round in which features are contrasted.
        **kwargs: Arguments of the module behind the mixin.
    """

    def __init__(
        self,
        a: float = 1.0,
        w_c: float = 1.0,
        w_n: float = 0.1,
        temperature: float = 0.07,
        virtual_batch_size: int = 128,
        virtual_per_class: int = 200,
        align_epochs: int = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (("a", a), ("w_c", w_c), ("w_n", w_n), ("align_epochs", align_epochs)):
            if value < 0:
                raise ConfigurationError(f"`{name}={value}` must be at least 0: 0 switches it off.")
        for name, size in (("virtual_batch_size", virtual_batch_size), ("virtual_per_class", virtual_per_class)):
            if size < 1:
                raise ConfigurationError(f"`{name}={size}` must be at least 1: leave it out for the default.")
        if temperature <= 0:
            raise ConfigurationError(f"`temperature={temperature}` must be above 0: use 0.07 for the paper's.")
        self.a, self.w_c, self.w_n, self.temperature = a, w_c, w_n, temperature
        self.virtual_batch_size, self.virtual_per_class = virtual_batch_size, virtual_per_class
        self.align_epochs = align_epochs
        _widen_classifier(self)

    def on_federation_start(self) -> None:
        """Make the virtual samples, from the seed alone, and send them to everybody once."""
        super().on_federation_start()
        self.watch_layers(self.feature_layer)
        if not (self.a or self.w_c or self.w_n):
            return
        data = self.federated_data
        sample = self.split_batch(next(iter(data.train_source.batches([data.parts[self._somebody][:1]]))))[0]
        if not isinstance(sample, Tensor) or not sample.is_floating_point():
            raise ConfigurationError("`VHL` makes virtual samples of real numbers, but the inputs are not: use images.")
        generator = torch_generator(data.seed, _VIRTUAL)
        made = virtual_samples(data.num_classes, self.virtual_per_class, tuple(sample.shape[1:]), generator)
        self._inputs, self._labels = made[0].to(self.device), made[1].to(self.device)
        self.setup_bytes += self.num_clients * num_bytes({"inputs": made[0], "labels": made[1]})

    @property
    def _somebody(self) -> int:
        return int(self.federated_data.sizes.argmax())

    def on_client_start(self, download: Payload) -> None:
        """Begin the client's own sequence of virtual batches."""
        super().on_client_start(download)
        keys = self.federated_data.seed, self.round_index, self._training_client.id, _DRAW
        self._draws = torch_generator(*keys)

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """Run a virtual batch beside the real one."""
        terms = super().regularization(batch)
        client = self._training_client
        aligns = bool(self.w_c or self.w_n) and client.steps < self.align_epochs * client.steps_per_epoch
        if not (self.a or aligns):
            return terms
        real, labels = self.penultimate, self.split_batch(batch)[1]
        chosen = torch.randint(len(self._labels), (self.virtual_batch_size,), generator=self._draws).to(self.device)
        virtual_labels = self._labels[chosen]
        # a mixin in front goes on with the layers of the real samples
        with self._taps.aside(), _keep_statistics(self):
            logits = self.forward_root(self.trainer.precision_plugin.convert_input(self._inputs[chosen]))
            virtual = self.penultimate
        if self.a:
            terms["virtual"] = self.a * F.cross_entropy(logits, virtual_labels + self.federated_data.num_classes)
        if aligns:
            both, classes = torch.cat([real, virtual.detach()]), torch.cat([labels, virtual_labels])
            terms["alignment"] = self.w_c * supervised_contrastive(both, classes, self.temperature)
            terms["spread"] = self.w_n * supervised_contrastive(virtual, virtual_labels, self.temperature)
        return terms


class WideLinear(nn.Linear):
    """Twice the outputs of the layer that it replaces; in evaluation the first half.

    Example:
        >>> layer = WideLinear(nn.Linear(4, 10))
        >>> layer(torch.zeros(2, 4)).shape, layer.eval()(torch.zeros(2, 4)).shape
        (torch.Size([2, 20]), torch.Size([2, 10]))
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, 2 * linear.out_features, bias=linear.bias is not None)
        self.real = linear.out_features

    def forward(self, features: Tensor) -> Tensor:
        """Logits of real and, in training, virtual classes."""
        logits = super().forward(features)
        return logits if self.training else logits[..., : self.real]


def _widen_classifier(module: nn.Module) -> None:
    name = last_linear(module)
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, WideLinear(module.get_submodule(name)))  # type: ignore[arg-type]


@contextmanager
def _keep_statistics(module: nn.Module) -> Iterator[None]:
    """Let BatchNorm use the statistics of the batch without keeping them: noise would spoil those for evaluation."""
    layers = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


class VHL(VHLMixin, Classifier):
    """VHL on the built-in classifier."""
