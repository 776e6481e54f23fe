"""One workload as a file: samples, clients, cohorts, initial weights, test set. All peers read the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.plain import WORKLOADS, Workload


@dataclass(frozen=True)
class Task:
    """What a contestant is given.

    Args:
        name: The workload, one of `WORKLOADS`.
        inputs: Training samples, client after client.
        targets: Their labels.
        sizes: Samples of each client.
        cohorts: Clients of each round.
        weights: Initial weights, in one vector.
        test_inputs: Samples of the test set.
        test_targets: Their labels.
    """

    name: str
    inputs: NDArray[np.float32]
    targets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    cohorts: NDArray[np.int64]
    weights: NDArray[np.float32]
    test_inputs: NDArray[np.float32]
    test_targets: NDArray[np.int64]

    @property
    def work(self) -> Workload:
        """How it is trained."""
        return WORKLOADS[self.name]

    @property
    def num_clients(self) -> int:
        """Clients in all."""
        return len(self.sizes)

    @property
    def initial(self) -> Tensor:
        """The initial weights."""
        return torch.from_numpy(self.weights)

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        """The test set."""
        return torch.from_numpy(self.test_inputs), torch.from_numpy(self.test_targets)

    def cohort(self, index: int) -> list[int]:
        """The clients of a round, counted from 0."""
        return [int(c) for c in self.cohorts[index]]

    def clients(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs and labels of every client; they share the memory of this task."""
        sizes = self.sizes.tolist()
        inputs, targets = torch.from_numpy(self.inputs), torch.from_numpy(self.targets)
        return list(zip(torch.split(inputs, sizes), torch.split(targets, sizes), strict=True))

    def save(self, path: Path) -> None:
        """Write it to a file."""
        arrays: dict[str, Any] = asdict(self)
        np.savez(path, **arrays)

    @staticmethod
    def load(path: Path) -> Task:
        """Read it from a file."""
        with np.load(path) as file:
            return Task(name=str(file["name"]), **{key: file[key] for key in file.files if key != "name"})


def cuts(sizes: Sequence[int], processes: int) -> list[int]:
    """Where to cut a row of clients into pieces of about equally many samples, with 0 and the end.

    Example:
        >>> cuts([5, 1, 1, 1, 2], 2)
        [0, 1, 5]
    """
    ends = np.cumsum(sizes)
    inner = [int(np.searchsorted(ends, ends[-1] * k / processes)) + 1 for k in range(1, processes)]
    return [0, *inner, len(sizes)]
