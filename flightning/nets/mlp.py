"""Fully connected networks for samples of any shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from flightning.errors import ConfigurationError
from flightning.nets.base import Net, projection_head
from flightning.nets.cnn import fc_block

__all__ = ["MLP", "LogisticRegression"]


class MLP(Net):
    """Multilayer perceptron; by default the 2NN of the FedAvg paper, 199 210 parameters on MNIST.

    Blocks: ``fc1``, ``fc2``, ..., with a projection head also ``projection``, then ``head``.

    Args:
        input_shape: Shape of one sample, which is flattened.
        num_classes: Number of logits.
        hidden: Sizes of the hidden layers, at least one.
        projection: Size of the output of MOON's projection head between the last hidden layer and the classifier.
            ``None`` builds no such head.
        dropout: Probability of dropping a value of a hidden layer, in [0, 1). ``0`` drops nothing.

    Raises:
        ConfigurationError: If ``hidden`` is empty or holds a size below 1, or ``dropout`` is outside [0, 1).

    Example:
        >>> sum(p.numel() for p in MLP((1, 28, 28), 10).parameters())
        199210
        >>> [name for name, _ in MLP((64,), 10, hidden=[32]).blocks]
        ['fc1', 'head']
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        hidden: Sequence[int] = (200, 200),
        projection: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(input_shape, num_classes)
        if not hidden or min(hidden) < 1:
            raise ConfigurationError(
                f"`hidden` must name at least one layer, each of size >= 1, got {list(hidden)}. "
                "Use `LogisticRegression` for a net without hidden layers."
            )
        if not 0 <= dropout < 1:
            raise ConfigurationError(f"`dropout` must be in [0, 1), got {dropout}. Use 0 to drop nothing.")
        size = math.prod(self.input_shape)
        for index, width in enumerate(hidden):
            self.add_module(f"fc{index + 1}", fc_block(size, width, flatten=index == 0, dropout=dropout))
            size = width
        if projection is not None:
            self.projection = projection_head(size, projection)
            size = projection
        self.head = nn.Linear(size, num_classes)


class LogisticRegression(Net):
    """One linear layer on the flattened sample: a convex problem. Its only block is ``head``.

    Args:
        input_shape: Shape of one sample, which is flattened.
        num_classes: Number of logits.

    Example:
        >>> sum(p.numel() for p in LogisticRegression((1, 28, 28), 10).parameters())
        7850
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(math.prod(self.input_shape), num_classes)
