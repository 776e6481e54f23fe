r"""rFedAvg: pull the mean features of each client toward those of the others.

Wang, Tong, Zhou, Zhang, Pan, Fan and Yang, "Distribution-Regularized Federated Learning on Non-IID Data",
Eq. 3-5 and Algorithm 1. https://github.com/BUAA-BDA/rfedavg
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload
from flightning.functional.features import mean_map
from flightning.functional.losses import mean_map_distance
from flightning.functional.seeding import torch_generator

__all__ = ["MeanMapMixin", "RFedAvg", "RFedAvgMixin"]

_NOISE = 21


class MeanMapMixin(FederatedMixin):
    r"""What rFedAvg and rFedAvg+ share: the maps :math:`\delta^k`, mean features of a client, and the pull to a target.

    Args:
        lambda_: Strength :math:`\lambda`, at least 0. ``0`` is FedAvg.
        keep_stale: Whether the server keeps the last map of clients that are not in the cohort.
        sigma: Strength of the Gaussian noise on the maps, which has the standard deviation
            :math:`\sigma C_0 / L`. ``0`` adds none.
        C_0: Bound on the norm of each sample's features in a noisy map. ``None`` bounds nothing and counts as 1 in the
            noise, which is then no differential privacy.
        L: Divisor of the noise; ``None`` is the batch size, as in the paper.
        **kwargs: Arguments of the module behind the mixin.
    """

    reductions: ClassVar[Mapping[str, str]] = {"map": "stack"}

    def __init__(
        self,
        lambda_: float = 1e-4,
        keep_stale: bool = True,
        sigma: float = 0.0,
        C_0: float | None = None,
        L: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if lambda_ < 0:
            raise ConfigurationError(f"`lambda_={lambda_}` must be at least 0: use 0 for plain FedAvg.")
        if sigma < 0:
            raise ConfigurationError(f"`sigma={sigma}` must be at least 0: use 0 for maps without noise.")
        for name, value in (("C_0", C_0), ("L", L)):
            if value is not None and value <= 0:
                raise ConfigurationError(f"`{name}={value}` must be above 0: leave it out for its default.")
            if value is not None and sigma == 0:
                raise ConfigurationError(f"`{name}={value}` belongs to the noise, but `sigma` is 0: set `sigma` too.")
        self.lambda_, self.keep_stale, self.sigma, self.C_0, self.L = lambda_, keep_stale, sigma, C_0, L
        self.add_server_state("maps", dict)
        self._target: Tensor | None = None
        self._spread: Tensor | float = 0.0

    def on_federation_start(self) -> None:
        """Watch the features."""
        super().on_federation_start()
        self.watch_layers(self.feature_layer)

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """The regularization term of Eq. 3, with the mean over the batch for the client's own map."""
        terms = super().regularization(batch)
        if self.lambda_ and self._target is not None:
            terms["mmd"] = self.lambda_ * (mean_map_distance(self.penultimate, self._target) + self._spread)
        return terms

    def own_map(self) -> Tensor:
        """Mean features of the client under the live weights, noisy if asked for."""
        delta = mean_map(self.client_features(), clip=self.C_0)
        if self.sigma:
            keys = (self.federated_data.seed, self.round_index, self._training_client.id, _NOISE)
            noise = torch.randn(delta.shape, generator=torch_generator(*keys)).to(delta)
            delta = delta + noise * self.sigma * (self.C_0 or 1.0) / (self.L or self.federated_data.batch_size)
        return delta

    def remember(self, maps: dict[int, Tensor]) -> None:
        """Take new maps into the server's table."""
        known = self.server_state.maps if self.keep_stale else {}
        self.server_state.maps = {**known, **maps}


class RFedAvgMixin(MeanMapMixin):
    r"""Add :math:`\frac{\lambda}{N-1} \sum_{j \ne k} \lVert \bar\delta_k - \delta^j \rVert^2` to the client loss.

    Each client computes its map with its own trained weights; the server sends the whole table. In the first round,
    and for a client that knows no other map, there is no term. The mean is over the other maps that are known.
    """

    def download(self, client: int) -> Payload:
        """Send the table beside the weights."""
        table = {str(j): delta for j, delta in self.server_state.maps.items()}
        return {**super().download(client), **({"maps": table} if table and self.lambda_ else {})}

    def on_client_start(self, download: Payload) -> None:
        """Mean of squared distances = squared distance to the mean + a constant, the spread of the table."""
        super().on_client_start(download)
        own = str(self._training_client.id)
        others = [delta for j, delta in download.get("maps", {}).items() if j != own]
        self._target, self._spread = None, 0.0
        if others:
            stacked = torch.stack(others)
            self._target = stacked.mean(dim=0)
            self._spread = (stacked - self._target).square().sum(dim=1).mean()

    def on_client_end(self) -> Payload:
        """Send the map of the trained weights."""
        return {**super().on_client_end(), **({"map": self.own_map()} if self.lambda_ else {})}

    def aggregate(self, uploads: Payload) -> None:
        """Keep the maps."""
        self.remember(uploads.get("map", {}))
        super().aggregate(uploads)


class RFedAvg(RFedAvgMixin, Classifier):
    """rFedAvg on the built-in classifier."""
