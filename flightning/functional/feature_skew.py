"""Feature skew and concept shift: transforms of whole batches, and data whose skew is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from flightning.errors import PartitionError

__all__ = [
    "PermutationKind",
    "add_noise",
    "affine_warp",
    "colour_cast",
    "fcube",
    "gaussian_blur",
    "label_permutations",
    "rotate",
    "scale_contrast",
    "shifted_fraction",
    "tile_mask",
]

PermutationKind = Literal["swap", "full"]


def _in_floats(x: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a transform of floats; bytes are scaled to [0, 1] for it and back."""
    if not len(x):
        return x
    if x.is_floating_point():
        return transform(x)
    if x.dtype == torch.uint8:
        return (transform(x.float() / 255).clamp(0, 1) * 255).round().to(torch.uint8)
    raise PartitionError(f"Feature skew needs float or uint8 inputs, got {x.dtype}: use it on images or features.")


def _as_images(x: Tensor) -> Tensor:
    """View a batch as samples x channels x height x width."""
    if x.ndim < 3:
        raise PartitionError(
            f"This skew needs images, got a batch of shape {tuple(x.shape)}: use `NoiseSkew` for plain features."
        )
    return x.reshape(len(x), math.prod(x.shape[1:-2]), *x.shape[-2:])


def tile_mask(height: int, width: int, tiles: int, index: int) -> Tensor:
    """Mask of one tile of an image that is cut into ``tiles`` x ``tiles``, counted row by row.

    Example:
        >>> tile_mask(2, 4, 2, 1).int().tolist()
        [[0, 0, 1, 1], [0, 0, 0, 0]]
    """
    row, column = divmod(index % tiles**2, tiles)
    rows = torch.arange(height) * tiles // height == row
    columns = torch.arange(width) * tiles // width == column
    return rows[:, None] & columns


def add_noise(x: Tensor, std: float, generator: torch.Generator, mask: Tensor | None = None) -> Tensor:
    """Add normal noise; bytes count as values in [0, 1] and are clipped.

    Args:
        x: Batch of inputs.
        std: Standard deviation; ``0`` returns the inputs as they are.
        generator: Source of the noise, on the CPU.
        mask: Where to add it, of a shape that broadcasts to ``x``.

    Example:
        >>> add_noise(torch.zeros(2, 2), 0.0, torch.Generator()).tolist()
        [[0.0, 0.0], [0.0, 0.0]]
    """
    if std == 0:
        return x
    noise = torch.randn(x.shape, generator=generator) * std
    if mask is not None:
        noise = noise * mask
    return _in_floats(x, lambda images: images + noise.to(images))


