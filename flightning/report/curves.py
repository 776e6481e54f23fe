"""Learning curves averaged over seeds, and the look of each method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from flightning.report.arrange import Comparison
from flightning.report.quantities import byte_unit
from flightning.report.runs import FloatArray, Run
from flightning.report.statistics import cumulative, traffic

__all__ = [
    "AXES",
    "COLOURS",
    "DASHES",
    "MARKERS",
    "Axis",
    "Curve",
    "Look",
    "Panel",
    "frame",
    "looks",
    "marked",
    "panels",
]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#888888")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart; yellow and black are left out because one
vanishes on white and the other on black."""

MARKERS = "osD^vPX"
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2.5), (2, 2), (7, 2, 2, 2))


@dataclass(frozen=True)
class Axis:
    """A possible x axis."""

    key: str
    title: str


AXES = (Axis("rounds", "rounds"), Axis("bytes", "bytes sent"), Axis("seconds", "seconds"))


@dataclass(frozen=True)
class Look:
    """Colour, dash pattern (in points) and marker of a method."""

    colour: str
    dash: tuple[float, ...]
    marker: str


@dataclass(frozen=True)
class Curve:
    """Mean accuracy of a method over an axis; ``std`` is NaN for one seed."""

    method: str
    x: FloatArray
    mean: FloatArray
    std: FloatArray
    rounds: FloatArray
    seeds: int


@dataclass(frozen=True)
class Panel:
    """Curves of all methods in one setting over one axis."""

    setting: str
    axis: Axis
    title: str
    curves: Sequence[Curve]


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Look of each method: seven colours and markers, then the same with other dashes.

    Example:
        >>> looks(["FedAvg", "FedProx"])["FedProx"]
        Look(colour='#D55E00', dash=(), marker='s')
    """
    n = len(COLOURS)
    return {m: Look(COLOURS[i % n], DASHES[i // n % len(DASHES)], MARKERS[i % n]) for i, m in enumerate(methods)}


def panels(compared: Comparison) -> list[Panel]:
    """All curves, setting by setting; an axis that no run of a setting logged is left out.

    At each round the mean is over the seeds of the method, of the accuracy as well as of the bytes or seconds so far.
    Only rounds that every seed evaluated count, so that a run that stopped early cannot bend the curve.

    Args:
        compared: The runs.
    """
    found = []
    for setting in compared.settings:
        for axis in AXES:
            curves = [c for m in compared.methods if (c := _curve(m, axis, compared.of(setting, m))) is not None]
            if not curves:
                continue
            title = axis.title
            if axis.key == "bytes":
                unit, scale = byte_unit([float(c.x[-1]) for c in curves])
                curves = [Curve(c.method, c.x * scale, c.mean, c.std, c.rounds, c.seeds) for c in curves]
                title = f"{unit} sent"
            found.append(Panel(setting, axis, title, curves))
    return found


def frame(panel: Panel) -> tuple[float, float, float, float]:
    """Bounds ``(x0, x1, y0, y1)`` of a panel's data, accuracies in percent, bands included."""
    x1 = max(float(c.x[-1]) for c in panel.curves)
    x0 = min(float(c.x[0]) for c in panel.curves) if panel.axis.key == "rounds" else 0.0
    spread = [np.nan_to_num(c.std) for c in panel.curves]
    low = 100 * min(float((c.mean - s).min()) for c, s in zip(panel.curves, spread, strict=True))
    high = 100 * max(float((c.mean + s).max()) for c, s in zip(panel.curves, spread, strict=True))
    room = max(0.03 * (high - low), 0.1)
    return x0, x1 if x1 > x0 else x0 + 1, max(0.0, low - room), min(100.0, high + room)


def marked(points: int, position: int, curves: int) -> tuple[int, int]:
    """First point of a curve that carries its marker, and the step to the next.

    Each curve begins elsewhere, so that two that coincide are seen to be two.

    Args:
        points: Points of the curve.
        position: Its place among the curves.
        curves: Number of curves.

    Example:
        >>> [marked(20, i, 3) for i in range(3)]
        [(0, 3), (1, 3), (2, 3)]
    """
    step = max(1, points // 6)
    return position * step // max(curves, 1), step


def _curve(method: str, axis: Axis, runs: Sequence[Run]) -> Curve | None:
    """Average of the runs, or None if they have nothing on this axis."""
    if not runs:
        return None
    positions: list[FloatArray] = []
    for run in runs:
        if axis.key == "rounds":
            x = run.rounds.astype(np.float64)
        else:
            x = cumulative(traffic(run) if axis.key == "bytes" else run.logged("round/seconds"))
        positions.append(x)
    evaluated = [
        run.rounds[np.isfinite(run.logged("val/accuracy")) & np.isfinite(x)]
        for run, x in zip(runs, positions, strict=True)
    ]
    common = reduce(np.intersect1d, evaluated)
    if not len(common):
        return None
    at = [np.searchsorted(run.rounds, common) for run in runs]
    y = np.array([run.logged("val/accuracy")[i] for run, i in zip(runs, at, strict=True)])
    x = np.array([p[i] for p, i in zip(positions, at, strict=True)]).mean(axis=0)
    std = y.std(axis=0, ddof=1) if len(runs) > 1 else np.full(len(common), np.nan)
    return Curve(method, x, y.mean(axis=0), std, common.astype(np.float64), len(runs))
