"""What is shown of a partition: a table, a file with a row per client, and pictures."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.partitioners import Natural
from flightning.datamodules.skews import GroupedSkew
from flightning.datamodules.sources import TensorSource
from flightning.errors import ConfigurationError
from flightning.functional.heterogeneity import Heterogeneity, feature_shift
from flightning.loggers import ensure_writable
from flightning.plots import partitions_figure, samples_figure, save_figure, sizes_figure

__all__ = ["View", "describe", "show"]

#: Clients of a strip of samples, and pictures of each.
_STRIP_CLIENTS, _STRIP_PICTURES = 8, 10
#: Clients that the printed table lists one by one.
_LISTED = 20
#: Clients, and samples of each, from which the shift of the features is estimated.
_SHIFT_CLIENTS, _SHIFT_SAMPLES = 100, 50

Strip = dict[str, list[tuple[NDArray[np.float64], str, bool]]]


@dataclass(frozen=True)
class View:
    """What is shown of one partition.

    Args:
        title: Heading.
        numbers: How different the clients are.
        client_names: Names of the clients.
        class_names: Names of the classes.
        feature_shift: Mean distance of a client's mean input from that of all; ``None`` where inputs are no tensors.
        changed_labels: Share of samples with another label than the data set gives; ``None`` for no concept shift.
        strip: Pictures of some clients; ``None`` where inputs are no pictures or all clients see the same.
    """

    title: str
    numbers: Heterogeneity
    client_names: Sequence[str]
    class_names: Sequence[str] | None
    feature_shift: float | None
    changed_labels: float | None
    strip: Strip | None

    @classmethod
    def of(cls, title: str, data: FederatedDataModule) -> View:
        """Look at a data module after `setup`; without a title it is named by its rules."""
        source = data.train_source
        is_shifted = data.skew is not None or isinstance(data.partition, Natural)
        changed = [data.train_source.labels[p] != o for p, o in zip(data.parts, data.original_labels, strict=True)]
        share = float(np.concatenate(changed).mean())
        names = data.client_names or [str(client) for client in range(data.num_clients)]
        has_pictures = isinstance(source, TensorSource) and len(data.input_shape) == 3
        return cls(
            title=title or describe(data),
            numbers=data.heterogeneity(),
            client_names=names,
            class_names=data.class_names,
            feature_shift=_mean_shift(data) if isinstance(source, TensorSource) else None,
            changed_labels=share or None,
            strip=_strip(data, names) if is_shifted and has_pictures else None,
        )


def describe(data: FederatedDataModule) -> str:
    """Name what makes the clients differ: the partition, and the skew where there is one.

    Example:
        >>> from flightning.datamodules import IID, Digits, RotationSkew
        >>> describe(Digits(partition=IID(), skew=RotationSkew()))
        'IID, RotationSkew(groups=4)'
    """
    rules = [data.partition] if data.skew is None else [data.partition, data.skew]
    return ", ".join(repr(rule).removesuffix("()") for rule in rules)


def _spread(count: int, most: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def _mean_shift(data: FederatedDataModule) -> float:
    source = data.train_source
    if not isinstance(source, TensorSource):  # pragma: no cover
        raise TypeError("the shift of features needs tensors")
    filled = np.flatnonzero(data.sizes)
    chosen = filled[_spread(len(filled), _SHIFT_CLIENTS)]
    inputs = [source.plain(data.parts[client][:_SHIFT_SAMPLES])[0] for client in chosen]
    return float(feature_shift(inputs)[0].mean())


def _strip(data: FederatedDataModule, names: Sequence[str]) -> Strip:
    rows: Strip = {}
    filled = np.flatnonzero(data.sizes)
    for client in filled[_strip_clients(len(filled), data)]:
        original = data.original_labels[client]
        # one sample of each class, in the order of the classes
        _, first = np.unique(original, return_index=True)
        first = first[:_STRIP_PICTURES]
        if len(first) < _STRIP_PICTURES:
            rest = np.setdiff1d(np.arange(len(original)), first)[: _STRIP_PICTURES - len(first)]
            first = np.concatenate([first, rest])[np.argsort(original[np.concatenate([first, rest])], kind="stable")]
        rows[f"client {names[client]}"] = _pictures(data, int(client), first)
    return rows


def _strip_clients(count: int, data: FederatedDataModule) -> NDArray[np.int64]:
    # client k belongs to group k mod groups: neighbours show all of them
    is_grouped = isinstance(data.skew, GroupedSkew)
    return np.arange(min(count, _STRIP_CLIENTS)) if is_grouped else _spread(count, _STRIP_CLIENTS)


def _pictures(
    data: FederatedDataModule, client: int, chosen: NDArray[np.int64]
) -> list[tuple[NDArray[np.float64], str, bool]]:
    source, part = data.train_source, data.parts[client][chosen]
    if not isinstance(source, TensorSource):  # pragma: no cover
        raise TypeError("a strip of pictures needs tensors")
    inputs, original = source.plain(part)[0].double().numpy(), data.original_labels[client][chosen]
    shown = [picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0) for picture in inputs]
    return [
        (picture, str(data.class_names[label]) if data.class_names else str(label), bool(label != before))
        for picture, label, before in zip(shown, source.labels[part], original, strict=True)
    ]


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
