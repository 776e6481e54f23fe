"""SiloBN: share what BatchNorm has learned, keep what it has measured.

Andreux et al., "Siloed Federated Learning for Multi-Centric Histopathology Datasets", DCL at MICCAI 2020, section 3.
https://arxiv.org/abs/2008.07424
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier
from flightning.functional.layers import batch_norm_names

__all__ = ["SiloBN", "SiloBNMixin"]


class SiloBNMixin(FederatedMixin):
    """Average weight and bias of BatchNorm, keep its running statistics on the client.

    The accuracy is the mean over clients, each with its own statistics. A client that has not trained yet measures
    them on its own samples under the global weights (AdaBN). Without BatchNorm this is FedAvg.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._measured: dict[int, dict[str, Tensor]] = {}

    def is_shared(self, name: str) -> bool:
        """Share everything but the running statistics."""
        return super().is_shared(name) and name not in self._statistics

    def personal_weights(self, client: int) -> dict[str, Tensor]:
        """Statistics that the client keeps, or measures where it has none."""
        if client in self.client_states or not self.federated_data.sizes[client]:
            return super().personal_weights(client)
        if client not in self._measured:
            self._measured[client] = self._measure(client)
        return self._measured[client]

    def on_round_start(self) -> None:
        """Forget statistics that were measured under earlier global weights."""
        super().on_round_start()
        self._measured.clear()

    @torch.no_grad()
    def _measure(self, client: int) -> dict[str, Tensor]:
        self.load_global_weights()
        layers = [m for m in self.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        momenta = [layer.momentum for layer in layers]
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean over the batches
            layer.train()
        for index, batch in enumerate(self._batches_of(client)):
            inputs, targets = self.split_batch(batch)
            if index and len(targets) == 1:  # a last batch of one has no variance
                continue
            with self.trainer.precision_plugin.forward_context():
                self.forward_root(inputs)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
            layer.eval()
        return {n: w.clone() for n, w in self.live_weights().items() if n in self._statistics}

    @functools.cached_property
    def _statistics(self) -> set[str]:
        return batch_norm_names(self) - {n for n, _ in self.named_parameters()}


class SiloBN(SiloBNMixin, Classifier):
    """SiloBN on the built-in classifier."""
