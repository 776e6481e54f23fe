r"""FedAdagrad: Adagrad at the server.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flightning.algorithms.server_step import AdaptiveServerMixin
from flightning.classifier import Classifier

__all__ = ["FedAdagrad", "FedAdagradMixin"]


class FedAdagradMixin(AdaptiveServerMixin):
    r"""Scale the mean update by the sum of its squares, :math:`v \leftarrow v + \bar\Delta^2`.

    Args:
        server_lr: Step of the server :math:`\eta`, above 0.
        beta1: Momentum :math:`\beta_1` in [0, 1); ``0`` for none.
        tau: Adaptivity :math:`\tau`, above 0. Large values, with :math:`\eta = 2\tau`, give FedAvg.
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> class FedAdagradBoring(FedAdagradMixin, BoringModel): ...
        >>> FedAdagradBoring().hparams.beta1
        0.0
    """

    owns = frozenset({"server optimizer"})

    def __init__(self, server_lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(server_lr=server_lr, beta1=beta1, tau=tau, **kwargs)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Line 12."""
        return v + square


class FedAdagrad(FedAdagradMixin, Classifier):
    """FedAdagrad on the built-in classifier."""
