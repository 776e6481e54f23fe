"""The server moves by its own rule along the mean update of the clients."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from flightning.algorithms.base import FederatedMixin, Weights
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload

__all__ = ["AdaptiveServerMixin", "ServerStepMixin", "check_decay"]


class ServerStepMixin(FederatedMixin):
    r"""Set :math:`w^{t+1} = w^t + s(\bar\Delta)` with the mean update :math:`\bar\Delta = \sum_k p_k w_k - w^t`.

    Only parameters move by the rule :math:`s`; BatchNorm statistics are averaged, because a rule that can go beyond the
    mean would make variances negative. A mixin made from this one declares that it owns the ``"server optimizer"``.
    """

    @abstractmethod
    def server_step(self, update: Weights) -> Weights:
        """Step of each parameter for its mean update, both in double precision."""

    def aggregate(self, uploads: Payload) -> None:
        """Move by the server's rule."""
        mean = uploads.get("weights", {})
        update = {n: mean[n] - self.global_weights[n] for n in self.trainable() if n in mean}
        step = self.server_step(update)
        # mean + (step - update) is w + step, and exactly the mean where the step is the update
        moved = {n: mean[n] + (step[n] - update[n]) for n in update}
        super().aggregate({**uploads, "weights": {**mean, **moved}})


class AdaptiveServerMixin(ServerStepMixin):
    r"""Step :math:`\eta \, m / (\sqrt{v} + \tau)` with :math:`m \leftarrow \beta_1 m + (1 - \beta_1) \bar\Delta`.

    :math:`v` begins at :math:`\tau^2`, and there is no bias correction.

    Args:
        server_lr: Step of the server :math:`\eta`, above 0.
        beta1: Momentum :math:`\beta_1` in [0, 1); ``0`` for none.
        tau: Adaptivity :math:`\tau`, above 0. As it grows, with :math:`\eta` in proportion, the rule becomes FedAvg's.
        **kwargs: Arguments of the module behind the mixin.
    """

    def __init__(self, server_lr: float, beta1: float, tau: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name, value in (("server_lr", server_lr), ("tau", tau)):
            if value <= 0:
                raise ConfigurationError(f"`{name}={value}` must be above 0: leave it out for its default.")
        self.server_lr, self.beta1, self.tau = server_lr, check_decay("beta1", beta1), tau
        self.add_server_state("momentum", self.zeros_like_parameters)
        self.add_server_state("variance", self._first_variance)

    def _first_variance(self) -> Weights:
        return {n: torch.full_like(zero, self.tau**2) for n, zero in self.zeros_like_parameters().items()}

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        r"""New :math:`v` from the old one and :math:`\bar\Delta^2`."""

    def server_step(self, update: Weights) -> Weights:
        """Algorithm 2, lines 10 to 15."""
        first, second = self.server_state.momentum, self.server_state.variance
        m = {n: self.beta1 * first[n] + (1 - self.beta1) * d for n, d in update.items()}
        v = {n: self.second_moment(second[n].to(d.dtype), d.square()) for n, d in update.items()}
        self.server_state.momentum = {**first, **{n: t.to(first[n].dtype) for n, t in m.items()}}
        self.server_state.variance = {**second, **{n: t.to(second[n].dtype) for n, t in v.items()}}
        return {n: self.server_lr * m[n] / (v[n].sqrt() + self.tau) for n in update}


def check_decay(name: str, value: float, neutral: str = "to forget at once") -> float:
    """Refuse a decay that is not in [0, 1); ``neutral`` says what 0 is for."""
    if not 0 <= value < 1:
        raise ConfigurationError(f"`{name}={value}` must lie in [0, 1): use 0 {neutral}.")
    return value
