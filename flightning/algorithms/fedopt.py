r"""FedOpt: any optimizer of PyTorch at the server.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 1. https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, SGD, Optimizer

from flightning.algorithms.base import Weights
from flightning.algorithms.server_step import ServerStepMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError

__all__ = ["FedOpt", "FedOptMixin", "unit_sgd"]


def unit_sgd(params: Iterable[Tensor]) -> Optimizer:
    """Gradient descent of rate 1, with which FedOpt is FedAvg."""
    return SGD(params, lr=1.0)


class FedOptMixin(ServerStepMixin):
    r"""Let an optimizer step on the server's weights with the pseudo-gradient :math:`-\bar\Delta`.

    Args:
        server_optimizer: Makes the optimizer from the parameters: a class of `torch.optim`, or
            ``functools.partial(torch.optim.Adam, lr=0.01)``. The default, SGD of rate 1, is FedAvg.
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> import functools, torch
        >>> class FedOptBoring(FedOptMixin, BoringModel): ...
        >>> module = FedOptBoring(functools.partial(torch.optim.Adam, lr=0.01))
        >>> module.make_server_optimizer([torch.zeros(2)]).defaults["lr"]
        0.01
    """

    owns = frozenset({"server optimizer"})

    def __init__(self, server_optimizer: Callable[[Iterable[Tensor]], Optimizer] = unit_sgd, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.make_server_optimizer = server_optimizer
        # a function would make the checkpoint unreadable for a safe loader
        self.hparams.pop("server_optimizer", None)
        self.add_server_state("optimizer", dict)

    def on_federation_start(self) -> None:
        """Find faults of the server's optimizer before the first round."""
        super().on_federation_start()
        if isinstance(self.make_server_optimizer([Tensor([0.0])]), LBFGS):
            raise ConfigurationError(
                "`server_optimizer=LBFGS` evaluates the loss again, which the server cannot: choose another optimizer."
            )

    def server_step(self, update: Weights) -> Weights:
        """Algorithm 1, lines 8 and 9."""
        before = {n: self.global_weights[n].to(d.dtype) for n, d in update.items()}
        after = {n: w.clone() for n, w in before.items()}
        optimizer = self.make_server_optimizer(list(after.values()))
        optimizer.load_state_dict({**optimizer.state_dict(), "state": self.server_state.optimizer})
        for name, weight in after.items():
            weight.grad = -update[name]
        optimizer.step()
        self.server_state.optimizer = optimizer.state_dict()["state"]
        return {n: after[n] - before[n] for n in update}


class FedOpt(FedOptMixin, Classifier):
    """FedOpt on the built-in classifier."""
