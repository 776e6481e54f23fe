"""The numbers of the tables: means over seeds, paired differences, rounds to a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flightning.report.runs import FloatArray, Run

__all__ = [
    "Difference",
    "Estimate",
    "best",
    "cumulative",
    "estimate",
    "final",
    "paired_difference",
    "reached",
    "traffic",
]


@dataclass(frozen=True)
class Estimate:
    """Mean and sample standard deviation of ``n`` values; the deviation of one value is NaN."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean difference of ``n`` pairs with its confidence interval; the interval of one pair is NaN."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def estimate(values: Sequence[float]) -> Estimate:
    r"""Mean and sample standard deviation :math:`\sqrt{\sum (x - \bar x)^2 / (n - 1)}` of the finite values.

    Example:
        >>> estimate([0.9, 0.7, math.nan])
        Estimate(mean=0.8, std=0.14142135623730953, n=2)
    """
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return Estimate(math.nan, math.nan, 0)
    mean = sum(known) / len(known)
    std = math.sqrt(sum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else math.nan
    return Estimate(mean, std, len(known))


def paired_difference(
    a: Mapping[int | None, float], b: Mapping[int | None, float], confidence: float = 0.95
) -> Difference:
    r"""Mean of :math:`a_s - b_s` over the seeds that both have, with Student's t interval.

    .. math:: \bar d \pm t_{(1 + c)/2,\, n - 1}\, s_d / \sqrt{n}

    Args:
        a: Value of each seed of one method.
        b: Value of each seed of the other.
        confidence: Level :math:`c` of the interval.

    Example:
        >>> d = paired_difference({0: 0.92, 1: 0.94}, {0: 0.90, 1: 0.91, 2: 0.99})
        >>> round(d.mean, 4), round(d.low, 4), round(d.high, 4), d.n
        (0.025, -0.0385, 0.0885, 2)
    """
    found = estimate([a[seed] - b[seed] for seed in a if seed in b])
    if found.n < 2:
        return Difference(found.mean, math.nan, math.nan, found.n)
    from scipy.special import stdtrit

    half = float(stdtrit(found.n - 1, (1 + confidence) / 2)) * found.std / math.sqrt(found.n)
    return Difference(found.mean, found.mean - half, found.mean + half, found.n)


def best(run: Run) -> float:
    """Highest accuracy over the rounds."""
    return float(np.nanmax(run.logged("val/accuracy")))


def final(run: Run, last: int = 1) -> FloatArray:
    """Accuracies of the last evaluated rounds."""
    accuracy = run.logged("val/accuracy")
    return accuracy[np.isfinite(accuracy)][-last:]


def reached(run: Run, target: float) -> int | None:
    """Position in ``run.rounds`` of the first round with at least the target accuracy; None if there is none."""
    if not math.isfinite(target):
        return None
    # accuracies are logged from float32: 0.9 arrives as 0.8999999762
    hits = np.flatnonzero(run.logged("val/accuracy") >= target - 1e-6)
    return int(hits[0]) if len(hits) else None


def traffic(run: Run) -> FloatArray:
    """Bytes of each round, up and down, all clients, one-off bytes in the round that logged them; NaN if unknown.

    One-off bytes are those of the set-up and of CCVR.
    """
    both = [run.logged("round/bytes_up"), run.logged("round/bytes_down")]
    unknown = np.isnan(both).all(axis=0)
    once = [run.logged(key) for key in ("round/setup_bytes", "ccvr/bytes_up", "ccvr/bytes_down")]
    total = np.nansum([*both, *once], axis=0)
    return np.where(unknown, np.nan, total)


def cumulative(values: FloatArray) -> FloatArray:
    """Running total that passes over unknown rounds; all NaN if every round is unknown."""
    if np.isnan(values).all():
        return np.full(len(values), np.nan)
    return np.asarray(np.nancumsum(values), dtype=np.float64)
