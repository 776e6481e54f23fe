"""FedAvg as a plain PyTorch loop: what every comparison is measured against."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["federated_round", "make_clients"]


def make_clients(
    num_clients: int, samples_per_client: int, shape: tuple[int, ...], num_classes: int = 10
) -> list[tuple[Tensor, Tensor]]:
    """Random pictures for every client, all in memory."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(samples_per_client, *shape, generator=generator),
            torch.randint(0, num_classes, (samples_per_client,), generator=generator),
        )
        for _ in range(num_clients)
    ]


def federated_round(
    net: nn.Module, clients: list[tuple[Tensor, Tensor]], batch_size: int, lr: float, momentum: float
) -> None:
    """One round of FedAvg with one local epoch per client, written out."""
    received = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
    mean = {name: torch.zeros_like(tensor) for name, tensor in received.items()}
    total = sum(len(targets) for _, targets in clients)
    for inputs, targets in clients:
        net.load_state_dict(received)
        optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
        order = torch.randperm(len(targets))
        inputs, shuffled = inputs[order], targets[order]
        for start in range(0, len(order), batch_size):
            optimizer.zero_grad()
            logits = net(inputs[start : start + batch_size])
            functional.cross_entropy(logits, shuffled[start : start + batch_size]).backward()
            optimizer.step()
        for name, tensor in net.state_dict().items():
            mean[name].add_(tensor, alpha=len(targets) / total)
    net.load_state_dict(mean)
