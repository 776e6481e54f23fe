r"""MOON: bring the local model's features nearer to the global model's than to those of its own past.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021, Eq. 3-4 and Algorithm 1.
https://arxiv.org/abs/2103.16257
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import ProjectedClassifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload
from flightning.functional.losses import model_contrastive

__all__ = ["MOON", "MOONMixin"]


class MOONMixin(FederatedMixin):
    r"""Add :math:`\mu \, \ell_{con}`, which contrasts global and previous local features of each sample.

    .. math:: \ell_{con} = -\log \frac{e^{\cos(z, z_{glob}) / \tau}}
              {e^{\cos(z, z_{glob}) / \tau} + \sum_b e^{\cos(z, z_{prev,b}) / \tau}}

    Features are the input of the last linear layer, which in the paper is the output of a projection head. A client
    that takes part for the first time has no previous model and no term.

    Args:
        mu: Strength :math:`\mu`, at least 0. ``0`` is FedAvg.
        tau: Temperature :math:`\tau`, above 0.
        pool_size: Previous local models that a client keeps, at least 1.
        **kwargs: Arguments of the module behind the mixin.
    """

    def __init__(self, mu: float = 1.0, tau: float = 0.5, pool_size: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if mu < 0:
            raise ConfigurationError(f"`mu={mu}` must be at least 0: use 0 for plain FedAvg.")
        if tau <= 0:
            raise ConfigurationError(f"`tau={tau}` must be above 0: the paper uses 0.5.")
        if pool_size < 1:
            raise ConfigurationError(f"`pool_size={pool_size}` must be at least 1: use `mu: 0` for plain FedAvg.")
        self.mu, self.tau, self.pool_size = mu, tau, pool_size
        self.add_client_state("previous", list)

    def on_federation_start(self) -> None:
        """Watch network and features."""
        super().on_federation_start()
        self.watch_layers(self.forward_root_prefix.rstrip("."), self.feature_layer)

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """Eq. 3; the two teachers are in evaluation mode."""
        terms = super().regularization(batch)
        if self.mu and self.client_state.previous:
            past = [self.frozen_features(weights) for weights in self.client_state.previous]
            contrast = model_contrastive(self.penultimate, self.frozen_features(), past, self.tau)
            terms["contrast"] = self.mu * contrast
        return terms

    def on_client_end(self) -> Payload:
        """Keep the trained model for the next time (Algorithm 1, line 15)."""
        if self.mu:
            trained = {name: weight.detach().clone() for name, weight in self.live_weights().items()}
            self.client_state.previous = [*self.client_state.previous, trained][-self.pool_size :]
        return super().on_client_end()


class MOON(MOONMixin, ProjectedClassifier):
    """MOON on the built-in classifier, whose net gets a projection head where it has none."""
