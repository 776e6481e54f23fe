"""Learning curves as PNG and PDF, ready for a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flightning.report.curves import Look, Panel

__all__ = ["write_figures"]

WIDTH, HEIGHT = 3.5, 2.5
"""Inches of one panel: a column of a two-column paper."""

STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: some venues refuse the default Type 3 fonts
}


def write_figures(panels: Sequence[Panel], look: Mapping[str, Look], folder: Path) -> list[Path]:
    """Draw one figure per axis, with a panel per setting, as ``accuracy_over_<axis>.png`` and ``.pdf``.

    Args:
        panels: The curves.
        look: Look of each method.
        folder: Where the files go.

    Returns:
        The files.
    """
    import matplotlib
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    by_axis: dict[str, list[Panel]] = {}
    for panel in panels:
        by_axis.setdefault(panel.axis.key, []).append(panel)
    files = []
    with matplotlib.rc_context(STYLE):
        for key, group in by_axis.items():
            columns = min(len(group), 3)
            lines = -(-len(group) // columns)
            names = list(dict.fromkeys(c.method for p in group for c in p.curves))
            across = max(1, min(len(names), round(columns * WIDTH / max(1.0, 0.35 + 0.07 * max(map(len, names))))))
            height = HEIGHT * lines + 0.15 * -(-len(names) // across)
            figure = Figure(figsize=(WIDTH * columns, height), layout="constrained")
            grid = figure.subplots(lines, columns, squeeze=False)
            for axes, panel in zip(grid.flat, group, strict=False):
                _draw(axes, panel, look, title=len(group) > 1)
            for axes in list(grid.flat)[len(group) :]:
                axes.set_axis_off()
            handles = {}
            for axes in grid.flat:
                handles.update({text: h for h, text in zip(*axes.get_legend_handles_labels(), strict=True)})
            figure.legend(
                [handles[n] for n in names],
                names,
                loc="outside lower center",
                ncols=across,
                handlelength=3,
                columnspacing=1.2,
            )
            for suffix, extra in (("png", {}), ("pdf", {"CreationDate": None})):
                file = folder / f"accuracy_over_{key}.{suffix}"
                figure.savefig(file, dpi=300, metadata=extra)
                files.append(file)
    return files


def _draw(axes: Any, panel: Panel, look: Mapping[str, Look], title: bool) -> None:
    for curve in panel.curves:
        style = look[curve.method]
        mean, std = 100 * curve.mean, 100 * curve.std
        axes.plot(
            curve.x,
            mean,
            color=style.colour,
            linestyle=(0, style.dash) if style.dash else "-",
            linewidth=1.2,
            marker=style.marker,
            markersize=3,
            markevery=max(1, len(curve.x) // 6),
            label=curve.method,
        )
        if np.isfinite(std).any():
            axes.fill_between(curve.x, mean - std, mean + std, color=style.colour, alpha=0.18, linewidth=0)
    axes.set_xlabel(panel.title)
    axes.set_ylabel("accuracy (%)")
    axes.margins(x=0.01)
    if title:
        axes.set_title(panel.setting)
