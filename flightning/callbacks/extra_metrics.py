"""More metrics of the global model than loss and accuracy, each a class of torchmetrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torchmetrics import Metric
from torchmetrics.classification import MulticlassRecall

from flightning.callbacks.checks import check_module
from flightning.callbacks.run_report import run_folder
from flightning.errors import ConfigurationError
from flightning.plots import confusion_figure, save_figure

__all__ = ["ExtraMetrics", "LongTailAccuracy"]


class ExtraMetrics(Callback):
    """Log metrics of `torchmetrics` for every evaluation: F1, AUROC, calibration error, confusion matrix.

    A metric called ``f1`` is logged as ``val/f1`` and ``test/f1``. One value per class is logged as ``val/f1/<class>``,
    and a table, such as that of a confusion matrix, as a picture: the loggers get one in each round, and the run's
    folder keeps the last. The metrics see the probabilities that come from the module's own evaluation step, without a
    second pass. Where clients keep weights of their own, they see the answers of all clients.

    Args:
        metrics: Metrics by name: classes whose first argument is the number of classes, such as
            ``MulticlassF1Score``, or objects that are already made.

    Example:
        >>> from torchmetrics.classification import MulticlassF1Score
        >>> list(ExtraMetrics({"f1": MulticlassF1Score}).makers)
        ['f1']
    """

    def __init__(self, metrics: dict[str, Callable[[int], Metric]]) -> None:
        if not metrics:
            raise ConfigurationError("`metrics` is empty: name at least one, such as `f1: MulticlassF1Score`.")
        self.makers = metrics
        self.metrics: dict[str, Metric] = {}
        self.matrices: dict[str, NDArray[np.float64]] = {}
        self._targets: Tensor | None = None
        self._seen = False
        self._handle: RemovableHandle | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the metrics for the classes of the data."""
        check_module(pl_module)
        num_classes: int = trainer.datamodule.num_classes  # type: ignore[attr-defined]
        for name, maker in self.makers.items():
            self.metrics[name] = maker if isinstance(maker, Metric) else maker(num_classes)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a validation."""
        self._begin(pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a test."""
        self._begin(pl_module)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *args: Any) -> None:
        """Keep the right answers at hand."""
        self._begin_batch(pl_module, batch)

    def on_test_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *args: Any) -> None:
        """Keep the right answers at hand."""
        self._begin_batch(pl_module, batch)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *args: Any
    ) -> None:
        """End a batch."""
        self._end_batch(trainer, pl_module, batch)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *args: Any
    ) -> None:
        """End a batch."""
        self._end_batch(trainer, pl_module, batch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the validation."""
        self._log(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the test."""
        self._log(trainer, pl_module, "test")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the last pictures in the run's folder."""
        if trainer.is_global_zero:
            for name, matrix in self.matrices.items():
                save_figure(self._figure(trainer, name, matrix), run_folder(trainer) / f"{name}.png")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the module as it was."""
        self._detach()

    # --- one evaluation -----------------------------------------------------------------------------------------

    def _begin(self, module: LightningModule) -> None:
        self._detach()
        for metric in self.metrics.values():
            metric.to(module.device).reset()
        self._handle = module.register_forward_hook(self._on_forward)

    def _begin_batch(self, module: LightningModule, batch: Any) -> None:
        self._targets, self._seen = check_module(module).split_batch(batch)[1], False

    def _on_forward(self, module: torch.nn.Module, args: Any, logits: Any) -> None:
        if self._targets is None or not isinstance(logits, Tensor):
            return
        self._seen = True
        probabilities = torch.softmax(logits.detach().float(), dim=-1)
        for metric in self.metrics.values():
            metric.update(probabilities, self._targets)

    def _end_batch(self, trainer: Trainer, module: LightningModule, batch: Any) -> None:
        if not self._seen:  # an evaluation step that goes around `forward`
            with trainer.precision_plugin.forward_context():
                module(check_module(module).split_batch(batch)[0])
        self._targets = None

    def _detach(self) -> None:
        self._targets = None
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _log(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._detach()
        for name, metric in self.metrics.items():
            value = metric.compute()
            if value.ndim == 2:
                self.matrices[name] = value.double().cpu().numpy()
                if trainer.is_global_zero and not trainer.sanity_checking:
                    self._log_figure(trainer, f"{stage}/{name}", name)
            elif value.ndim == 1:
                self._log_vector(trainer, module, f"{stage}/{name}", value.float())
            else:
                module.log(f"{stage}/{name}", value.float())

    def _log_vector(self, trainer: Trainer, module: LightningModule, key: str, values: Tensor) -> None:
        """Log one value per class."""
        names = trainer.datamodule.class_names or range(trainer.datamodule.num_classes)  # type: ignore[attr-defined]
        module.log_dict({f"{key}/{name}": value for name, value in zip(names, values, strict=True)})

    def _log_figure(self, trainer: Trainer, key: str, name: str) -> None:
        finished = trainer.current_epoch + 1
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                import wandb

                figure = self._figure(trainer, name, self.matrices[name])
                logger.experiment.log({key: wandb.Image(figure), "round": finished})
            elif isinstance(logger, TensorBoardLogger):
                logger.experiment.add_figure(key, self._figure(trainer, name, self.matrices[name]), finished)

    def _figure(self, trainer: Trainer, name: str, matrix: NDArray[np.float64]) -> Any:
        return confusion_figure(matrix, trainer.datamodule.class_names, name.replace("_", " "))  # type: ignore[attr-defined]


class LongTailAccuracy(ExtraMetrics):
    """Log the accuracy on frequent, middling and rare classes apart.

    ``val/accuracy_many``, ``val/accuracy_medium`` and ``val/accuracy_few`` (and the same for ``test``) are means over
    the classes whose training samples at all clients together are more than `many`, fewer than `few`, or between. A
    group without classes is not logged. On a balanced test set this tells what a long tail (`LongTail`) costs.

    Args:
        many: A class with more training samples is frequent.
        few: A class with fewer training samples is rare.

    Example:
        >>> LongTailAccuracy(many=1000, few=100).few
        100
        >>> LongTailAccuracy(many=10, few=20)
        Traceback (most recent call last):
            ...
        flightning.errors.ConfigurationError: `few=20` must not exceed `many=10`: use 20 and 100, for instance.
    """

    def __init__(self, many: int = 100, few: int = 20) -> None:
        if few > many:
            raise ConfigurationError(f"`few={few}` must not exceed `many={many}`: use 20 and 100, for instance.")
        super().__init__({"accuracy": lambda classes: MulticlassRecall(classes, average=None)})
        self.many, self.few = many, few

    def _log_vector(self, trainer: Trainer, module: LightningModule, key: str, values: Tensor) -> None:
        samples = torch.from_numpy(trainer.datamodule.label_counts().sum(axis=0))  # type: ignore[attr-defined]
        groups = {"many": samples > self.many, "few": samples < self.few}
        groups["medium"] = ~(groups["many"] | groups["few"])
        module.log_dict({f"{key}_{name}": values.cpu()[own].mean() for name, own in groups.items() if own.any()})
