"""Who trains, and the weights that are trained."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Client", "Weights", "at_least_float32"]

Weights = dict[str, Tensor]


@dataclass
class Client:
    """The client that is training now.

    Args:
        id: Its number.
        num_samples: Its training samples.
        weight: Its weight in ``mean`` reductions, not normalised.
        steps_per_epoch: Local steps of one pass over its samples.
        share: Its share of the objective: its weight over that of all clients that can train, sampled or not.
        steps: Optimizer steps it has taken this round; a step that a gradient scaler skipped is not counted.
        step_sizes: Learning rate of each of these steps.
        losses: Sums over the round of the task loss and each regularization term, in at least single precision.
        num_losses: How many losses were summed; more than `steps` where steps were skipped.
        counts: Numbers that are added up over the cohort and logged as ``round/<name>``.
    """

    id: int
    num_samples: int
    weight: float
    steps_per_epoch: int = 1
    share: float = 1.0
    steps: int = 0
    step_sizes: list[float] = field(default_factory=list)
    losses: dict[str, Tensor] = field(default_factory=dict)
    num_losses: int = 0
    counts: dict[str, int] = field(default_factory=dict)


def at_least_float32(tensor: Tensor) -> torch.dtype:
    """Type in which copies of a weight are kept: single precision or better; integers as they are."""
    return torch.promote_types(tensor.dtype, torch.float32) if tensor.is_floating_point() else tensor.dtype
