"""One local step without what PyTorch does around it; same numbers, less time where a step takes microseconds.

`Tensor.backward` and `Optimizer.step` are wrappers written in Python for hooks, profilers and compilers. For a small
model on a CPU they take a third of a step. Where nothing of theirs is in use, the functions inside them are called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.optim import Optimizer
from torch.optim import optimizer as optim_globals

__all__ = ["backward", "bare_step"]


def backward(loss: Tensor) -> None:
    """Add the gradient of a loss to ``.grad``, as ``loss.backward()`` does.

    Example:
        >>> weight = torch.tensor(3.0, requires_grad=True)
        >>> backward(weight**2)
        >>> weight.grad
        tensor(6.)
    """
    # on other devices the backward pass runs in threads that need what the wrapper prepares
    if loss.dim() or loss.device.type != "cpu" or not loss.dtype.is_floating_point or type(loss) is not Tensor:
        loss.backward()  # type: ignore[no-untyped-call]
    else:
        _run_backward((loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True)


_run_backward: Callable[..., Any] = Variable._execution_engine.run_backward


def bare_step(optimizer: Optimizer) -> Callable[[], Any]:
    """The step of an optimizer of `torch.optim` without hooks, or with them where there are some.

    Ask again after hooks or schedulers were added.

    Example:
        >>> weight = torch.tensor(3.0, requires_grad=True)
        >>> weight.grad = torch.tensor(6.0)
        >>> bare_step(torch.optim.SGD([weight], lr=0.5))()
        >>> weight
        tensor(0., requires_grad=True)
    """
    step = type(optimizer).step
    inner = inspect.unwrap(step)
    is_watched = (
        "step" in vars(optimizer)  # a scheduler counts steps
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or optim_globals._global_optimizer_pre_hooks
        or optim_globals._global_optimizer_post_hooks
        or torch.autograd.profiler._is_profiler_enabled
    )
    if is_watched or inner is step or optimizer.defaults.get("differentiable", True):
        return optimizer.step

    def take() -> Any:
        with torch.no_grad():
            return inner(optimizer)

    return take
