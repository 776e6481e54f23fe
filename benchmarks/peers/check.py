"""Whether all contestants do the same work: weights after a few rounds with a fixed order of batches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]

#: Largest difference, as a part of how far the weights have moved.
TOLERANCE = 1e-4

#: Part of its samples that each client keeps while weights are compared. Over the hundreds of local steps of A rounding
#: errors grow to per cents: so far apart are a hand-written loop in one and in two processes, which differ by nothing
#: but the order of a sum. Over a tenth of them, two versions of PyTorch are 1e-4 apart.
SHARES = {"A": 0.05, "B": 1.0, "C": 1.0}


def difference(weights: Weights, reference: Weights, initial: Weights) -> float:
    """Distance of two results, as a part of the distance that the reference has come from the initial weights.

    Example:
        >>> difference(np.float32([3, 3]), np.float32([3, 4]), np.float32([0, 0]))
        0.2
    """
    exact = [w.astype(np.float64) for w in (weights, reference, initial)]
    return float(np.linalg.norm(exact[0] - exact[1]) / np.linalg.norm(exact[1] - exact[2]))


def compare(found: Mapping[str, Weights], initial: Weights) -> dict[str, float]:
    """Difference of each contestant from the first."""
    reference = next(iter(found.values()))
    return {name: difference(weights, reference, initial) for name, weights in found.items()}


def refuse_differences(differences: Mapping[str, float]) -> None:
    """Stop where contestants do different work, since their times would mean nothing.

    Raises:
        RuntimeError: If a difference is larger than `TOLERANCE`, or not a number.
    """
    wrong = {name: value for name, value in differences.items() if not value <= TOLERANCE}
    if wrong:
        raise RuntimeError(f"weights differ by more than {TOLERANCE:g} of their way: {wrong}")