def affine_warp(x: Tensor, matrix: Tensor) -> Tensor:
    """Sample images at linearly transformed pixel positions around the centre, zero outside, bilinear inside.

    Args:
        x: Batch of images.
        matrix: 2 x 2 matrix that takes an output position (right, down) to the input position it shows.

    Example:
        >>> image = torch.arange(4.0).reshape(1, 1, 2, 2)
        >>> affine_warp(image, torch.eye(2)).tolist()
        [[[[0.0, 1.0], [2.0, 3.0]]]]
    """
    images = _as_images(x)
    height, width = images.shape[-2:]
    # affine_grid measures both axes in half image sides
    scale = torch.tensor([[1.0, height / width], [width / height, 1.0]])
    theta = torch.cat([matrix * scale, torch.zeros(2, 1)], dim=1)[None]
    grid = F.affine_grid(theta, [1, 1, height, width], align_corners=False)

    def warp(batch: Tensor) -> Tensor:
        return F.grid_sample(batch, grid.to(batch).expand(len(batch), -1, -1, -1), align_corners=False)

    return _in_floats(images, warp).reshape(x.shape)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Turn images counter-clockwise; quarter turns of square images are exact.

    Example:
        >>> rotate(torch.tensor([[[0, 1], [2, 3]]]), 90).tolist()
        [[[1, 3], [0, 2]]]
    """
    quarters, rest = divmod(degrees, 90)
    if rest == 0 and (quarters % 2 == 0 or x.shape[-1] == x.shape[-2]):
        return torch.rot90(_as_images(x), int(quarters) % 4, dims=(-2, -1)).reshape(x.shape)
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    return affine_warp(x, torch.tensor([[cos, -sin], [sin, cos]]))


def colour_cast(x: Tensor, gains: Sequence[float]) -> Tensor:
    """Multiply each colour channel of images by its gain.

    Example:
        >>> colour_cast(torch.ones(1, 3, 1, 1), [1.5, 1.0, 0.5]).flatten().tolist()
        [1.5, 1.0, 0.5]
    """
    if x.ndim != 4 or x.shape[1] != len(gains):
        raise PartitionError(
            f"A colour cast needs images with {len(gains)} channels, got a batch of shape {tuple(x.shape)}: use "
            "`ContrastSkew` for grey images."
        )
    return _in_floats(x, lambda images: images * torch.tensor(gains).to(images)[:, None, None])


def gaussian_blur(x: Tensor, sigma: float) -> Tensor:
    """Blur images with a normal kernel cut at three standard deviations; borders repeat the edge pixel.

    Args:
        x: Batch of images.
        sigma: Standard deviation in pixels; ``0`` returns the images as they are.

    Example:
        >>> gaussian_blur(torch.ones(1, 1, 4, 4), 1.0).round(decimals=5).unique().tolist()
        [1.0]
    """
    if sigma == 0:
        return x
    images = _as_images(x)
    radius = max(1, math.ceil(3 * sigma))
    kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
    kernel = kernel / kernel.sum()

    def blur(batch: Tensor) -> Tensor:
        channels = batch.shape[1]
        taps = kernel.to(batch).expand(channels, 1, -1)
        padded = F.pad(batch, (radius, radius, radius, radius), mode="replicate")
        rows = F.conv2d(padded, taps[:, :, None, :], groups=channels)
        return F.conv2d(rows, taps[:, :, :, None], groups=channels)

    return _in_floats(images, blur).reshape(x.shape)


def scale_contrast(x: Tensor, factor: float) -> Tensor:
    """Scale the distance of each pixel from the mean of its image.

    Example:
        >>> scale_contrast(torch.tensor([[[0.0, 1.0]]]), 0.5).tolist()
        [[[0.25, 0.75]]]
    """

    def scale(batch: Tensor) -> Tensor:
        mean = batch.mean(dim=(-3, -2, -1), keepdim=True)
        return mean + factor * (batch - mean)

    return x if factor == 1 else _in_floats(_as_images(x), scale).reshape(x.shape)


def label_permutations(
    num_classes: int, groups: int, rng: np.random.Generator, kind: PermutationKind = "swap"
) -> npt.NDArray[np.int64]:
    """New label of each class (column) in each group of clients (row).

    Args:
        num_classes: Number of classes.
        groups: Number of groups.
        rng: Source of randomness.
        kind: ``swap``: each group exchanges one pair of classes, different pairs as long as there are enough (Briggs).
            ``full``: each group but the first permutes all classes (CFL).

    Example:
        >>> table = label_permutations(4, 2, np.random.default_rng(0))
        >>> (table != np.arange(4)).sum(axis=1).tolist()
        [2, 2]
    """
    table = np.tile(np.arange(num_classes), (groups, 1))
    if kind == "full":
        table[1:] = rng.permuted(table[1:], axis=1)
        return table
    order = rng.permutation(num_classes)
    rows = np.arange(groups)
    first, second = order[2 * rows % num_classes], order[(2 * rows + 1) % num_classes]
    table[rows, first], table[rows, second] = second, first
    return table


def shifted_fraction(
    labels: npt.NDArray[Any], parts: Sequence[npt.NDArray[Any]], permutations: npt.NDArray[np.int64]
) -> float:
    """Share of samples whose label their client changes; client ``k`` belongs to group ``k mod G``.

    Example:
        >>> table = np.array([[0, 1], [1, 0]])
        >>> shifted_fraction(np.array([0, 1, 0, 1]), [np.array([0, 1, 2]), np.array([3])], table)
        0.25
    """
    group_of = np.repeat(np.arange(len(parts)) % len(permutations), [len(part) for part in parts])
    label_of = labels[np.concatenate(parts)]
    return float(np.mean(permutations[group_of, label_of] != label_of))


def fcube(
    num_samples: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Points in a cube, labelled by a plane, in four natural clients of two opposite octants each (NIID-Bench).

    All clients hold both labels equally often and one plane is right for all: only the features differ.

    Args:
        num_samples: Number of points, uniform in :math:`[-1, 1]^3`.
        rng: Source of randomness.

    Returns:
        The points, their labels (whether the first coordinate is positive) and their natural ids 0 to 3.

    Example:
        >>> x, y, ids = fcube(100, np.random.default_rng(0))
        >>> x.shape, np.unique(ids).tolist()
        ((100, 3), [0, 1, 2, 3])
    """
    points = rng.uniform(-1.0, 1.0, (num_samples, 3)).astype(np.float32)
    octant = (points > 0) @ np.array([4, 2, 1])
    # the opposite octant has all three signs flipped: 7 - octant
    return points, (points[:, 0] > 0).astype(np.int64), np.minimum(octant, 7 - octant).astype(np.int64)
