"""Random transforms of whole batches: every sample gets its own draw, and no loop runs over samples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from flightning.errors import ConfigurationError

__all__ = ["BatchTransform", "HorizontalFlip", "PadCrop", "RandomRotation"]


class BatchTransform(ABC):
    """A random change of a batch of inputs."""

    @abstractmethod
    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Return the changed batch; all randomness comes from the generator."""


class PadCrop(BatchTransform):
    """Pad the picture on all sides and cut a window of the old size at a random place.

    Args:
        padding: Pixels on each side, at least 1.
        mode: How the border is filled: ``reflect``, ``constant`` or ``replicate``.
        fill: Value of a constant border, one number or one for each channel, on the scale of the inputs: 0 is the mean
            colour of normalised pictures.

    Example:
        >>> PadCrop(2)(torch.zeros(4, 3, 8, 8), torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 8, 8])
    """

    def __init__(self, padding: int = 4, mode: str = "reflect", fill: float | Sequence[float] = 0.0) -> None:
        if padding < 1:
            raise ConfigurationError(f"`padding={padding}` must be at least 1: leave `PadCrop` out for no padding.")
        self.padding, self.mode, self.fill = padding, mode, fill

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Crop every picture at its own place."""
        batch, _, height, width = inputs.shape
        padded = functional.pad(inputs, [self.padding] * 4, mode=self.mode)
        if self.mode == "constant" and self.fill != 0:
            inside = functional.pad(inputs.new_ones(height, width), [self.padding] * 4)
            padded = torch.where(inside > 0, padded, _colour(self.fill, inputs))
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


class RandomRotation(BatchTransform):
    """Turn each picture around its centre by an angle of its own; every pixel takes the value of the nearest one.

    Args:
        degrees: Largest angle to either side, above 0 and at most 180.
        fill: Value of the corners that come from outside, one number or one for each channel, on the scale of the
            inputs.

    Example:
        >>> RandomRotation(15)(torch.ones(4, 3, 8, 8), torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 8, 8])
    """

    def __init__(self, degrees: float = 15.0, fill: float | Sequence[float] = 0.0) -> None:
        if not 0 < degrees <= 180:
            raise ConfigurationError(
                f"`degrees={degrees}` must be above 0 and at most 180: leave `RandomRotation` out for no turn."
            )
        self.degrees, self.fill = degrees, fill

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Turn every picture by an angle that is uniform between both sides."""
        batch, _, height, width = inputs.shape
        angle = (2 * torch.rand(batch, generator=generator) - 1) * math.radians(self.degrees)
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros(batch)
        # affine_grid measures both axes in half image sides
        rows = [cos, -sin * height / width, zero], [sin * width / height, cos, zero]
        theta = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
        grid = functional.affine_grid(theta, [batch, 1, height, width], align_corners=False).to(inputs)
        # the last channel tells what lies inside
        framed = torch.cat([inputs, inputs.new_ones(batch, 1, height, width)], dim=1)
        turned = functional.grid_sample(framed, grid, mode="nearest", align_corners=False)
        return torch.where(turned[:, -1:] > 0, turned[:, :-1], _colour(self.fill, inputs))


def _colour(fill: float | Sequence[float], inputs: Tensor) -> Tensor:
    """A number, or one for each channel, as it fits to a batch."""
    return torch.as_tensor(fill, dtype=inputs.dtype, device=inputs.device).view(-1, 1, 1)
