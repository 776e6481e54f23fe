"""What one round cost and how its clients did."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flightning.algorithms.base import Client
from flightning.functional.aggregation import Payload, num_bytes

__all__ = ["RoundRecord"]


@dataclass
class RoundRecord:
    """Bytes, losses and seconds of one round.

    Args:
        overhead: Bytes counted for each tensor besides its numbers.

    Example:
        >>> import torch
        >>> record = RoundRecord()
        >>> record.count("down", {"weights": {"w": torch.ones(3)}, "control": torch.ones(2)})
        >>> metrics = record.metrics()
        >>> metrics["round/bytes_down"], metrics["round/extra_bytes_down"]
        (20.0, 8.0)
    """

    overhead: int = 0
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0, "extra_up": 0, "extra_down": 0})
    losses: list[dict[str, float]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    clients: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    bad_updates: int = 0
    learning_rate: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    _started: float = field(default_factory=time.perf_counter)

    def count(self, direction: str, payload: Payload) -> None:
        """Count what one client sends (``up``) or receives (``down``)."""
        # a part of the model with a reduction of its own is called `weights.<part>`
        extra = {name: value for name, value in payload.items() if name.partition(".")[0] != "weights"}
        self.bytes[direction] += num_bytes(payload, self.overhead)
        if extra:
            self.bytes[f"extra_{direction}"] += num_bytes(extra, self.overhead)

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Add the time spent in this block."""
        start = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start

    def add_client(self, client: Client) -> None:
        """Take in the losses of a client that has finished."""
        self.clients.append(client.id)
        self.steps.append(client.steps)
        taken = max(client.num_losses or client.steps, 1)
        self.losses.append({name: float(total) / taken for name, total in client.losses.items()})
        self._add_counts(client.counts)
        self.learning_rate = client.step_sizes[-1] if client.step_sizes else 0.0

    def _add_counts(self, counts: dict[str, int]) -> None:
        for name, number in counts.items():
            self.counts[name] = self.counts.get(name, 0) + number

    def told(self) -> dict[str, Any]:
        """What other processes must know of this one's clients."""
        return {
            "clients": [*zip(self.clients, self.steps, self.losses, strict=True)],
            "bytes": self.bytes,
            "counts": self.counts,
            "bad_updates": self.bad_updates,
            "learning_rate": self.learning_rate,
        }

    def add(self, told: dict[str, Any]) -> None:
        """Take in what another process tells."""
        for client, steps, losses in told["clients"]:
            self.clients.append(client)
            self.steps.append(steps)
            self.losses.append(losses)
        for direction, number in told["bytes"].items():
            self.bytes[direction] += number
        self._add_counts(told["counts"])
        self.bad_updates += told["bad_updates"]
        self.learning_rate = self.learning_rate or told["learning_rate"]

    def average(self, losses: Sequence[list[dict[str, float]]]) -> None:
        """Take the mean of the losses of the same clients on several processes, each scaled to its part of a batch."""
        for own, *parts in zip(self.losses, *losses, strict=True):
            own.update({name: sum(p[name] for p in parts) / len(parts) for name in own})

    def sort(self, cohort: Sequence[int]) -> None:
        """Put the clients into the order of the cohort, so that sums do not depend on who trained whom."""
        place = {client: i for i, client in enumerate(cohort)}
        order = sorted(range(len(self.clients)), key=lambda i: place[self.clients[i]])
        self.clients = [self.clients[i] for i in order]
        self.steps = [self.steps[i] for i in order]
        self.losses = [self.losses[i] for i in order]

    def metrics(self) -> dict[str, float]:
        """Everything, by the name under which it is logged."""
        total = time.perf_counter() - self._started
        others = sum(self.seconds.values())
        return {
            **self._loss_metrics(),
            **{f"round/{name}": float(number) for name, number in self.counts.items()},
            "round/clients": float(len(self.clients)),
            "round/bad_updates": float(self.bad_updates),
            "round/lr": self.learning_rate,
            "round/bytes_up": float(self.bytes["up"]),
            "round/bytes_down": float(self.bytes["down"]),
            "round/extra_bytes_up": float(self.bytes["extra_up"]),
            "round/extra_bytes_down": float(self.bytes["extra_down"]),
            "round/seconds": total,
            "round/seconds_training": total - others,
            "round/seconds_aggregation": self.seconds.get("aggregation", 0.0),
            "round/seconds_evaluation": self.seconds.get("evaluation", 0.0),
        }

    def _loss_metrics(self) -> dict[str, float]:
        if not self.losses:
            return {}
        names = sorted({name for losses in self.losses for name in losses})
        weights = np.maximum(self.steps, 1)
        terms = {n: float(np.average([x.get(n, 0.0) for x in self.losses], weights=weights)) for n in names}
        totals = [sum(x.values()) for x in self.losses]
        return {
            "round/loss": sum(terms.values()),
            **{f"round/{name}": value for name, value in terms.items()},
            "round/loss_std": float(np.std(totals)),
            "round/loss_min": float(np.min(totals)),
            "round/loss_max": float(np.max(totals)),
        }
