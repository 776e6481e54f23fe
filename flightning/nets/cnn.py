"""The small convolutional networks of the papers."""

from __future__ import annotations

import torch
from torch import nn

from flightning.errors import ConfigurationError
from flightning.nets.base import Net, image_shape, projection_head

__all__ = ["FedDynCNN", "McMahanCNN", "SimpleCNN", "SmallCNN"]


def conv_block(
    inputs: int, outputs: int, kernel_size: int, padding: int = 0, *, batch_norm: bool = False
) -> nn.Sequential:
    """One convolution with its ReLU and a 2x2 pooling, on request with BatchNorm."""
    # Channels last: on a CPU the pooling is ten times as fast, a local step of the McMahan CNN a quarter shorter.
    conv = nn.Conv2d(inputs, outputs, kernel_size, padding=padding).to(memory_format=torch.channels_last)
    # ReLU after the pooling: max and ReLU commute, and it has four times less to do.
    norms = [nn.BatchNorm2d(outputs)] if batch_norm else []
    return nn.Sequential(conv, *norms, nn.MaxPool2d(2), nn.ReLU())


def fc_block(inputs: int, outputs: int, *, flatten: bool = False, dropout: float = 0.0) -> nn.Sequential:
    """One fully connected layer with its ReLU."""
    layers: list[nn.Module] = [nn.Flatten()] if flatten else []
    layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(dropout)) if dropout else nn.Sequential(*layers)


def after_convs(size: int, kernel_size: int, padding: int = 0) -> int:
    """Pixels per side that are left by two convolutions with 2x2 poolings."""
    for _ in range(2):
        size = (size + 2 * padding - kernel_size + 1) // 2
    return size


class McMahanCNN(Net):
    """CNN of the FedAvg paper: two padded 5x5 convolutions (32, 64), one hidden layer of 512.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    Blocks: ``conv1``, ``conv2``, ``fc1``, ``head``. 1 663 370 parameters on MNIST.

    Args:
        input_shape: Shape of one image, (channels, height, width), at least 4x4 pixels.
        num_classes: Number of logits.
        hidden: Size of the hidden layer, which is the size of the features.

    Example:
        >>> sum(p.numel() for p in McMahanCNN((1, 28, 28), 10).parameters())
        1663370
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, hidden: int = 512) -> None:
        super().__init__(input_shape, num_classes)
        channels, height, width = image_shape(self, 4, "`MLP`")
        self.conv1 = conv_block(channels, 32, 5, padding=2)
        self.conv2 = conv_block(32, 64, 5, padding=2)
        self.fc1 = fc_block(64 * after_convs(height, 5, 2) * after_convs(width, 5, 2), hidden, flatten=True)
        self.head = nn.Linear(hidden, num_classes)


class SimpleCNN(Net):
    """LeNet-like CNN of MOON and NIID-Bench: two 5x5 convolutions (6, 16), hidden layers of 120 and 84.

    Blocks: ``conv1``, ``conv2``, ``fc1``, ``fc2``, with a projection head also ``projection``, then ``head``.
    62 006 parameters on CIFAR10, 44 426 on MNIST.

    Args:
        input_shape: Shape of one image, (channels, height, width), at least 16x16 pixels.
        num_classes: Number of logits.
        projection: Size of the output of MOON's projection head Linear-ReLU-Linear between the trunk and the
            classifier, 256 in the paper. ``None`` builds no such head.
        batch_norm: Whether a BatchNorm follows each convolution; the net of the papers has none.

    Example:
        >>> sum(p.numel() for p in SimpleCNN((3, 32, 32), 10, projection=256).parameters())
        92626
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        projection: int | None = None,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(input_shape, num_classes)
        channels, height, width = image_shape(self, 16, "`MLP` or `SmallCNN`")
        self.conv1 = conv_block(channels, 6, 5, batch_norm=batch_norm)
        self.conv2 = conv_block(6, 16, 5, batch_norm=batch_norm)
        self.fc1 = fc_block(16 * after_convs(height, 5) * after_convs(width, 5), 120, flatten=True)
        self.fc2 = fc_block(120, 84)
        if projection is not None:
            self.projection = projection_head(84, projection)
        self.head = nn.Linear(84 if projection is None else projection, num_classes)


class FedDynCNN(Net):
    """CNN of FedDyn and FedDC: two 5x5 convolutions (64, 64), hidden layers of 384 and 192.

    Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021.
    Blocks: ``conv1``, ``conv2``, ``fc1``, ``fc2``, ``head``. 797 962 parameters on CIFAR10.

    Args:
        input_shape: Shape of one image, (channels, height, width), at least 16x16 pixels.
        num_classes: Number of logits.

    Example:
        >>> sum(p.numel() for p in FedDynCNN((3, 32, 32), 10).parameters())
        797962
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        channels, height, width = image_shape(self, 16, "`MLP` or `SmallCNN`")
        self.conv1 = conv_block(channels, 64, 5)
        self.conv2 = conv_block(64, 64, 5)
        self.fc1 = fc_block(64 * after_convs(height, 5) * after_convs(width, 5), 384, flatten=True)
        self.fc2 = fc_block(384, 192)
        self.head = nn.Linear(192, num_classes)


class SmallCNN(Net):
    """Small CNN for images of any size: two convolutions (10, 20), one hidden layer of 50.

    Blocks: ``conv1``, ``conv2``, ``fc1``, ``head``. 21 840 parameters on MNIST, 6 480 on the 8x8 digits.

    Args:
        input_shape: Shape of one image, (channels, height, width), at least 4x4 pixels.
        num_classes: Number of logits.
        kernel_size: Side of both kernels. ``None`` takes 5 without padding from 16x16 pixels on and 3 with
            padding below.
        dropout: Probability of dropping a value of the hidden layer, in [0, 1). ``0`` drops nothing.

    Raises:
        ConfigurationError: If the kernel does not fit twice into the image or ``dropout`` is outside [0, 1).

    Example:
        >>> sum(p.numel() for p in SmallCNN((1, 28, 28), 10).parameters())
        21840
        >>> sum(p.numel() for p in SmallCNN((1, 8, 8), 10).parameters())
        6480
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        kernel_size: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(input_shape, num_classes)
        channels, height, width = image_shape(self, 4, "`MLP`")
        small = min(height, width) < 16
        if kernel_size is None:
            kernel_size = 3 if small else 5
        padding = kernel_size // 2 if small else 0
        if (
            kernel_size < 1
            or min(after_convs(height, kernel_size, padding), after_convs(width, kernel_size, padding)) < 1
        ):
            raise ConfigurationError(
                f"`kernel_size` {kernel_size} must be >= 1 and fit twice into `input_shape` {self.input_shape}. "
                "Leave it out to have it chosen by the size of the image."
            )
        if not 0 <= dropout < 1:
            raise ConfigurationError(f"`dropout` must be in [0, 1), got {dropout}. Use 0 to drop nothing.")
        self.conv1 = conv_block(channels, 10, kernel_size, padding)
        self.conv2 = conv_block(10, 20, kernel_size, padding)
        flat = 20 * after_convs(height, kernel_size, padding) * after_convs(width, kernel_size, padding)
        self.fc1 = fc_block(flat, 50, flatten=True, dropout=dropout)
        self.head = nn.Linear(50, num_classes)
