"""What the tables show of a run, and how a number is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flightning.report.runs import FloatArray, Run
from flightning.report.statistics import best, cumulative, estimate, final, traffic
from flightning.report.target import Target

__all__ = [
    "BYTES_PER_PARAMETER",
    "MINUS",
    "NOTHING",
    "TIMES",
    "Quantity",
    "accuracies",
    "byte_unit",
    "costs",
    "fairness",
    "shown",
    "to_target",
]

MINUS, NOTHING, TIMES = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"

BYTES_PER_PARAMETER = 4
"""Weights travel as 32-bit floats."""


@dataclass(frozen=True)
class Quantity:
    """One number of a run, and how a table shows it.

    Args:
        key: Short name, for the CSV.
        title: Heading.
        value: The number, given the setting and the run; NaN if there is none.
        known: Whether a run logged what the number is made of.
        unit: Shown in the heading; ``"bytes"`` stands for the byte unit that fits the column.
        scale: Factor from the number to the unit.
        digits: Decimals, or None for four significant digits.
        better: 1 if more is better, -1 if less is better, 0 if neither.
        absent: Shown if no run has the number: ``"/"`` is the papers' sign for "not reached".
        spread: Deviation within a single run, shown if there is one seed only.
        relative: What stands in brackets: -1 for the baseline's value divided by this one (speed-up), 1 for this one
            divided by the baseline's (multiple), 0 for nothing.
    """

    key: str
    title: str
    value: Callable[[str, Run], float]
    known: Callable[[str, Run], bool]
    unit: str = ""
    scale: float = 1.0
    digits: int | None = None
    better: int = 0
    absent: str = NOTHING
    spread: Callable[[Run], float] | None = None
    relative: int = 0


def shown(mean: float, std: float, digits: int | None) -> str:
    """A mean and its deviation as text.

    Args:
        mean: The mean.
        std: The deviation; NaN is left out.
        digits: Decimals of both, or None for four significant digits of the mean.

    Example:
        >>> shown(97.19, 0.123, 2), shown(0.0123456, math.nan, None), shown(1331.2, 4.0, None)
        ('97.19 ± 0.12', '0.01235', '1331 ± 4')
        >>> shown(0.8, 0.0, None), shown(20, 0.0, 0)
        ('0.8', '20')
    """
    places = digits
    if places is None:
        places = min(8, max(0, 3 - math.floor(math.log10(abs(mean))))) if mean else 0
    deviation = f"{std:.{places}f}" if math.isfinite(std) else ""
    # counts such as rounds or bytes are often the same for all seeds
    if deviation and (digits or float(deviation) != 0):
        return f"{mean:.{places}f} ± {deviation}"
    text = f"{mean:.{places}f}"
    return text.rstrip("0").rstrip(".") if digits is None and "." in text else text


def byte_unit(values: Sequence[float]) -> tuple[str, float]:
    """Decimal byte unit that suits the largest value, and the factor to it.

    Example:
        >>> byte_unit([1.0, 2.5e6])
        ('MB', 1e-06)
    """
    largest = max((v for v in values if math.isfinite(v)), default=0.0)
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= size:
            return unit, 1 / size
    return "B", 1.0


def accuracies(last: int = 1) -> list[Quantity]:
    """Best and final accuracy (paper S1 table 1, S4 table 1, S5 tables I and II)."""

    def spread(run: Run) -> float:
        return estimate([float(v) for v in final(run, last)]).std

    def known(_: str, run: Run) -> bool:
        return True

    return [
        Quantity("best_accuracy", "best accuracy", lambda _, r: best(r), known, "%", 100, 2, better=1),
        Quantity(
            "final_accuracy",
            "final accuracy" if last == 1 else f"accuracy of the last {last} rounds",
            lambda _, r: float(np.mean(final(r, last))),
            known,
            "%",
            100,
            2,
            better=1,
            spread=spread if last > 1 else None,
        ),
    ]


def to_target(target: Target) -> list[Quantity]:
    """Rounds with speed-up (S1 table 2), bytes with their multiple (S4 table 2) and seconds to the target."""

    def total(per_round: Callable[[Run], FloatArray]) -> Callable[[str, Run], float]:
        def value(setting: str, run: Run) -> float:
            position = target.position(setting, run)
            return math.nan if position is None else float(cumulative(per_round(run))[position])

        return value

    def goal(setting: str, _: Run) -> bool:
        return math.isfinite(target.default.get(setting, math.nan))

    return [
        Quantity(
            "rounds_to_target",
            "rounds to target",
            target.rounds,
            goal,
            digits=0,
            better=-1,
            absent="/",
            relative=-1,
        ),
        Quantity(
            "bytes_to_target",
            "sent until target",
            total(traffic),
            lambda s, r: goal(s, r) and _any(traffic(r)),
            "bytes",
            better=-1,
            absent="/",
            relative=1,
        ),
        Quantity(
            "seconds_to_target",
            "time until target",
            total(lambda r: r.logged("round/seconds")),
            lambda s, r: goal(s, r) and _any(r.logged("round/seconds")),
            "s",
            better=-1,
            absent="/",
        ),
    ]


def costs() -> list[Quantity]:
    """Parameters and bytes (S4 table 2), bytes beside the weights (S5 table III) and seconds (S1 table 3) per round."""

    def sent(run: Run) -> FloatArray:
        return run.logged("round/bytes_up") + run.logged("round/bytes_down")

    def extra(run: Run) -> FloatArray:
        both = [run.logged("round/extra_bytes_up"), run.logged("round/extra_bytes_down")]
        return np.where(np.isnan(both).all(axis=0), np.nan, np.nansum(both, axis=0))

    def mean(key: str, title: str, per_round: Callable[[Run], FloatArray], unit: str, **kwargs: Any) -> Quantity:
        def value(_: str, run: Run) -> float:
            return float(np.nanmean(per_round(run))) if _any(per_round(run)) else math.nan

        return Quantity(key, title, value, lambda _, r: bool(np.nansum(per_round(r)) > 0), unit, **kwargs)

    return [
        mean("parameters_per_round", "parameters per round", lambda r: sent(r) / BYTES_PER_PARAMETER, "M", scale=1e-6),
        mean("bytes_per_round", "sent per round", sent, "bytes"),
        mean("extra_bytes_per_round", "sent beside the weights", extra, "bytes"),
        mean("seconds_per_round", "time per round", lambda r: r.logged("round/seconds"), "s", better=-1),
        mean(
            "training_seconds_per_round",
            "local training per round",
            lambda r: r.logged("round/seconds_training"),
            "s",
            better=-1,
        ),
    ]


def fairness() -> list[Quantity]:
    """Accuracy over clients in the last round that measured it."""

    def last(key: str) -> Callable[[Run], float]:
        def value(run: Run) -> float:
            values = run.logged(key)
            return float(values[np.isfinite(values)][-1]) if _any(values) else math.nan

        return value

    def entry(key: str, title: str, value: Callable[[Run], float], better: int, scale: float = 100) -> Quantity:
        unit, digits = ("%", 2) if scale == 100 else ("", 4)
        return Quantity(
            f"clients_{key}",
            title,
            lambda _, r: value(r),
            lambda _, r: math.isfinite(value(r)),
            unit,
            scale,
            digits=digits,
            better=better,
        )

    return [
        entry("mean", "mean over clients", last("clients/accuracy_mean"), 1),
        entry("std", "deviation over clients", last("clients/accuracy_std"), -1),
        entry("worst10", "worst 10 % of clients", last("clients/accuracy_worst10"), 1),
        entry("best10", "best 10 % of clients", last("clients/accuracy_best10"), 1),
        entry("jain", "Jain index", last("clients/jain"), 1, scale=1.0),
        entry("models_std", "deviation over own models", last("val/accuracy_std"), -1),
    ]


def _any(values: FloatArray) -> bool:
    return bool(np.isfinite(values).any())
