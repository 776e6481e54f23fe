"""Noise with classes: samples that belong to nobody (VHL)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["virtual_samples"]


def virtual_samples(
    num_classes: int, per_class: int, shape: tuple[int, ...], generator: torch.Generator, spread: float = 0.5
) -> tuple[Tensor, Tensor]:
    r"""Draw noise around one random pattern per class.

    A sample of class :math:`c` is :math:`u(\pi_c + s \epsilon)` with standard normal pattern :math:`\pi_c` and noise
    :math:`\epsilon`. Images are drawn with a quarter of the pixels per side and enlarged by :math:`u`, so that
    convolutions find something in them.

    Args:
        num_classes: Classes.
        per_class: Samples of each.
        shape: Shape of one sample, with three sizes that of an image.
        generator: Source of patterns and noise, on the CPU.
        spread: Size :math:`s` of the noise against the pattern; 0 repeats the pattern.

    Returns:
        Samples, class after class, and their classes.

    Example:
        >>> inputs, labels = virtual_samples(2, 3, (1, 8, 8), torch.Generator().manual_seed(0))
        >>> inputs.shape, labels
        (torch.Size([6, 1, 8, 8]), tensor([0, 0, 0, 1, 1, 1]))
    """
    coarse = (shape[0], -(-shape[1] // 4), -(-shape[2] // 4)) if len(shape) == 3 else shape
    labels = torch.arange(num_classes).repeat_interleave(per_class)
    patterns = torch.randn(num_classes, *coarse, generator=generator)
    samples = patterns[labels] + spread * torch.randn(len(labels), *coarse, generator=generator)
    if len(shape) == 3:
        samples = F.interpolate(samples, size=shape[1:], mode="bilinear", align_corners=False)
    return samples, labels
