"""Pictures of a partition and of a run. matplotlib is imported only when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flightning.datamodules.view import View

__all__ = [
    "confusion_figure",
    "learning_curve_figure",
    "partition_figure",
    "partitions_figure",
    "samples_figure",
    "save_figure",
    "sizes_figure",
    "view_figures",
]

_BLUE, _ORANGE = "#0072b2", "#d55e00"

#: More clients than this cannot be told apart as bubbles.
_MOST_BUBBLES = 60
_MOST_NAMED_CLASSES = 26
#: Side of a picture in a strip, as a share of its cell; its label stands in the rest.
_PICTURE = 0.76


def partition_figure(
    counts: NDArray[np.int64], class_names: Sequence[str] | None = None, title: str = "Samples per client and class"
) -> Any:
    """Bubble chart of a partition: client by class, area by number of samples.

    Args:
        counts: Samples of each class (columns) at each client (rows).
        class_names: Names of the classes; their numbers where it is missing.
        title: Heading.

    Returns:
        A matplotlib figure. More than 60 clients are drawn as a map, ordered by their most frequent class.
    """
    return partitions_figure({title: counts}, class_names)


def partitions_figure(partitions: Mapping[str, NDArray[np.int64]], class_names: Sequence[str] | None = None) -> Any:
    """Bubble charts of several partitions of the same classes side by side, on one scale.

    Args:
        partitions: Samples of each class (columns) at each client (rows), by heading.
        class_names: Names of the classes; their numbers where it is missing.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.figure import Figure

    num_classes = next(iter(partitions.values())).shape[1]
    widths = [_panel_width(len(counts), len(partitions)) for counts in partitions.values()]
    height = min(10.0, 1.9 + 0.32 * min(num_classes, _MOST_NAMED_CLASSES))
    figure = Figure(figsize=(sum(widths) + 0.9, height), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(partitions), sharey=True, gridspec_kw={"width_ratios": widths}))
    largest = max(int(counts.max(initial=0)) for counts in partitions.values())
    for axes, (title, counts) in zip(panels, partitions.items(), strict=True):
        if len(counts) <= _MOST_BUBBLES:
            _draw_bubbles(axes, counts, largest)
        else:
            image = _draw_map(axes, counts)
            figure.colorbar(image, ax=axes, label="share of the client's samples", shrink=0.8)
        axes.set_ylim(-0.7, num_classes - 0.3)
        axes.set_title(title, fontsize=11)
        _open_sides(axes)
    if num_classes <= _MOST_NAMED_CLASSES:
        panels[0].set_yticks(range(num_classes), class_names or [str(c) for c in range(num_classes)])
    panels[0].set_ylabel("class")
    return figure


def _panel_width(num_clients: int, panels: int) -> float:
    wide = min(11.0, 1.6 + 0.42 * num_clients) if num_clients <= _MOST_BUBBLES else 8.0
    return min(wide, max(3.2, 15.0 / panels))


def _draw_bubbles(axes: Any, counts: NDArray[np.int64], largest: int) -> None:
    clients, classes = np.nonzero(counts)
    area = 380 * counts[clients, classes] / max(largest, 1)
    # the smallest bubble is still visible: one sample is not none
    axes.scatter(clients, classes, s=np.maximum(area, 1.5), c=_BLUE, alpha=0.8, linewidths=0)
    axes.set_xticks(range(0, len(counts), 1 if len(counts) <= 30 else 5))
    axes.set_xlim(-0.7, len(counts) - 0.3)
    axes.set_xlabel(f"client (largest bubble: {largest} samples)" if len(counts) > 7 else "client")
    axes.grid(visible=True, alpha=0.2)


def _draw_map(axes: Any, counts: NDArray[np.int64]) -> Any:
    shares = counts / np.maximum(counts.sum(axis=1), 1)[:, None]
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    # many classes make all shares small: the largest one is the darkest
    darkest = float(shares.max()) or 1.0
    image = axes.imshow(
        shares[order].T, aspect="auto", origin="lower", cmap="Blues", vmin=0, vmax=darkest, interpolation="nearest"
    )
    axes.set_xlabel(f"{len(counts)} clients, ordered by their most frequent class")
    return image


