r"""Means over clients that keep one accumulator, however many clients there are.

A *payload* is what crosses between server and client: named tensors, or named dicts of tensors.
Each entry of an upload is reduced over the cohort by the rule declared for its name:

======== ===========================================================================
mean     weighted by the clients' weights, :math:`\sum_k p_k x_k` with :math:`\sum_k p_k = 1`
uniform  :math:`\frac{1}{m} \sum_k x_k`
sum      :math:`\sum_k x_k`
stack    a dict from client number to upload, in that order (memory grows with the cohort)
======== ===========================================================================

Integer tensors (BatchNorm's batch counter) are never averaged: ``mean`` and ``uniform`` take their maximum.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from flightning.errors import ConfigurationError

__all__ = ["REDUCTIONS", "Payload", "Reducer", "average", "flat_items", "is_finite", "num_bytes"]

Payload = dict[str, Any]

REDUCTIONS = ("mean", "uniform", "sum", "stack")


def flat_items(payload: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Every tensor of a payload with its path.

    Example:
        >>> [path for path, _ in flat_items({"weights": {"w": torch.ones(2)}, "h": torch.ones(())})]
        [('weights', 'w'), ('h',)]
    """
    for name, value in payload.items():
        if isinstance(value, Mapping):
            for path, tensor in flat_items(value):
                yield (name, *path), tensor
        else:
            yield (name,), value


def num_bytes(payload: Mapping[str, Any], overhead: int = 0) -> int:
    """Bytes of all tensors of a payload.

    Args:
        payload: What crosses between server and client.
        overhead: Bytes that a file format adds to each tensor; ``0`` counts the numbers alone.

    Example:
        >>> num_bytes({"weights": {"w": torch.ones(2, 3)}, "steps": torch.ones((), dtype=torch.int64)})
        32
        >>> num_bytes({"map": torch.ones(512)}, overhead=760)  # table III of the rFedAvg paper
        2808
    """
    return sum(t.numel() * t.element_size() + overhead for _, t in flat_items(payload))


def is_finite(payload: Mapping[str, Any]) -> bool:
    """Whether no floating-point tensor of the payload holds NaN or infinity."""
    tensors = [t for _, t in flat_items(payload) if t.is_floating_point()]
    # one pass without a copy settles nearly all cases: NaN and infinity never leave a sum
    if not tensors or _all_finite([t.sum() for t in tensors]):
        return True
    # but large numbers may overflow it; a sum of absolute values in double precision is finite if they all are
    return _all_finite([t.abs().sum(dtype=torch.float64) for t in tensors])


def _all_finite(numbers: list[Tensor]) -> bool:
    return math.isfinite(functools.reduce(torch.add, numbers).detach())


class Reducer:
    """Collect the uploads of a cohort and reduce each entry by its rule, in double precision.

    Args:
        rules: Reduction of each top-level upload name; names that are missing are an error when they arrive.

    Example:
        >>> reducer = Reducer({"weights": "mean", "count": "sum"})
        >>> reducer.add(0, 1.0, {"weights": {"w": torch.tensor([1.0])}, "count": torch.tensor(3.0)})
        >>> reducer.add(1, 3.0, {"weights": {"w": torch.tensor([5.0])}, "count": torch.tensor(4.0)})
        >>> reducer.result()
        {'weights': {'w': tensor([4.], dtype=torch.float64)}, 'count': tensor(7., dtype=torch.float64)}
    """

    def __init__(self, rules: Mapping[str, str]) -> None:
        self.rules = dict(rules)
        self.sums: dict[tuple[str, ...], Tensor] = {}
        self.maxima: dict[tuple[str, ...], Tensor] = {}
        self.stacks: dict[str, dict[int, Any]] = {}
        self.mass = torch.zeros(2, dtype=torch.float64)  # total weight, number of clients

    @property
    def num_clients(self) -> int:
        """Clients collected so far."""
        return int(self.mass[1])

    def add(self, client: int, weight: float, upload: Payload) -> None:
        """Take one client's upload in; its tensors may be reused afterwards."""
        for name in upload:
            if name not in self.rules:
                raise ConfigurationError(
                    f"upload `{name}` has no reduction: declare one in the class of the algorithm, `reductions = "
                    f"{{{name!r}: 'mean'}}` (or {', '.join(f'`{rule}`' for rule in REDUCTIONS[1:])})."
                )
            if self.rules[name] == "stack":
                # one memory order, so that norms have the same last bits on every process
                kept = apply_to_collection(
                    upload[name], Tensor, lambda t: t.detach().clone(memory_format=torch.contiguous_format)
                )
                self.stacks.setdefault(name, {})[client] = kept
        for path, tensor in flat_items({n: v for n, v in upload.items() if self.rules[n] != "stack"}):
            if not tensor.is_floating_point() and self.rules[path[0]] != "sum":
                known = self.maxima.get(path)
                self.maxima[path] = tensor.detach().clone() if known is None else torch.maximum(known, tensor)
                continue
            if path not in self.sums:
                self.sums[path] = torch.zeros_like(tensor, dtype=torch.float64, requires_grad=False)
            self.sums[path].add_(tensor.detach(), alpha=weight if self.rules[path[0]] == "mean" else 1.0)
        self.mass += torch.tensor([weight, 1.0], dtype=torch.float64)

    def result(self) -> Payload:
        """Reduced uploads; ``stack`` entries are dicts in order of the client number."""
        weight, count = self.mass.tolist()
        divisors = {"mean": weight, "uniform": count, "sum": 1.0}
        reduced: Payload = {}
        for path, total in self.sums.items():
            _put(reduced, path, total / divisors[self.rules[path[0]]])
        for path, highest in self.maxima.items():
            _put(reduced, path, highest)
        for name, uploads in self.stacks.items():
            reduced[name] = {client: uploads[client] for client in sorted(uploads)}
        return reduced


def average(stack: Mapping[int, Mapping[str, Tensor]], weights: Mapping[int, float]) -> dict[str, Tensor]:
    """Weighted mean of a stack of models, as the rule ``mean`` would have made it.

    Args:
        stack: Weights by name of each client.
        weights: Weight of each client, not normalised.

    Example:
        >>> average({3: {"w": torch.tensor([1.0])}, 5: {"w": torch.tensor([5.0])}}, {3: 1.0, 5: 3.0})
        {'w': tensor([4.], dtype=torch.float64)}
    """
    reducer = Reducer({"weights": "mean"})
    for client, model in stack.items():
        reducer.add(client, weights[client], {"weights": dict(model)})
    mean: dict[str, Tensor] = reducer.result().get("weights", {})
    return mean


def _put(payload: Payload, path: tuple[str, ...], tensor: Tensor) -> None:
    for name in path[:-1]:
        payload = payload.setdefault(name, {})
    payload[path[-1]] = tensor
