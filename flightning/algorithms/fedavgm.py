r"""FedAvgM: momentum at the server.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019,
section 4.3. https://arxiv.org/abs/1909.06335
"""

from __future__ import annotations

from typing import Any

from flightning.algorithms.base import Weights
from flightning.algorithms.server_step import ServerStepMixin, check_decay
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError

__all__ = ["FedAvgM", "FedAvgMMixin"]


class FedAvgMMixin(ServerStepMixin):
    r"""Keep :math:`v \leftarrow \beta v + \bar\Delta` at the server and set :math:`w \leftarrow w + \eta_g v`.

    Args:
        beta: Momentum :math:`\beta` in [0, 1); ``0`` is FedAvg. A constant update is scaled up by
            :math:`1 / (1 - \beta)` in the long run.
        server_lr: Step of the server :math:`\eta_g`, above 0; ``1`` is neutral.
        nesterov: Look ahead: :math:`w \leftarrow w + \eta_g (\bar\Delta + \beta v)`, as the authors do.
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> class FedAvgMBoring(FedAvgMMixin, BoringModel): ...
        >>> FedAvgMBoring(beta=0.5).hparams.nesterov
        False
    """

    owns = frozenset({"server optimizer"})

    def __init__(self, beta: float = 0.9, server_lr: float = 1.0, nesterov: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if server_lr <= 0:
            raise ConfigurationError(f"`server_lr={server_lr}` must be above 0: use 1 to take the mean of the clients.")
        self.beta = check_decay("beta", beta, "for plain FedAvg")
        self.server_lr, self.server_nesterov = server_lr, nesterov
        self.add_server_state("velocity", self.zeros_like_parameters)

    def server_step(self, update: Weights) -> Weights:
        """Heavy ball, or Nesterov's."""
        kept = self.server_state.velocity
        velocity = {n: self.beta * kept[n] + d for n, d in update.items()}
        self.server_state.velocity = {**kept, **{n: v.to(kept[n].dtype) for n, v in velocity.items()}}
        if self.server_nesterov:
            return {n: self.server_lr * (d + self.beta * velocity[n]) for n, d in update.items()}
        return {n: self.server_lr * v for n, v in velocity.items()}


class FedAvgM(FedAvgMMixin, Classifier):
    """FedAvgM on the built-in classifier."""
