"""What is shown of a partition: a table, a file with a row per client, and pictures."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flightning.datamodules.view import View
from flightning.errors import ConfigurationError
from flightning.loggers import ensure_writable
from flightning.plots import partitions_figure, samples_figure, save_figure, sizes_figure

__all__ = ["show"]

#: Clients that the printed table lists one by one.
_LISTED = 20


def show(views: Sequence[View], out: Path) -> None:
    """Print the table and write the pictures and ``clients.csv``.

    Args:
        views: The partitions.
        out: Folder, made where it is missing.

    Raises:
        ConfigurationError: Where the folder cannot be written, or the partitions have different classes.
    """
    if len({view.numbers.counts.shape[1] for view in views}) > 1:
        raise ConfigurationError(
            "the values lead to different classes, which fit in no picture: compare them one by one."
        )
    ensure_writable(out, "the folder", "`--out`")
    _print(views)
    _write_clients(views, out / "clients.csv")
    files = ["clients.csv", "partition.png", "sizes.png"]
    titles = {view.title: view for view in views}
    headings = {f"{t}\nEMD {v.numbers.emd:.2f}, Gini {v.numbers.gini:.2f}": v for t, v in titles.items()}
    save_figure(
        partitions_figure({t: v.numbers.counts for t, v in headings.items()}, views[0].class_names),
        out / "partition.png",
    )
    save_figure(sizes_figure({t: v.numbers.sizes for t, v in titles.items()}), out / "sizes.png")
    for number, view in enumerate(views):
        if view.strip is not None:
            name = "samples.png" if len(views) == 1 else f"samples_{number}.png"
            save_figure(samples_figure(view.strip, f"Samples as the clients see them, {view.title}"), out / name)
            files.append(name)
    print(f"Written to {out}: {', '.join(files)}")


def _print(views: Sequence[View]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    summaries = [_summary(view) for view in views]
    table = Table(title="How different the clients are", title_justify="left")
    table.add_column("")
    for view in views:
        table.add_column(view.title, justify="right")
    for name in dict.fromkeys(name for summary in summaries for name in summary):
        table.add_row(name, *(summary.get(name, "") for summary in summaries))
    console.print(table)
    if len(views) == 1 and views[0].numbers.num_clients <= _LISTED:
        listed = Table()
        for column in _CLIENT_COLUMNS:
            listed.add_column(column, justify="right")
        for row in _client_rows(views[0]):
            listed.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row))
        console.print(listed)


def _summary(view: View) -> dict[str, str]:
    numbers = view.numbers
    summary = {
        "clients": str(numbers.num_clients),
        "samples": str(numbers.num_samples),
        "smallest, median, largest client": f"{numbers.min_size}, {np.median(numbers.sizes):g}, {numbers.max_size}",
        "Gini of the sizes": f"{numbers.gini:.3f}",
        "classes held (mean)": f"{numbers.classes_held:.1f}",
        "effective classes (mean)": f"{numbers.effective_classes:.1f}",
        "EMD of the labels": f"{numbers.emd:.3f}",
        "Jensen-Shannon of the labels": f"{numbers.jensen_shannon:.3f}",
    }
    if view.feature_shift is not None:
        summary["shift of the mean input"] = f"{view.feature_shift:.3f}"
    if view.changed_labels is not None:
        summary["labels changed by the skew"] = f"{view.changed_labels:.0%}"
    return summary


_CLIENT_COLUMNS = ("client", "samples", "classes held", "effective classes", "EMD", "divergence")


def _client_rows(view: View) -> list[tuple[Any, ...]]:
    numbers = view.numbers
    return [
        (name, int(size), int(held), float(effective), float(emd), float(divergence))
        for name, size, held, effective, emd, divergence in zip(
            view.client_names,
            numbers.sizes,
            numbers.client_classes_held,
            numbers.client_effective_classes,
            numbers.client_emd,
            numbers.client_divergence,
            strict=True,
        )
    ]


def _write_clients(views: Sequence[View], path: Path) -> None:
    classes = views[0].class_names or range(views[0].numbers.counts.shape[1])
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["partition", *(c.replace(" ", "_") for c in _CLIENT_COLUMNS), *classes])
        for view in views:
            for row, counts in zip(_client_rows(view), view.numbers.counts, strict=True):
                writer.writerow([view.title, *row, *counts])
