r"""FedAdam: Adam at the server, without bias correction.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flightning.algorithms.server_step import AdaptiveServerMixin, check_decay
from flightning.classifier import Classifier

__all__ = ["FedAdam", "FedAdamMixin"]


class FedAdamMixin(AdaptiveServerMixin):
    r"""Scale the mean update by :math:`v \leftarrow \beta_2 v + (1 - \beta_2) \bar\Delta^2`.

    Args:
        server_lr: Step of the server :math:`\eta`, above 0.
        beta1: Momentum :math:`\beta_1` in [0, 1); ``0`` for none.
        beta2: Memory of squares :math:`\beta_2` in [0, 1).
        tau: Adaptivity :math:`\tau`, above 0. Large values, with :math:`\eta = \tau (1 + \sqrt{\beta_2})` in the first
            round and ``beta1=0``, give FedAvg.
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> class FedAdamBoring(FedAdamMixin, BoringModel): ...
        >>> FedAdamBoring(tau=1e-2).hparams.beta2
        0.99
    """

    owns = frozenset({"server optimizer"})

    def __init__(
        self, server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3, **kwargs: Any
    ) -> None:
        super().__init__(server_lr=server_lr, beta1=beta1, tau=tau, **kwargs)
        self.beta2 = check_decay("beta2", beta2)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Line 14."""
        return self.beta2 * v + (1 - self.beta2) * square


class FedAdam(FedAdamMixin, Classifier):
    """FedAdam on the built-in classifier."""
