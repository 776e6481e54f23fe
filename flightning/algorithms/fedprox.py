r"""FedProx: pull each client toward the weights it received this round.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Eq. 2 and Algorithm 2.
https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload
from flightning.functional.distance import squared_distance

__all__ = ["FedProx", "FedProxMixin"]


class FedProxMixin(FederatedMixin):
    r"""Add :math:`\frac{\mu}{2}\lVert w - w^t \rVert^2` to the client loss.

    Being part of the loss, the pull is clipped with it. Weights that stay with the client are not pulled.

    Args:
        mu: Proximal strength, the paper's :math:`\mu`, at least 0. ``0`` is FedAvg. Explicit SGD with rate
            :math:`\eta` needs :math:`\eta\mu < 2`.
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> class FedProxBoring(FedProxMixin, BoringModel): ...
        >>> FedProxBoring(mu=0.1).hparams.mu
        0.1
    """

    def __init__(self, mu: float = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if mu < 0:
            raise ConfigurationError(f"`mu={mu}` must be at least 0: use 0 for plain FedAvg.")
        self.mu = mu

    def on_client_start(self, download: Payload) -> None:
        """Take the received weights as anchors."""
        super().on_client_start(download)
        shared = self.shared_parameters()
        self._pulled = list(shared.values()), [self.global_weights[name] for name in shared]

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """Eq. 2 without the data term."""
        terms = super().regularization(batch)
        if self.mu:
            terms["prox"] = 0.5 * self.mu * squared_distance(*self._pulled)
        return terms


class FedProx(FedProxMixin, Classifier):
    """FedProx on the built-in classifier."""
