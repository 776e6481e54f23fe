"""Pictures of a partition and of a run. matplotlib is imported only when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["learning_curve_figure", "partition_figure", "save_figure"]

_BLUE, _ORANGE = "#0072b2", "#d55e00"
_MOST_CLIENTS = 60


def partition_figure(
    counts: NDArray[np.int64], class_names: Sequence[str] | None = None, title: str = "Samples per client and class"
) -> Any:
    """Bubble chart of a partition: client by class, area by number of samples.

    Args:
        counts: Samples of each class (columns) at each client (rows).
        class_names: Names of the classes; their numbers where it is missing.
        title: Heading.

    Returns:
        A matplotlib figure. Of more clients than can be told apart, evenly spaced ones are shown.
    """
    from matplotlib.figure import Figure

    num_clients, num_classes = counts.shape
    shown = np.unique(np.linspace(0, num_clients - 1, min(num_clients, _MOST_CLIENTS)).astype(int))
    figure = Figure(figsize=(min(12.0, 2.5 + 0.42 * len(shown)), min(10.0, 1.8 + 0.32 * min(num_classes, 26))))
    axes = figure.subplots()
    rows, columns = np.nonzero(counts[shown])
    values = counts[shown][rows, columns]
    axes.scatter(rows, columns, s=380 * values / max(counts.max(), 1), c=_BLUE, alpha=0.8, linewidths=0)
    axes.set_xticks(range(len(shown)) if len(shown) <= 30 else range(0, len(shown), 5))
    axes.set_xticklabels([str(shown[int(i)]) for i in axes.get_xticks()])
    if num_classes <= 26:
        axes.set_yticks(range(num_classes), class_names or [str(c) for c in range(num_classes)])
    axes.set_xlim(-0.7, len(shown) - 0.3)
    axes.set_ylim(-0.7, num_classes - 0.3)
    axes.set_xlabel("client" if len(shown) == num_clients else f"client ({len(shown)} of {num_clients})")
    axes.set_ylabel("class")
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
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
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.suptitle(title)
    figure.tight_layout()
    return figure


_PANELS = (
    ("val/accuracy", "Accuracy on the global test set", _BLUE),
    ("round/loss", "Training loss of the clients", _ORANGE),
)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG, without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150)