def sizes_figure(sizes: Mapping[str, NDArray[np.int64]]) -> Any:
    """Histograms of the number of samples of a client, below each other on one scale.

    Args:
        sizes: Samples of each client, by heading.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.4, 1.2 + 2.0 * len(sizes)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(sizes), 1, sharex=True))
    together = np.concatenate(list(sizes.values()))
    low, high = int(together.min(initial=0)), int(together.max(initial=1))
    # bins between whole numbers: no bin can catch one size more than its neighbour
    step = max(1, -(-(high - low + 1) // 30))
    bins = np.arange(low, high + step + 1, step) - 0.5
    for axes, (title, own) in zip(panels, sizes.items(), strict=True):
        axes.hist(own, bins=bins, color=_BLUE, alpha=0.85, edgecolor="white", linewidth=0.5)
        axes.axvline(float(np.median(own)), color=_ORANGE, linewidth=1.5, label=f"median {np.median(own):g}")
        axes.legend(frameon=False, fontsize=9)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.set_ylabel("clients")
        axes.set_title(title, fontsize=11)
        _open_sides(axes)
    panels[-1].set_xlabel("samples of a client")
    return figure


def samples_figure(
    rows: Mapping[str, Sequence[tuple[NDArray[np.float64], str, bool]]],
    title: str = "Samples as the clients see them",
) -> Any:
    """Strip of pictures for each client, each with its label.

    Args:
        rows: For each client, by name, pictures (height x width or height x width x 3, from 0 to 1), their labels, and
            whether a skew has changed the label.
        title: Heading.

    Returns:
        A matplotlib figure. Changed labels are orange.
    """
    from matplotlib.figure import Figure

    columns = max(len(row) for row in rows.values())
    figure = Figure(figsize=(1.2 + 0.8 * columns, 0.5 + 0.8 * len(rows)), layout="constrained")
    # one axes for all: a grid of them takes seconds to lay out
    axes = figure.subplots()
    for line, (name, row) in enumerate(rows.items()):
        axes.text(-0.15, line + 0.5, name, ha="right", va="center", fontsize=10)
        for column, (picture, label, is_changed) in enumerate(row):
            height, width = (_PICTURE * side / max(picture.shape[:2]) for side in picture.shape[:2])
            left = column + (_PICTURE - width) / 2
            extent = (left, left + width, line + 1, line + 1 - height)
            axes.imshow(np.clip(picture, 0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest", extent=extent)
            color = _ORANGE if is_changed else "black"
            axes.text(column + _PICTURE / 2, line + 0.97 - height, label, ha="center", fontsize=8, color=color)
    axes.set(xlim=(0, columns), ylim=(len(rows), 0), aspect="equal")
    axes.set_axis_off()
    figure.suptitle(title, fontsize=11)
    return figure


def view_figures(view: View) -> dict[str, Any]:
    """Pictures of the clients: ``partition``, and ``samples`` where they see different things.

    Args:
        view: The clients.

    Returns:
        Matplotlib figures by name.
    """
    figures = {"partition": partition_figure(view.numbers.counts, view.class_names, view.title)}
    if view.strip is not None:
        figures["samples"] = samples_figure(view.strip, f"Samples as the clients see them, {view.title}")
    return figures


def confusion_figure(matrix: NDArray[np.float64], class_names: Sequence[str] | None, title: str) -> Any:
    """Confusion matrix: true class by predicted class, each row as shares.

    Args:
        matrix: Counts or shares, true classes in rows.
        class_names: Names of the classes; their numbers where it is missing.
        title: Heading.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.figure import Figure

    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1e-12)
    num_classes = len(matrix)
    side = min(9.0, 2.4 + 0.42 * num_classes)
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    if num_classes <= _MOST_NAMED_CLASSES:
        names = list(class_names or map(str, range(num_classes)))
        axes.set_xticks(range(num_classes), names, rotation=45 if max(map(len, names)) > 2 else 0)
        axes.set_yticks(range(num_classes), names)
        for i, j in zip(*np.nonzero(shares >= 0.005), strict=True):
            color = "white" if shares[i, j] > 0.5 else "black"
            axes.text(j, i, f"{100 * shares[i, j]:.0f}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(title, fontsize=11)
    return figure


def learning_curve_figure(rows: Mapping[int, Mapping[str, Any]], title: str) -> Any:
    """Accuracy (where there is one) and training loss over the rounds.

    Args:
        rows: Metrics of each finished round.
        title: Heading.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.figure import Figure

    panels = [p for p in _PANELS if any(p[0] in row for row in rows.values())]
    figure = Figure(figsize=(5.2 * max(len(panels), 1), 3.6))
    for axes, (key, label, color) in zip(np.atleast_1d(figure.subplots(1, len(panels) or 1)), panels, strict=False):
        rounds = [r for r, row in rows.items() if key in row]
        values = np.array([float(rows[r][key]) for r in rounds])
        axes.plot(rounds, values, color=color, marker="." if len(rounds) <= 40 else None)
        spread = np.array([float(rows[r].get(f"{key}_std", 0.0)) for r in rounds])
        if spread.any():
            axes.fill_between(rounds, values - spread, values + spread, color=color, alpha=0.2, linewidth=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("round")
        axes.set_title(label)
        axes.grid(visible=True, alpha=0.2)
        _open_sides(axes)
    figure.suptitle(title)
    figure.tight_layout()
    return figure


_PANELS = (
    ("val/accuracy", "Accuracy on the global test set", _BLUE),
    ("round/loss", "Training loss of the clients", _ORANGE),
)


_MARKERS = "os^Dv*Phd<>"


def feature_figure(
    points: NDArray[np.floating[Any]],
    targets: NDArray[np.integer[Any]],
    clients: NDArray[np.integer[Any]],
    class_names: Sequence[str] | None = None,
    title: str = "Features of clients",
) -> Any:
    """Points in the plane, coloured by class and marked by client.

    Args:
        points: Positions, one row per sample.
        targets: Class of each sample.
        clients: Client of each sample.
        class_names: Names of the classes; their numbers where it is missing.
        title: Heading.

    Returns:
        A matplotlib figure.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(6.4, 4.8))
    axes = figure.subplots()
    classes, owners = np.unique(targets), np.unique(clients)
    colors = colormaps["tab10" if len(classes) <= 10 else "tab20"]
    handles = []
    for owner, marker in zip(owners, _MARKERS * len(owners), strict=False):
        shown = points[clients == owner]
        shades = colors(np.searchsorted(classes, targets[clients == owner]) % colors.N)
        axes.scatter(shown[:, 0], shown[:, 1], c=shades, marker=marker, s=22, alpha=0.8, linewidths=0)
        handles.append(Line2D([], [], color="black", marker=marker, linestyle="", label=f"client {owner}"))
    for i, target in enumerate(classes[:20]):
        name = class_names[int(target)] if class_names else str(target)
        handles.append(Line2D([], [], color=colors(i % colors.N), marker="o", linestyle="", label=name))
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title)
    figure.tight_layout()
    return figure


def save_figure(figure: Any, path: Path, dpi: int = 150) -> None:
    """Write a figure as PNG, without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=dpi)


def _open_sides(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
