"""How evenly a model serves the clients."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["fairness", "jain_index"]

Values = npt.NDArray[np.float64]


def jain_index(values: Values) -> float:
    r"""Jain's index :math:`(\sum_k a_k)^2 / (n \sum_k a_k^2)`: 1 where all are equal, :math:`1/n` where one has all.

    All zeros are equal, so their index is 1.

    Example:
        >>> jain_index(np.array([0.5, 0.5])), jain_index(np.array([1.0, 0.0, 0.0, 0.0]))
        (1.0, 0.25)
    """
    squares = len(values) * float(np.square(values).sum())
    return float(values.sum()) ** 2 / squares if squares else 1.0


def fairness(accuracies: Values, fraction: float = 0.1) -> dict[str, float]:
    """Spread of the accuracies of clients, each of which counts the same.

    Args:
        accuracies: Accuracy of each client, at least one.
        fraction: Share of the clients whose mean is ``worst10`` and ``best10``, rounded up to at least one client.

    Returns:
        ``accuracy_mean``, ``accuracy_std`` (of the population), ``accuracy_worst10``, ``accuracy_best10`` and ``jain``.

    Example:
        >>> numbers = fairness(np.array([0.25, 0.5, 0.75, 1.0]))
        >>> numbers["accuracy_mean"], numbers["accuracy_worst10"], numbers["accuracy_best10"]
        (0.625, 0.25, 1.0)
    """
    ordered = np.sort(accuracies)
    count = max(1, math.ceil(fraction * len(ordered)))
    return {
        "accuracy_mean": float(ordered.mean()),
        "accuracy_std": float(ordered.std()),
        "accuracy_worst10": float(ordered[:count].mean()),
        "accuracy_best10": float(ordered[-count:].mean()),
        "jain": jain_index(ordered),
    }
