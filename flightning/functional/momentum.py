r"""How far an optimizer carries a weight under a constant gradient.

Drift corrections divide the movement of a client by this length to get the mean gradient that it saw, and FedNova
divides by it to compare clients that took different numbers of local steps.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

__all__ = ["probe_travel", "sgd_travel"]


def sgd_travel(
    step_sizes: Sequence[float],
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    mu: float = 0.0,
) -> float:
    r"""Length that SGD, from an empty momentum buffer, moves a weight per unit of a constant gradient.

    For :math:`K` steps of one size :math:`\eta` and momentum :math:`\rho` this is :math:`\eta A` with

    .. math:: A = \frac{1}{1-\rho} \Big[ K - \frac{\rho (1 - \rho^K)}{1 - \rho} \Big],

    and for a proximal term of strength :math:`\mu` without momentum :math:`(1 - (1 - \eta\mu)^K) / \mu`.

    Args:
        step_sizes: Learning rate of each step.
        momentum: The heavy-ball factor :math:`\rho`.
        dampening: Share of each later gradient that does not enter the buffer.
        nesterov: Whether each step looks ahead.
        mu: Strength of a proximal term that pulls the weight back to its start.

    Example:
        >>> sgd_travel([0.5] * 4), sgd_travel([1.0] * 3, momentum=0.5), sgd_travel([0.5] * 2, mu=1.0)
        (2.0, 4.25, 0.75)
    """
    travelled = buffer = 0.0
    for step, size in enumerate(step_sizes):
        gradient = 1.0 - mu * travelled
        buffer = momentum * buffer + (1.0 - dampening if step else 1.0) * gradient
        direction = gradient + momentum * buffer if nesterov else buffer
        travelled += size * (direction if momentum else gradient)
    return travelled


def probe_travel(
    optimizer: Optimizer, settings: Mapping[str, Any], step_sizes: Sequence[float], mu: float = 0.0
) -> float:
    """Length that any optimizer, without state and weight decay, moves a weight under a constant gradient of 1.

    It is measured: a copy of the optimizer moves a single number.

    Args:
        optimizer: Supplies the rule; it is left as it is.
        settings: Parameter group without its parameters.
        step_sizes: Learning rate of each step.
        mu: Strength of a proximal term that pulls the weight back to its start.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> adam = torch.optim.Adam([weight], lr=0.1)
        >>> round(probe_travel(adam, adam.defaults, [0.1] * 5), 6)
        0.5
    """
    on_any_device = {"fused": None, "foreach": None, "capturable": False, "weight_decay": 0.0}
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
    probe = copy.copy(optimizer)
    probe.state = defaultdict(dict)
    probe.param_groups = [{**settings, **{k: v for k, v in on_any_device.items() if k in settings}, "params": [weight]}]
    for size in step_sizes:
        probe.param_groups[0]["lr"] = size
        weight.grad = 1.0 + mu * weight.detach()
        probe.step()
    return -weight.item()
