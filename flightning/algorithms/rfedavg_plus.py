r"""rFedAvg+: as rFedAvg, with maps of the aggregated model and their mean as the only target.

Wang, Tong, Zhou, Zhang, Pan, Fan and Yang, "Distribution-Regularized Federated Learning on Non-IID Data",
Algorithm 2. https://github.com/BUAA-BDA/rfedavg
"""

from __future__ import annotations

from typing import Any

import torch

from flightning.algorithms.rfedavg import MeanMapMixin
from flightning.classifier import Classifier
from flightning.functional.aggregation import Payload

__all__ = ["RFedAvgPlus", "RFedAvgPlusMixin"]


class RFedAvgPlusMixin(MeanMapMixin):
    r"""Add :math:`\lambda \lVert \bar\delta_k - \delta^{-k} \rVert^2` to the client loss.

    :math:`\delta^{-k} = \frac{1}{N-1} \sum_{j \ne k} \delta^j` is the mean of the others' maps. After each aggregation
    the clients of the next cohort compute their maps with the new global weights, which replaces their download, and
    send them at once. In the first round there is no term.

    Args:
        exclude_self: Leave the client's own map out of the mean, as in the paper; its published code does not.
        **kwargs: Arguments of `MeanMapMixin`, and of the module behind the mixin.
    """

    def __init__(self, exclude_self: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.exclude_self = exclude_self

    def download(self, client: int) -> Payload:
        """Send the mean map of the others (Algorithm 2, line 4)."""
        known = self.server_state.maps.items()
        others = [delta for j, delta in known if j != client or not self.exclude_self]
        target = {"target": torch.stack(others).mean(dim=0)} if others and self.lambda_ else {}
        return {**super().download(client), **target}

    def on_client_start(self, download: Payload) -> None:
        """Take the target."""
        super().on_client_start(download)
        self._target = download.get("target")

    def after_aggregation(self) -> Payload:
        """Send the map of the new global weights (lines 13 to 16)."""
        return {**super().after_aggregation(), **({"map": self.own_map()} if self.lambda_ else {})}

    def collect(self, uploads: Payload) -> None:
        """Keep the maps."""
        super().collect(uploads)
        self.remember(uploads.get("map", {}))


class RFedAvgPlus(RFedAvgPlusMixin, Classifier):
    """rFedAvg+ on the built-in classifier."""
