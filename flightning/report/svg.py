"""Learning curves as inline SVG: drawn here, so that the page shows them without any script."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from flightning.report.curves import Curve, Look, Panel, frame, marked
from flightning.report.runs import FloatArray

__all__ = ["AREA", "HEIGHT", "WIDTH", "chart", "swatch", "thin", "ticks"]

WIDTH, HEIGHT = 480, 310
AREA = (46.0, 10.0, 468.0, 268.0)
"""Left, top, right and bottom of the plotting area in the picture's units."""

MOST_POINTS = 240
"""A curve of more points than half the pixels of the picture looks the same and only makes the page heavier."""

MARKER_PATHS = {
    "o": "m-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0",
    "s": "m-2.6,-2.6h5.2v5.2h-5.2z",
    "D": "m0,-3.6l3.6,3.6l-3.6,3.6l-3.6,-3.6z",
    "^": "m0,-3.4l3.4,6h-6.8z",
    "v": "m0,3.4l3.4,-6h-6.8z",
    "P": "m-1.1,-3.3h2.2v2.2h2.2v2.2h-2.2v2.2h-2.2v-2.2h-2.2v-2.2h2.2z",
    "X": "m0,-1.6l1.8,-1.8l1.6,1.6l-1.8,1.8l1.8,1.8l-1.6,1.6l-1.8,-1.8l-1.8,1.8l-1.6,-1.6l1.8,-1.8l-1.8,-1.8l1.6,-1.6z",
}


def ticks(low: float, high: float, most: int = 6, smallest: float = 0.0) -> list[float]:
    """Round numbers between two bounds.

    Args:
        low: Lower bound.
        high: Upper bound, above ``low``.
        most: Roughly the largest number of them.
        smallest: Least distance between them.

    Example:
        >>> ticks(0, 120), ticks(0.41, 0.52)
        ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0, 120.0], [0.42, 0.44, 0.46, 0.48, 0.5, 0.52])
    """
    rough = max((high - low) / most, smallest)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def thin(curve: Curve) -> npt.NDArray[np.int64]:
    """Positions of at most ``MOST_POINTS`` points of a curve, the first and the last among them."""
    n = len(curve.x)
    return np.unique(np.linspace(0, n - 1, min(n, MOST_POINTS)).round().astype(np.int64))


def chart(panel: Panel, look: Mapping[str, Look], index: int) -> str:
    """One panel as an ``<svg>`` element.

    Args:
        panel: The curves.
        look: Look of each method; the page's script finds a curve by the position of its method here.
        index: Position of the panel in the data of the page's script.
    """
    x0, x1, y0, y1 = frame(panel)
    left, top, right, bottom = AREA

    def across(x: Any) -> Any:
        return left + (x - x0) / (x1 - x0) * (right - left)

    def down(y: Any) -> Any:
        return bottom - (y - y0) / (y1 - y0) * (bottom - top)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" data-panel="{index}" '
        f'aria-label="{escape(f"accuracy over {panel.title}, {panel.setting}")}">'
    ]
    for value in ticks(y0, y1):
        at = down(value)
        parts.append(f'<path class="grid" d="M{left:g},{at:.1f}H{right:g}"/>')
        parts.append(f'<text x="{left - 6:g}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in ticks(x0, x1, smallest=1.0 if panel.axis.key == "rounds" else 0.0):
        at = across(value)
        parts.append(f'<path class="tick" d="M{at:.1f},{bottom:g}v4"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 17:g}" text-anchor="middle">{_short(value)}</text>')
    parts.append(f'<path class="axis" d="M{left:g},{bottom:g}H{right:g}"/>')
    parts.append(f'<text x="{(left + right) / 2:g}" y="{HEIGHT - 6}" text-anchor="middle">{escape(panel.title)}</text>')
    order = {method: i for i, method in enumerate(look)}
    lines = []
    for position, curve in enumerate(panel.curves):
        keep = thin(curve)
        x, mean, std = across(curve.x[keep]), 100 * curve.mean[keep], 100 * curve.std[keep]
        style = look[curve.method]
        mine = f'data-method="{order[curve.method]}" style="--c:{style.colour}"'
        if np.isfinite(std).all():
            upper, lower = down(np.minimum(mean + std, y1)), down(np.maximum(mean - std, y0))
            around = f"{_line(x, upper)}L{_line(x[::-1], lower[::-1])[1:]}z"
            parts.append(f'<path class="band curve" {mine} d="{around}"/>')
        y = down(mean)
        first, step = marked(len(x), position, len(panel.curves))
        some = range(first, len(x), step)
        marks = "".join(f"M{x[i]:.1f},{y[i]:.1f}{MARKER_PATHS[style.marker]}" for i in some)
        lines.append(f'<g class="curve" {mine}><path class="line" d="{_line(x, y)}"{_dash(style)}/>')
        lines.append(f'<path class="marks" d="{marks}"/></g>')
    parts += lines  # after all bands, which would dim them
    parts.append(f'<path class="cross" d="M0,{top:g}V{bottom:g}"/></svg>')
    return "".join(parts)


def swatch(style: Look) -> str:
    """The line of a method for the legend."""
    return (
        f'<svg class="swatch" viewBox="0 0 30 12" style="--c:{style.colour}" aria-hidden="true">'
        f'<path class="line" d="M0,6H30"{_dash(style)}/>'
        f'<path class="marks" d="M15,6{MARKER_PATHS[style.marker]}"/></svg>'
    )


def _dash(style: Look) -> str:
    return f' stroke-dasharray="{" ".join(f"{d:g}" for d in style.dash)}"' if style.dash else ""


def _line(x: FloatArray, y: FloatArray) -> str:
    return "M" + " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10000 else f"{value:g}"
