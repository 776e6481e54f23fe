"""What an algorithm may know about the optimizer of a client's local steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from flightning.functional.momentum import probe_travel, sgd_travel

__all__ = ["LocalOptimizer"]


class LocalOptimizer:
    """Settings of the optimizer when a client begins.

    Taken at the beginning, because a scheduler that steps once per round has changed them when the last client ends.

    Args:
        optimizer: The client's optimizer.
        parameters: Live parameters by name.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor(1.0))
        >>> local = LocalOptimizer(SGD([weight], lr=0.5, momentum=0.5), {"w": weight})
        >>> local.travels([0.5, 0.5])
        [1.25]
        >>> local.mean_gradient({"w": torch.tensor(2.0)}, {"w": weight}, [1.25])
        {'w': tensor(0.8000)}
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> None:
        self.optimizer = optimizer
        self.settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        owner = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        #: Number of the parameter group of each parameter; one that is not optimized does not move, so 0 will do.
        self.group_of = {name: owner.get(id(p), 0) for name, p in parameters.items()}

    @property
    def momentum(self) -> float:
        """Largest momentum of a parameter group."""
        return max(float(s.get("momentum", 0.0)) for s in self.settings)

    @property
    def is_heavy_ball(self) -> bool:
        """Whether it is SGD, with or without momentum, but not Nesterov's."""
        return type(self.optimizer) is SGD and not any(s["nesterov"] for s in self.settings)

    def rates(self, group: int, step_sizes: Sequence[float]) -> list[float]:
        """Learning rates that a parameter group had in steps for which those of the first group are known."""
        first, own = self.settings[0]["lr"], self.settings[group]["lr"]
        return [float(size * (own / first) if first else own) for size in step_sizes]

    def travels(self, step_sizes: Sequence[float], mu: float = 0.0) -> list[float]:
        """Length that each parameter group moves under a constant gradient of 1.

        Args:
            step_sizes: Learning rate of the first group in each local step.
            mu: Strength of a proximal term.
        """
        travels = []
        for group, settings in enumerate(self.settings):
            rates = self.rates(group, step_sizes)
            if type(self.optimizer) is SGD:
                rule = {k: settings[k] for k in ("momentum", "dampening", "nesterov")}
                travels.append(sgd_travel(rates, **rule, mu=mu))
            else:
                travels.append(probe_travel(self.optimizer, settings, rates, mu))
        return travels

    @torch.no_grad()
    def mean_gradient(
        self, start: Mapping[str, Tensor], end: Mapping[str, Tensor], travels: Sequence[float]
    ) -> dict[str, Tensor]:
        """The constant gradient that leads from one point to another; without the parameters that could not move."""
        moving = {n: travels[self.group_of[n]] for n in end if travels[self.group_of[n]]}
        steps = torch._foreach_sub([start[n] for n in moving], [end[n] for n in moving]) if moving else ()
        return dict(zip(moving, torch._foreach_div(steps, list(moving.values())) if moving else (), strict=True))

    def weight_decay(self, name: str) -> float:
        """Weight decay that enters the gradient of a parameter."""
        settings = self.settings[self.group_of[name]]
        decoupled = settings.get("decoupled_weight_decay", isinstance(self.optimizer, AdamW))
        return 0.0 if decoupled else float(settings.get("weight_decay", 0.0))
