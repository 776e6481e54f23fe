"""A global model whose layers may have another width than those of the clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flightning.algorithms.base import FederatedMixin
from flightning.errors import ConfigurationError

__all__ = ["ElasticWidthMixin"]


class ElasticWidthMixin(FederatedMixin):
    """Let the module take on the width of the weights that are put into it.

    An algorithm that sets `changes_width` sends clients weights of their own width in `download`. `global_weights` then
    has other shapes than `trainable`, so that mixins which compare the two are refused.
    """

    #: Whether the algorithm makes use of it.
    changes_width = False

    def on_federation_start(self) -> None:
        """Refuse what relies on one width."""
        super().on_federation_start()
        if not self.changes_width:
            return
        if self.buffer_policy != "average":
            raise ConfigurationError(
                f"`growing: true` changes the width of layers, and `federation.buffers={self.buffer_policy}` would "
                "keep statistics of another width: set `buffers: average`."
            )
        for mixin in [c for c in type(self).__mro__ if issubclass(c, FederatedMixin) and c is not FederatedMixin]:
            if {"regularization", "correct_gradients"} & vars(mixin).keys():
                raise ConfigurationError(
                    f"`growing: true` gives the global model another width than the clients, and `{mixin.__name__}` "
                    "compares their weights: set `growing: false`, or leave that mixin out."
                )

    @torch.no_grad()
    def set_global_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Replace global weights by name, also where the width is new."""
        for name, weight in weights.items():
            known = self.global_weights[name]
            if known.shape != weight.shape:
                self.global_weights[name] = known.new_empty(weight.shape)
        super().set_global_weights(weights)

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into the live module, which takes on their width."""
        live = self.live_weights()
        for name, weight in weights.items():
            _reshape(live[name], weight)
        super().load_weights(weights)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take on the width of the checkpoint before its weights are loaded."""
        own = self.state_dict(keep_vars=True)
        for name in own.keys() & checkpoint["state_dict"].keys():
            _reshape(own[name], checkpoint["state_dict"][name])
        super().on_load_checkpoint(checkpoint)


def _reshape(live: Tensor, wanted: Tensor) -> None:
    """Give a tensor another shape; the object stays, which the optimizer and the module hold."""
    if live.shape != wanted.shape:
        last = live.dim() == 4 and live.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        live.data = torch.empty(wanted.shape, dtype=live.dtype, device=live.device, memory_format=layout)
        live.grad = None
