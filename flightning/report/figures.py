"""Learning curves and partitions as PNG and PDF, ready for a paper."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from flightning.report.arrange import Comparison
from flightning.report.curves import Look, Panel, frame, marked

__all__ = ["write_figures", "write_partitions"]

WIDTH, HEIGHT = 3.5, 2.5
"""Inches of one panel: a column of a two-column paper."""

LETTERS = 20
"""Letters of 6 points in an inch."""

PICTURE_DPI = 150
"""Dots per inch of the pictures that runs leave."""

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


def write_partitions(compared: Comparison, folder: Path) -> list[Path]:
    """Put the picture of each setting's partition beside the report, as ``partition.png`` and ``.pdf``.

    Args:
        compared: The runs; of several settings, each has its name in that of its files.
        folder: Where the files go.

    Returns:
        The files; none of a picture that cannot be read.
    """
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    files: list[Path] = []
    for setting in compared.settings:
        run = compared.pictured(setting)
        if run is None or run.picture is None:
            continue
        try:
            picture = imread(run.picture)
        except (OSError, SyntaxError):  # what matplotlib's reader of PNG raises for a file that was cut
            continue
        name = "-".join(re.findall(r"[a-z0-9._=]+", setting.lower()))
        stem = f"partition_{name}" if len(compared.settings) > 1 else "partition"
        height, width = picture.shape[:2]
        figure = Figure(figsize=(width / PICTURE_DPI, height / PICTURE_DPI), dpi=PICTURE_DPI)
        figure.figimage(picture)
        with suppress(shutil.SameFileError):  # the report lies in the folder of the run
            shutil.copyfile(run.picture, folder / f"{stem}.png")
        figure.savefig(folder / f"{stem}.pdf", dpi=PICTURE_DPI, metadata={"CreationDate": None})
        files += [folder / f"{stem}.png", folder / f"{stem}.pdf"]
    return files


def write_figures(
    panels: Sequence[Panel], look: Mapping[str, Look], folder: Path, notices: Sequence[str] = ()
) -> list[Path]:
    """Draw one figure per axis, with a panel per setting, as ``accuracy_over_<axis>.png`` and ``.pdf``.

    Args:
        panels: The curves.
        look: Look of each method.
        folder: Where the files go.
        notices: Lines on top that no reader may miss.

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
            columns = 2 if len(group) == 4 else min(len(group), 3)
            lines = -(-len(group) // columns)
            names, across = _legend_layout([c.method for p in group for c in p.curves], columns * WIDTH)
            said = [line for n in notices for line in textwrap.wrap(n, int(LETTERS * columns * WIDTH))]
            height = HEIGHT * lines + 0.17 * -(-len(names) // across) + 0.1 * len(said)
            figure = Figure(figsize=(WIDTH * columns, height), layout="constrained")
            grid = figure.subplots(lines, columns, squeeze=False)
            if said:
                figure.suptitle("\n".join(said), fontsize=6, parse_math=False)
            handles = {}
            for axes, panel in zip(grid.flat, group, strict=False):
                handles.update(_draw(axes, panel, look, title=len(group) > 1))
            for axes in list(grid.flat)[len(group) :]:
                axes.set_axis_off()
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


def _legend_layout(methods: Sequence[str], width: float) -> tuple[list[str], int]:
    """Methods in the order that makes matplotlib's column-wise legend read row by row, and the number of columns."""
    names = list(dict.fromkeys(methods))
    entry = 0.6 + 0.07 * max(map(len, names))  # inches: line, gaps and letters of 8 points
    most = max(1, min(len(names), int(width / entry)))
    across = -(-len(names) // -(-len(names) // most))
    return [name for column in range(across) for name in names[column::across]], across


def _draw(axes: Any, panel: Panel, look: Mapping[str, Look], title: bool) -> dict[str, Any]:
    """Draw one panel; the lines by method, for the legend."""
    x0, x1, y0, y1 = frame(panel)
    lines = {}
    for position, curve in enumerate(panel.curves):
        style = look[curve.method]
        mean, std = 100 * curve.mean, 100 * curve.std
        (lines[curve.method],) = axes.plot(
            curve.x,
            mean,
            color=style.colour,
            linestyle=(0, style.dash) if style.dash else "-",
            linewidth=1.2,
            marker=style.marker,
            markersize=3,
            markevery=marked(len(curve.x), position, len(panel.curves)),
        )
        if np.isfinite(std).any():
            axes.fill_between(curve.x, mean - std, mean + std, color=style.colour, alpha=0.18, linewidth=0)
    axes.set_xlim(x0 - 0.01 * (x1 - x0), x1 + 0.01 * (x1 - x0))
    axes.set_ylim(y0, y1)
    if panel.axis.key == "rounds":
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(panel.title)
    axes.set_ylabel("accuracy (%)")
    if title:
        axes.set_title(panel.setting)
    return lines
