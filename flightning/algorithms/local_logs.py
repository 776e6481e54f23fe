"""What users log in local steps, where processes train different clients.

Lightning would exchange a value whenever it is logged with ``sync_dist``, and every metric at the end of an epoch: it
would wait for ever where one process takes more steps than another, or none. Here values are collected, and exchanged
with everything else when the round ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.data import extract_batch_size
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torchmetrics import Metric

from flightning.algorithms.shared_metrics import SharedMetrics, unsynchronised
from flightning.errors import ConfigurationError

__all__ = ["LocalLogs", "RoundLogs"]

#: Hooks that belong to one local step.
_STEP_HOOKS = frozenset(
    {
        "training_step", "on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward",
        "on_after_backward", "on_before_optimizer_step", "optimizer_step", "configure_gradient_clipping",
    }
)  # fmt: skip


@dataclass
class RoundLogs:
    """What one process has logged in the local steps of a round.

    Args:
        numbers: Numbers that are wanted for the round.
        metrics: Attribute and options of metrics that are wanted for the round, by name.
        states: What these metrics hold, by attribute: that of each metric inside, by its name.
    """

    numbers: SharedMetrics = field(default_factory=SharedMetrics)
    metrics: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    states: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)


class LocalLogs(LightningModule):
    """Collect what local steps log; values of single steps go to the logger of the process that has taken them."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        #: Whether processes train different clients; set by the round engine.
        self.splits_clients = False
        self._own_logs = RoundLogs()
        self._all_logs: list[RoundLogs] = []

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log as Lightning does, or collect."""
        if not self.splits_clients or self._current_fx_name not in _STEP_HOOKS:
            super().log(name, value, *args, **kwargs)
            return
        options = SharedMetrics.bind(self, name, value, args, kwargs)
        on_step, on_epoch = options.pop("on_step", None) is not False, bool(options.pop("on_epoch", False))
        options.pop("sync_dist", None)
        if on_step:
            super().log(f"{name}_step" if on_epoch else name, value, on_step=True, on_epoch=False, **options)
        if not on_epoch:
            return
        self._collect(name, value, {**options, "logger": False} if on_step else options)
        if on_step:  # as Lightning names them
            self._collect(f"{name}_epoch", value, options)

    def _collect(self, name: str, value: Any, options: dict[str, Any]) -> None:
        if isinstance(value, Metric):
            attribute = str(options.get("metric_attribute") or self._attribute_of(value))
            self._own_logs.metrics[name] = attribute, {k: v for k, v in options.items() if k in ("prog_bar", "logger")}
        elif isinstance(value, Tensor | float | int):
            batch = getattr(self.trainer._results, "batch", None)
            size = options.get("batch_size") or (1 if batch is None else extract_batch_size(batch))
            self._own_logs.numbers.add(name, float(value), size, options)

    def _attribute_of(self, metric: Metric) -> str:
        for name, module in self.named_modules():
            if module is metric:
                return str(name)
        raise ConfigurationError(
            f"a `{type(metric).__name__}` is logged in a local step and is no attribute of the module, so processes "
            "cannot merge it: assign it in `__init__`, `self.accuracy = ...`."
        )

    def take_logs(self) -> RoundLogs:
        """What this process has logged since it was asked last."""
        taken, self._own_logs = self._own_logs, RoundLogs()
        for attribute, _ in taken.metrics.values():
            parts = _metrics_in(attrgetter(attribute)(self))
            taken.states[attribute] = {name: part.metric_state for name, part in parts.items()}
        return taken

    def hear_logs(self, logs: list[RoundLogs]) -> None:
        """Take in what all processes have logged."""
        self._all_logs.extend(logs)

    def on_train_epoch_end(self) -> None:
        """Log what all processes have collected in the round."""
        heard, self._all_logs = self._all_logs, []
        for name, value, options in SharedMetrics.combined(logs.numbers.entries for logs in heard):
            super().log(name, value, **options)
        metrics = {name: entry for logs in heard for name, entry in logs.metrics.items()}
        values: dict[str, Any] = {}
        for name, (attribute, options) in metrics.items():
            if attribute not in values:
                states = [logs.states[attribute] for logs in heard if attribute in logs.states]
                values[attribute] = _value_of_all(attrgetter(attribute)(self), states)
            super().log(name, values[attribute], **options)
        super().on_train_epoch_end()


def _metrics_in(metric: Metric) -> dict[str, Metric]:
    """A metric, and those that it wraps, by their names."""
    return {name: part for name, part in metric.named_modules() if isinstance(part, Metric)}


def _value_of_all(metric: Metric, states: list[dict[str, dict[str, Any]]]) -> Any:
    """Value of a metric that has seen what several processes have; it forgets everything.

    Torchmetrics would exchange the states by itself, and gets lists wrong of which one process holds nothing.

    Args:
        metric: That of this process.
        states: State of each metric in it, in the order of the processes.
    """
    parts = _metrics_in(metric)
    for name, part in parts.items():
        part._update_count, part._computed = max(1, part._update_count), None
        for attribute, reduce in part._reductions.items():
            setattr(part, attribute, _joined([state[name][attribute] for state in states], reduce, part.device))
    with unsynchronised(parts.values()):
        value = metric.compute()
    metric.reset()
    return value


def _joined(values: list[Any], reduce: Any, device: torch.device) -> Any:
    values = apply_to_collection(values, Tensor, lambda t: t.to(device))
    if isinstance(values[0], list):
        return [item for items in values for item in items]
    if len(values) == 1:
        return values[0]
    return torch.stack(values) if reduce is None else reduce(torch.stack(values))
