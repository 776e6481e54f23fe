"""One `LightningModule` for classification, on which the ready-made algorithms stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from flightning.errors import ConfigurationError
from flightning.nets import MLP, Net
from flightning.nets.base import add_projection

__all__ = ["Classifier", "ProjectedClassifier"]


class Classifier(LightningModule):
    """Cross-entropy on the logits of a network.

    Without `--optimizer` it trains by SGD with rate 0.01 and momentum 0.9.

    Args:
        net: Class of the network, called with `input_shape` and `num_classes`.
        input_shape: Shape of one sample; from the data where the command line is used.
        num_classes: Number of classes; from the data where the command line is used.
        class_names: Names of the classes, for pictures and tables.

    Example:
        >>> Classifier(input_shape=(1, 8, 8), num_classes=10)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        net: Callable[[tuple[int, ...], int], Net] = MLP,
        input_shape: tuple[int, ...] = (1, 28, 28),
        num_classes: int = 10,
        class_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.net: nn.Module = net(tuple(input_shape), num_classes)
        self.num_classes, self.class_names = num_classes, class_names

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of a batch."""
        logits: Tensor = self.net(inputs)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Mean cross-entropy of a batch."""
        inputs, targets = batch
        return functional.cross_entropy(self(inputs), targets)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log loss and accuracy."""
        self._evaluate_batch(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log loss and accuracy."""
        self._evaluate_batch(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Probabilities of the classes."""
        inputs = batch[0] if isinstance(batch, list | tuple) else batch
        return torch.softmax(self(inputs), dim=-1)

    def _evaluate_batch(self, batch: Any, stage: str) -> None:
        inputs, targets = batch
        logits = self(inputs)
        size = len(targets)
        loss = functional.cross_entropy(logits, targets)
        accuracy = (logits.argmax(dim=-1) == targets).float().mean()
        self.log(f"{stage}/loss", loss, batch_size=size, sync_dist=True)
        self.log(f"{stage}/accuracy", accuracy, batch_size=size, sync_dist=True)

    def configure_optimizers(self) -> Optimizer | Any:
        """SGD, unless the command line gives another optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class ProjectedClassifier(Classifier):
    """Classifier on MOON's projection head, which is added to a network that has none.

    Args:
        projection: Size of the head's output, on which the classifier stands. ``None`` adds no head.
        **kwargs: Arguments of `Classifier`.

    Raises:
        ConfigurationError: If the network is not one of `flightning.nets`.

    Example:
        >>> ProjectedClassifier(input_shape=(1, 8, 8)).net.head
        Linear(in_features=256, out_features=10, bias=True)
    """

    def __init__(self, projection: int | None = 256, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if projection is None:
            return
        if not isinstance(self.net, Net):
            raise ConfigurationError(
                f"`{type(self.net).__name__}` is no net of `flightning.nets`, so no projection head can be added to "
                "it: build one into it and set `projection: null`."
            )
        add_projection(self.net, projection)
