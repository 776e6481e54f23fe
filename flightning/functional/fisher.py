"""The diagonal of the Fisher information of a classifier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

__all__ = ["diagonal_fisher"]


def diagonal_fisher(
    network: nn.Module, names: Sequence[str], batches: Iterable[tuple[Tensor, Tensor]], chunk_size: int = 16
) -> dict[str, Tensor]:
    r"""Compute :math:`\frac{1}{n} \sum_i (\nabla_w \log p_w(y_i \mid x_i))^2`, one gradient per sample.

    Squaring the gradient of a batch instead gives another, much smaller number.

    Args:
        network: Gives logits; it is run in evaluation mode.
        names: Parameters of the network to look at.
        batches: Inputs and targets.
        chunk_size: Samples whose gradients are held at once.

    Example:
        >>> net = nn.Linear(1, 2, bias=False)
        >>> nn.init.zeros_(net.weight).tolist()  # p = 1/2: each gradient is (1/2 - [y = c]) x
        [[0.0], [0.0]]
        >>> diagonal_fisher(net, ["weight"], [(torch.tensor([[2.0], [4.0]]), torch.tensor([0, 1]))])["weight"].tolist()
        [[2.5], [2.5]]
    """
    named = dict(network.named_parameters())
    wanted = {n: named[n].detach() for n in names}
    totals = {n: torch.zeros_like(w, dtype=torch.promote_types(w.dtype, torch.float32)) for n, w in wanted.items()}
    modes = [module for module in network.modules() if module.training]
    for module in modes:
        module.training = False

    def loss(parameters: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        logits: Tensor = functional_call(network, parameters, (sample[None],))
        return functional.cross_entropy(logits, target[None])

    count = 0
    for inputs, targets in batches:
        for chunk, goals in zip(inputs.split(chunk_size), targets.split(chunk_size), strict=True):  # type: ignore[no-untyped-call]
            gradients = vmap(grad(loss), in_dims=(None, 0, 0))(wanted, chunk, goals)
            for name, gradient in gradients.items():
                totals[name] += gradient.square().sum(0)
        count += len(targets)
    for module in modes:
        module.training = True
    return {name: total / max(count, 1) for name, total in totals.items()}
