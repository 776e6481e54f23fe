"""What users log in local steps, where processes train different clients.

Lightning would exchange a value whenever it is logged with ``sync_dist``, and every metric at the end of an epoch: it
would wait for ever where one process takes more steps than another, or none. Here values are collected, and exchanged
with everything else when the round ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from torchmetrics import Metric

from flightning.algorithms.shared_metrics import SharedMetrics
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
    """

    numbers: SharedMetrics = field(default_factory=SharedMetrics)
    metrics: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)


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
        for name, (attribute, options) in metrics.items():  # in the same order on all processes
            super().log(name, attrgetter(attribute)(self).compute(), **options)
        for attribute in {attribute for attribute, _ in metrics.values()}:
            attrgetter(attribute)(self).reset()
        super().on_train_epoch_end()
