"""What an algorithm may know about the optimizer of a client's local steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from flightning.functional.momentum import probe_travel, sgd_travel

__all__ = ["LocalOptimizer", "step_apart"]


def step_apart(optimizer: Optimizer, parameter: Tensor, rate: float) -> None:
    """Let one parameter of an optimizer be stepped without weight decay, at a multiple of its group's learning rate.

    During each step it forms a group of its own, so this holds for any rule of any optimizer; before and after, the
    groups are those that schedulers and checkpoints know.

    Example:
        >>> weights = [torch.nn.Parameter(torch.tensor(1.0)) for _ in range(2)]
        >>> optimizer = torch.optim.SGD(weights, lr=0.5, weight_decay=1.0)
        >>> step_apart(optimizer, weights[1], rate=2.0)
        >>> for weight in weights:
        ...     weight.grad = torch.tensor(0.25)
        >>> optimizer.step()
        >>> [weight.item() for weight in weights]
        [0.375, 0.75]
    """

    def part(*_: Any) -> None:
        for group in optimizer.param_groups:
            if any(p is parameter for p in group["params"]):
                parted.append((group, group["params"]))
                group["params"] = [p for p in group["params"] if p is not parameter]
                own = {"params": [parameter], "lr": rate * group["lr"], "weight_decay": 0.0}
                optimizer.param_groups.append({**group, **own})
                return

    def join(*_: Any) -> None:
        while parted:
            group, parameters = parted.pop()
            group["params"] = parameters
            optimizer.param_groups.pop()

    parted: list[tuple[dict[str, Any], list[Tensor]]] = []
    optimizer.register_step_pre_hook(part)
    optimizer.register_step_post_hook(join)


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
    def name(self) -> str:
        """Class of the optimizer."""
        return type(self.optimizer).__name__

    @property
    def momentum(self) -> float:
        """Largest momentum of a parameter group."""
        return max(float(s.get("momentum", 0.0)) for s in self.settings)

    @property
    def is_heavy_ball(self) -> bool:
        """Whether it is SGD downhill, with or without momentum, but not Nesterov's."""
        return type(self.optimizer) is SGD and not any(s["nesterov"] or s["maximize"] for s in self.settings)

    def travels(self, step_sizes: Sequence[float], mu: float = 0.0, plain: bool = False) -> list[float]:
        """Length that each parameter group moves under a constant gradient of 1.

        Args:
            step_sizes: Learning rate of the first group in each local step.
            mu: Strength of a proximal term.
            plain: Leave out momentum: the sum of the learning rates.
        """
        first = self.settings[0]["lr"]
        travels = []
        for settings in self.settings:
            own = settings["lr"]
            rates = [float(size * (own / first) if first else own) for size in step_sizes]
            if plain:
                travels.append(sum(rates))
            elif type(self.optimizer) is SGD:
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

    def full_gradient(
        self, losses: Iterable[tuple[Tensor, int]], parameters: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Gradient of the mean loss, with the weight decay that the optimizer adds to it.

        Args:
            losses: Mean loss and number of samples of each batch.
            parameters: Live parameters by name.
        """
        total = {n: self.weight_decay(n) * p.detach() for n, p in parameters.items()}
        sums, count = [torch.zeros_like(t) for t in total.values()], 0
        for loss, size in losses:
            parts = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
            torch._foreach_add_(sums, parts, alpha=size)
            count += size
        return {n: t + s / max(count, 1) for (n, t), s in zip(total.items(), sums, strict=True)}

    def weight_decay(self, name: str) -> float:
        """Weight decay that enters the gradient of a parameter."""
        settings = self.settings[self.group_of[name]]
        decoupled = settings.get("decoupled_weight_decay", isinstance(self.optimizer, AdamW))
        return 0.0 if decoupled else float(settings.get("weight_decay", 0.0))
