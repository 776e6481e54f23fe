"""How the clients of a data module differ: numbers, names, and samples as they see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.partitioners import Natural
from flightning.datamodules.skews import GroupedSkew
from flightning.datamodules.sources import TensorSource
from flightning.functional.heterogeneity import Heterogeneity, feature_shift

__all__ = ["View", "describe"]

#: Clients of a strip of samples, and pictures of each.
_STRIP_CLIENTS, _STRIP_PICTURES = 8, 10
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
        changed = [source.labels[p] != o for p, o in zip(data.own_parts, data.original_labels, strict=True)]
        share = float(np.concatenate(changed).mean())
        names = data.client_names
        if names is None or len(names) != data.num_clients:  # pooled clients have no names
            names = [str(client) for client in range(data.num_clients)]
        has_pictures = isinstance(source, TensorSource) and source.inputs.ndim == 4 and source.inputs.shape[1] in (1, 3)
        return cls(
            title=title or describe(data),
            numbers=data.heterogeneity(),
            client_names=names,
            class_names=data.class_names,
            feature_shift=_mean_shift(data) if isinstance(source, TensorSource) else None,
            changed_labels=share or None,
            strip=_strip(data, names) if is_shifted and has_pictures else None,
        )

    def as_dict(self) -> dict[str, float]:
        """The numbers for a logger; those of the skew where there is one."""
        more = {"feature_shift": self.feature_shift, "changed_labels": self.changed_labels}
        return {**self.numbers.as_dict(), **{name: value for name, value in more.items() if value is not None}}


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
