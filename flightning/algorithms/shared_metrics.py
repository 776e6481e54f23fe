"""Metrics of an evaluation whose batches are spread over processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule
from torchmetrics import Metric

__all__ = ["SharedMetrics", "unsynchronised"]

_COMBINE: dict[str, Callable[[float, float], float]] = {
    "mean": lambda a, b: a + b,
    "sum": lambda a, b: a + b,
    "max": max,
    "min": min,
}
_SIGNATURE = inspect.signature(LightningModule.log)


@dataclass
class _Entry:
    rule: str
    total: float
    weight: float
    options: dict[str, Any]


class SharedMetrics:
    """Collect what the steps of an evaluation log, and combine it over processes at the end.

    Lightning would exchange every metric by itself, round the number of samples on some backends, and wait for ever
    where one process logs a name that another does not.

    Example:
        >>> one, other = SharedMetrics(), SharedMetrics()
        >>> one.add("val/loss", 1.0, 3, {})
        >>> other.add("val/loss", 2.0, 1, {})
        >>> one.add("val/worst", 5.0, 3, {"reduce_fx": "max"})
        >>> one.combined([one.entries, other.entries])
        [('val/loss', 1.25, {}), ('val/worst', 5.0, {})]
    """

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}

    @staticmethod
    def bind(module: LightningModule, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Options of a call of `log` by name."""
        bound = _SIGNATURE.bind(module, name, value, *args, **kwargs).arguments
        return {k: v for k, v in bound.items() if k not in ("self", "name", "value")}

    def add(self, name: str, value: float, size: int, options: dict[str, Any]) -> None:
        """Take in a value of a batch of this size; values that are wanted for single steps only are left out."""
        rule = options.get("reduce_fx", "mean")
        rule = rule if isinstance(rule, str) else rule.__name__
        rule = {"avg": "mean"}.get(rule.lower(), rule.lower())
        if options.get("on_epoch") is False:
            return
        weight = float(options.get("batch_size") or size)
        total = float(value) * weight if rule == "mean" else float(value)
        shown: dict[str, Any] = {k: options[k] for k in ("prog_bar", "logger") if k in options}
        known = self.entries.get(name)
        if known is not None:
            total, weight = _COMBINE[rule](known.total, total), known.weight + weight
        self.entries[name] = _Entry(rule, total, weight, shown)

    @staticmethod
    def combined(entries: Iterable[dict[str, _Entry]]) -> list[tuple[str, float, dict[str, Any]]]:
        """Names, values over all processes and options."""
        merged: dict[str, _Entry] = {}
        for theirs in entries:
            for name, entry in theirs.items():
                known = merged.get(name)
                if known is not None:
                    total = _COMBINE[entry.rule](known.total, entry.total)
                    entry = _Entry(entry.rule, total, known.weight + entry.weight, entry.options)
                merged[name] = entry
        return [(n, e.total / e.weight if e.rule == "mean" else e.total, e.options) for n, e in merged.items()]


@contextmanager
def unsynchronised(metrics: Iterable[Metric]) -> Iterator[None]:
    """Let metrics exchange nothing inside this block: every process has seen everything.

    Example:
        >>> from torchmetrics import SumMetric
        >>> metric = SumMetric()
        >>> with unsynchronised([metric]):
        ...     metric.sync_on_compute
        False
        >>> metric.sync_on_compute
        True
    """
    before = [(metric, metric.sync_on_compute, metric._to_sync) for metric in metrics]
    for metric, *_ in before:
        metric.sync_on_compute = metric._to_sync = False
    try:
        yield
    finally:
        for metric, on_compute, now in before:
            metric.sync_on_compute, metric._to_sync = on_compute, now
