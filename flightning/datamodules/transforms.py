"""Random transforms of whole batches: every sample gets its own draw, and no loop runs over samples."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from flightning.errors import ConfigurationError

__all__ = ["BatchTransform", "HorizontalFlip", "PadCrop"]


class BatchTransform(ABC):
    """A random change of a batch of inputs."""

    @abstractmethod
    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Return the changed batch; all randomness comes from the generator."""


class PadCrop(BatchTransform):
    """Pad the picture on all sides and cut a window of the old size at a random place.

    Args:
        padding: Pixels on each side, at least 1.
        mode: How the border is filled: ``reflect``, ``constant`` (zeros) or ``replicate``.

    Example:
        >>> PadCrop(2)(torch.zeros(4, 3, 8, 8), torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 8, 8])
    """

    def __init__(self, padding: int = 4, mode: str = "reflect") -> None:
        if padding < 1:
            raise ConfigurationError(f"`padding={padding}` must be at least 1: leave `PadCrop` out for no padding.")
        self.padding, self.mode = padding, mode

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Crop every picture at its own place."""
        batch, _, height, width = inputs.shape
        padded = functional.pad(inputs, [self.padding] * 4, mode=self.mode)
        top, left = torch.randint(0, 2 * self.padding + 1, (2, batch, 1), generator=generator)
        rows = (top + torch.arange(height))[:, None, :, None]
        columns = (left + torch.arange(width))[:, None, None, :]
        return padded[
            torch.arange(batch)[:, None, None, None], torch.arange(inputs.shape[1])[:, None, None], rows, columns
        ]


class HorizontalFlip(BatchTransform):
    """Mirror each picture with a probability.

    Args:
        probability: Between 0 (never) and 1 (always).

    Example:
        >>> HorizontalFlip(1.0)(torch.tensor([[[[1.0, 2.0]]]]), torch.Generator())
        tensor([[[[2., 1.]]]])
    """

    def __init__(self, probability: float = 0.5) -> None:
        if not 0 <= probability <= 1:
            raise ConfigurationError(f"`probability={probability}` must lie between 0 and 1: 0.5 flips half of them.")
        self.probability = probability

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Mirror about that share of the pictures."""
        flip = torch.rand(len(inputs), generator=generator) < self.probability
        return torch.where(flip[:, None, None, None], inputs.flip(-1), inputs)
