"""ResNet50 for small images, with its blocks in three granularities.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, with the stem that is usual for 32x32 pixels.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from flightning.errors import ConfigurationError
from flightning.nets.base import Net, image_shape, projection_head

__all__ = ["ResNet50"]

NORMS = ("batch", "group")
GRANULARITIES = ("stages", "bottlenecks", "convs")


def norm_layer(norm: str, channels: int) -> nn.Module:
    """Normalization of one convolution's output."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(32, channels)


def conv_norm(inputs: int, outputs: int, kernel_size: int, stride: int, norm: str, *, relu: bool) -> nn.Sequential:
    """One convolution of a residual branch with its normalization and, on request, its ReLU."""
    conv = nn.Conv2d(inputs, outputs, kernel_size, stride, padding=kernel_size // 2, bias=False)
    layers: list[nn.Module] = [conv.to(memory_format=torch.channels_last), norm_layer(norm, outputs)]
    return nn.Sequential(*layers, nn.ReLU()) if relu else nn.Sequential(*layers)


class Bottleneck(nn.Module):
    """Residual block of a 1x1, a 3x3 and a 1x1 convolution; the last one of the net also pools and flattens."""

    def __init__(self, inputs: int, width: int, stride: int, norm: str, *, pool: bool) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = conv_norm(inputs, width, 1, 1, norm, relu=True)
        self.conv2 = conv_norm(width, width, 3, stride, norm, relu=True)
        self.conv3 = conv_norm(width, outputs, 1, 1, norm, relu=False)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = conv_norm(inputs, outputs, 1, stride, norm, relu=False)
        self.relu = nn.ReLU()
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()) if pool else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual to the skip connection."""
        out: Tensor = self.pool(self.relu(self.conv3(self.conv2(self.conv1(x))) + self.skip(x)))
        return out


class ResNet50(Net):
    """ResNet50 with a 3x3 stem of stride 1 and no max pooling; 23 705 252 parameters on CIFAR100.

    Args:
        input_shape: Shape of one image, (channels, height, width).
        num_classes: Number of logits.
        projection: Size of the output of MOON's projection head between the trunk and the classifier. ``None``
            builds no such head.
        norm: ``batch``, or ``group`` for GroupNorm with 32 groups, which keeps no running statistics and reads
            batches of one sample.
        granularity: What counts as a block: ``stages`` (``stem``, ``layer1`` to ``layer4``, ``head``: 6),
            ``bottlenecks`` (18) or ``convs`` (50; the third convolution of a bottleneck counts with the residual
            sum, hence under the name of the bottleneck, and blocks inside a bottleneck form no chain). A projection
            head is one more block.

    Raises:
        ConfigurationError: If ``norm`` or ``granularity`` is unknown.

    Example:
        >>> net = ResNet50((3, 32, 32), 100)
        >>> sum(p.numel() for p in net.parameters())
        23705252
        >>> [name for name, _ in net.blocks]
        ['stem', 'layer1', 'layer2', 'layer3', 'layer4', 'head']
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        projection: int | None = None,
        norm: Literal["batch", "group"] = "batch",
        granularity: Literal["stages", "bottlenecks", "convs"] = "stages",
    ) -> None:
        super().__init__(input_shape, num_classes)
        channels, _, _ = image_shape(self, 1, "`MLP`")
        if norm not in NORMS:
            raise ConfigurationError(f"`norm` must be one of {NORMS}, got {norm!r}.")
        if granularity not in GRANULARITIES:
            raise ConfigurationError(f"`granularity` must be one of {GRANULARITIES}, got {granularity!r}.")
        self.granularity = granularity
        self.stem = conv_norm(channels, 64, 3, 1, norm, relu=True)
        inputs = 64
        for index, depth in enumerate((3, 4, 6, 3)):
            width = 64 * 2**index
            bottlenecks = []
            for position in range(depth):
                stride = 2 if position == 0 and index > 0 else 1
                pool = index == 3 and position == depth - 1
                bottlenecks.append(Bottleneck(inputs, width, stride, norm, pool=pool))
                inputs = 4 * width
            self.add_module(f"layer{index + 1}", nn.Sequential(*bottlenecks))
        if projection is not None:
            self.projection = projection_head(inputs, projection)
        self.head = nn.Linear(inputs if projection is None else projection, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def blocks(self) -> list[tuple[str, nn.Module]]:
        """Name and module of each block, in the granularity chosen."""
        blocks: list[tuple[str, nn.Module]] = []
        for name, stage in super().blocks:
            if self.granularity == "stages" or not name.startswith("layer"):
                blocks.append((name, stage))
                continue
            for position, bottleneck in stage.named_children():
                if self.granularity == "convs":
                    for conv in ("conv1", "conv2"):
                        blocks.append((f"{name}.{position}.{conv}", bottleneck.get_submodule(conv)))
                blocks.append((f"{name}.{position}", bottleneck))
        return blocks
