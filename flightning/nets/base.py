"""What every network of this package promises: ordered blocks, a head, and the features between them."""

from __future__ import annotations

from torch import Tensor, nn

from flightning.errors import ConfigurationError

__all__ = ["Net", "add_projection", "image_shape", "projection_head"]


class Net(nn.Module):
    """A network as an ordered list of blocks, the last of which is the head.

    Children are run in the order of their registration. A child with parameters is a block: one layer with its
    activation and pooling. Subclasses register their layers and, last, ``self.head``; a network that is not such a
    chain overrides :attr:`blocks` and :meth:`features`.

    Args:
        input_shape: Shape of one sample, without the batch.
        num_classes: Number of logits.

    Raises:
        ConfigurationError: If ``num_classes`` is smaller than 1 or ``input_shape`` holds a size below 1.

    Example:
        >>> import torch
        >>> class TwoLayers(Net):
        ...     def __init__(self, input_shape, num_classes):
        ...         super().__init__(input_shape, num_classes)
        ...         self.fc1 = nn.Sequential(nn.Linear(input_shape[0], 3), nn.ReLU())
        ...         self.head = nn.Linear(3, num_classes)
        >>> net = TwoLayers((4,), 2)
        >>> [name for name, _ in net.blocks]
        ['fc1', 'head']
        >>> net.features(torch.zeros(5, 4)).shape, net(torch.zeros(5, 4)).shape
        (torch.Size([5, 3]), torch.Size([5, 2]))
    """

    head: nn.Module

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        if num_classes < 1:
            raise ConfigurationError(f"`num_classes` must be >= 1, got {num_classes}. Take it from the data.")
        if any(size < 1 for size in input_shape):
            raise ConfigurationError(
                f"every size of `input_shape` must be >= 1, got {tuple(input_shape)}. Give the shape of one sample."
            )
        self.input_shape = tuple(input_shape)
        self.num_classes = num_classes

    @property
    def blocks(self) -> list[tuple[str, nn.Module]]:
        """Name, as in ``named_modules()``, and module of each block in order of the forward pass."""
        return [(name, child) for name, child in self.named_children() if any(True for _ in child.parameters())]

    def features(self, x: Tensor) -> Tensor:
        """Compute the input of the head."""
        for child in self.children():
            if child is self.head:
                break
            x = child(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of a batch."""
        logits: Tensor = self.head(self.features(x))
        return logits


def projection_head(features: int, size: int) -> nn.Sequential:
    """Build MOON's two-layer projection head Linear-ReLU-Linear.

    Args:
        features: Size of its input and of its hidden layer.
        size: Size of its output, on which the classifier stands.

    Raises:
        ConfigurationError: If ``size`` is smaller than 1.
    """
    if size < 1:
        raise ConfigurationError(f"`projection` must be >= 1, got {size}. Leave it out for a net without the head.")
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, size))


def add_projection(net: Net, size: int) -> None:
    """Put MOON's projection head between trunk and classifier of a network that has none; the classifier is new.

    Args:
        net: The network, changed in place; its head is a linear layer.
        size: Size of the head's output.

    Raises:
        ConfigurationError: If ``size`` is smaller than 1 or the head is no linear layer.

    Example:
        >>> from flightning.nets import McMahanCNN
        >>> net = McMahanCNN((1, 28, 28), 10)
        >>> add_projection(net, 256)
        >>> [name for name, _ in net.blocks], net.head
        (['conv1', 'conv2', 'fc1', 'projection', 'head'], Linear(in_features=256, out_features=10, bias=True))
    """
    if hasattr(net, "projection"):
        return
    if not isinstance(net.head, nn.Linear):
        raise ConfigurationError(
            f"the head of `{type(net).__name__}` is a `{type(net.head).__name__}`, before which no projection head "
            "can be put: use a net whose head is `nn.Linear`."
        )
    features = net.head.in_features
    del net.head  # children run in the order of their registration
    net.projection = projection_head(features, size)
    net.head = nn.Linear(size, net.num_classes)


def image_shape(net: Net, smallest: int, otherwise: str) -> tuple[int, int, int]:
    """Check that a network can read its images, and return channels, height and width.

    Args:
        net: The network that asks.
        smallest: Least number of pixels per side that survives its convolutions and poolings.
        otherwise: What to use for other shapes.

    Raises:
        ConfigurationError: If the samples are not images or are too small.
    """
    shape = net.input_shape
    name = type(net).__name__
    if len(shape) != 3:
        raise ConfigurationError(
            f"`{name}` reads images of shape (channels, height, width), got `input_shape` {shape}. Use {otherwise}."
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ConfigurationError(
            f"`{name}` needs images of at least {smallest}x{smallest} pixels, got `input_shape` {shape}. "
            f"Use {otherwise}."
        )
    return channels, height, width
