"""Skews that change what a client sees: its inputs (feature skew) or its labels (concept shift)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flightning.datamodules.settings import Settings, require
from flightning.errors import PartitionError
from flightning.functional.feature_skew import (
    PermutationKind,
    add_noise,
    affine_warp,
    colour_cast,
    gaussian_blur,
    label_permutations,
    rotate,
    scale_contrast,
    tile_mask,
)

__all__ = [
    "AffineSkew",
    "BlurSkew",
    "ColourCast",
    "ContrastSkew",
    "FeatureSkew",
    "GroupedSkew",
    "LabelPermutation",
    "NoiseSkew",
    "RotationSkew",
]

# keeps the stream apart from those of other parts that use the same seed
_STREAM = int.from_bytes(b"skew", "big")


class FeatureSkew(Settings, ABC):
    """Rule that changes all samples of a client, the same way each time for the same seed and client.

    Apply it to the training data *and* to the local test data of a client.

    Example:
        >>> class Darker(FeatureSkew):
        ...     def apply(self, x, y, client, num_clients, seed):
        ...         return x / (client + 1), y
        >>> Darker().apply(torch.ones(1), torch.zeros(1), client=1, num_clients=2, seed=0)[0].tolist()
        [0.5]
    """

    @abstractmethod
    def apply(self, x: Tensor, y: Tensor, client: int, num_clients: int, seed: int) -> tuple[Tensor, Tensor]:
        """Change the samples of one client.

        Args:
            x: All inputs of the client, samples first.
            y: Their labels.
            client: The client.
            num_clients: Number of clients.
            seed: Seed of the skew.

        Returns:
            The new inputs and labels; the given ones are left as they are.
        """

    def check(self, num_classes: int) -> None:
        """Refuse data with this many classes; a rule that leaves the labels alone takes any number."""


class GroupedSkew(FeatureSkew):
    """Skew that is the same for all clients of a group; client ``k`` belongs to group ``k mod groups``.

    Args:
        groups: Number of groups.
    """

    def __init__(self, groups: int) -> None:
        require(groups >= 1, "groups", groups, "must be >= 1", "use 4 groups, or 1 for no skew")
        self.groups = groups


def _ramp(position: int, steps: int) -> float:
    """Position in 0 .. steps - 1 as a number from 0 to 1."""
    return position / (steps - 1) if steps > 1 else 0.0


class NoiseSkew(FeatureSkew):
    r"""Add normal noise whose level grows with the client (NIID-Bench).

    Client :math:`i` of :math:`N` gets the standard deviation :math:`\sigma i / (N - 1)`: client 0 stays clean.

    Args:
        sigma: Standard deviation :math:`\sigma` of the last client, on the scale of the inputs (0 to 1 for bytes).
        tiles: Cut the image into ``tiles`` x ``tiles`` and put the noise of client ``i`` into tile ``i`` only; ``1``
            is the whole image.

    Example:
        >>> x, y = torch.zeros(1, 4), torch.zeros(1)
        >>> NoiseSkew(sigma=0.1).apply(x, y, client=0, num_clients=10, seed=0)[0].tolist()
        [[0.0, 0.0, 0.0, 0.0]]
    """

    shown = ("sigma",)

    def __init__(self, sigma: float = 0.1, tiles: int = 1) -> None:
        require(sigma >= 0, "sigma", sigma, "must be >= 0", "use 0.1 as in NIID-Bench")
        require(tiles >= 1, "tiles", tiles, "must be >= 1", "use 1 for noise everywhere")
        self.sigma = sigma
        self.tiles = tiles

    def apply(self, x: Tensor, y: Tensor, client: int, num_clients: int, seed: int) -> tuple[Tensor, Tensor]:
        """Add the noise of this client."""
        mask = None
        if self.tiles > 1:
            if x.ndim < 3:
                raise PartitionError(
                    f"`tiles` = {self.tiles} needs images, got a batch of shape {tuple(x.shape)}: use `tiles` = 1."
                )
            mask = tile_mask(x.shape[-2], x.shape[-1], self.tiles, client)
        return add_noise(x, self.sigma * _ramp(client, num_clients), _generator(seed, client), mask), y


class RotationSkew(GroupedSkew):
    """Turn the images of client ``k`` by ``k mod groups`` equal parts of a full turn (IFCA).

    Args:
        groups: Number of groups; 4 turns by 0, 90, 180 and 270 degrees.

    Example:
        >>> image = torch.tensor([[[0, 1], [2, 3]]])
        >>> RotationSkew(groups=4).apply(image, torch.zeros(1), client=6, num_clients=8, seed=0)[0].tolist()
        [[[3, 2], [1, 0]]]
    """

    shown = ("groups",)

    def __init__(self, groups: int = 4) -> None:
        super().__init__(groups)

    def apply(self, x: Tensor, y: Tensor, client: int, num_clients: int, seed: int) -> tuple[Tensor, Tensor]:
        """Turn by the angle of the client's group."""
        return rotate(x, 360 * (client % self.groups) / self.groups), y


class ColourCast(GroupedSkew):
    """Tint the images of client ``k`` in the colour of group ``k mod groups``; group 0 stays neutral.

    Args:
        strength: Largest change of a channel, as a share of its value, in ``[0, 1]``.
        groups: Number of groups; the tints are spread evenly over the colour circle.

    Example:
        >>> images = torch.ones(1, 3, 1, 1)
        >>> tinted, _ = ColourCast(strength=0.4).apply(images, torch.zeros(1), client=1, num_clients=4, seed=0)
        >>> [round(value, 4) for value in tinted.flatten().tolist()]
        [1.4, 0.8, 0.8]
    """

    shown = ("strength",)

    def __init__(self, strength: float = 0.5, groups: int = 4) -> None:
        require(0 <= strength <= 1, "strength", strength, "must lie in [0, 1]", "use 0.5")
        super().__init__(groups)
        self.strength = strength

    def apply(self, x: Tensor, y: Tensor, client: int, num_clients: int, seed: int) -> tuple[Tensor, Tensor]:
        """Multiply the channels by the gains of the client's group."""
        group = client % self.groups
        strength = self.strength if group else 0.0
        hue = (group - 1) / max(self.groups - 1, 1)
        gains = [1 + strength * math.cos(2 * math.pi * (hue - channel / 3)) for channel in range(3)]
        return colour_cast(x, gains), y


class BlurSkew(GroupedSkew):
    """Blur the images more from group to group; group 0 stays sharp.

    Args:
        sigma: Standard deviation of the blur of the last group, in pixels.
        groups: Number of groups; client ``k`` belongs to group ``k mod groups``.

    Example:
        >>> BlurSkew(sigma=1.5)
        BlurSkew(sigma=1.5)
    """

    shown = ("sigma",)

    def __init__(self, sigma: float = 2.0, groups: int = 4) -> None:
        require(sigma >= 0, "sigma", sigma, "must be >= 0", "use 2 for a strong blur of small images")
        super().__init__(groups)
        self.sigma = sigma

    def apply(self, x: Tensor, y: Tensor, client: int, num_clients: int, seed: int) -> tuple[Tensor, Tensor]:
        """Blur as much as the client's group does."""
        return gaussian_blur(x, self.sigma * _ramp(client % self.groups, self.groups)), y


class ContrastSkew(GroupedSkew):
    """Take contrast away more from group to group; group 0 keeps all of it.

    Args:
        strength: Share of the contrast that the last group loses, in ``[0, 1]``.
        groups: Number of groups; client ``k`` belongs to group ``k mod groups``.

    Example:
        >>> image = torch.tensor([[[0.0, 1.0]]])
        >>> flat, _ = ContrastSkew(strength=0.5, groups=2).apply(image, torch.zeros(1), 1, num_clients=2, seed=0)
        >>> flat.tolist()
        [[[0.25, 0.75]]]
    """

    shown = ("strength",)

    def __init__(self, strength: float = 0.8, groups: int = 4) -> None:
        require(0 <= strength <= 1, "strength", strength, "must lie in [0, 1]", "use 0.8")
        super().__init__(groups)
        self.strength = strength

    def apply(self, x: Tensor, y: Tensor, client: int, num_clients: int, seed: int) -> tuple[Tensor, Tensor]:
        """Scale the contrast as the client's group does."""
        return scale_contrast(x, 1 - self.strength * _ramp(client % self.groups, self.groups)), y


class AffineSkew(FeatureSkew):
    """Give each client its own handwriting: a random slant, turn and size of its images.

    A stand-in for writers where a data set has no writer ids.

    Args:
        strength: Standard deviation of the turn in radians and of slant and stretch; ``0`` changes nothing.

    Example:
        >>> x, y = torch.rand(2, 1, 8, 8), torch.zeros(2)
        >>> styled, _ = AffineSkew(strength=0.2).apply(x, y, client=3, num_clients=10, seed=0)
        >>> styled.shape
        torch.Size([2, 1, 8, 8])
    """

    shown = ("strength",)

    def __init__(self, strength: float = 0.2) -> None:
        require(strength >= 0, "strength", strength, "must be >= 0", "use 0.2")
        self.strength = strength

    def apply(self, x: Tensor, y: Tensor, client: int, num_clients: int, seed: int) -> tuple[Tensor, Tensor]:
        """Warp by the matrix of this client."""
        if self.strength == 0:
            return x, y
        turn, slant, wide, high = (torch.randn(4, generator=_generator(seed, client)) * self.strength).tolist()
        cos, sin = math.cos(turn), math.sin(turn)
        stretch = torch.tensor([[math.exp(wide), slant], [0.0, math.exp(high)]])
        return affine_warp(x, torch.tensor([[cos, -sin], [sin, cos]]) @ stretch), y


class LabelPermutation(GroupedSkew):
    """Concept shift: groups of clients call the same things by different labels.

    A global test set has no right answers then: evaluate each group on its own labels.

    Args:
        num_classes: Number of classes.
        groups: Number of groups; client ``k`` belongs to group ``k mod groups``.
        kind: ``swap``: each group exchanges one pair of classes (Briggs). ``full``: each group but the first permutes
            all classes (CFL).

    Example:
        >>> y = torch.arange(10)
        >>> _, new = LabelPermutation(num_classes=10).apply(torch.zeros(10), y, client=0, num_clients=4, seed=0)
        >>> int((new != y).sum())
        2
    """

    shown = ("groups", "kind")

    def __init__(self, num_classes: int = 10, groups: int = 4, kind: PermutationKind = "swap") -> None:
        require(num_classes >= 2, "num_classes", num_classes, "must be >= 2", "use the number of classes of the data")
        super().__init__(groups)
        names = get_args(PermutationKind)
        require(kind in names, "kind", kind, f"must be one of {', '.join(names)}", "use swap")
        self.num_classes = num_classes
        self.kind = kind

    def check(self, num_classes: int) -> None:
        """Refuse any other number of classes than the rule permutes."""
        if num_classes != self.num_classes:
            raise PartitionError(
                f"`LabelPermutation` permutes `num_classes` = {self.num_classes} classes, but the data has "
                f"{num_classes}: set `skew.num_classes` to {num_classes}."
            )

    def permutations(self, seed: int) -> npt.NDArray[np.int64]:
        """New label of each class (column) in each group (row)."""
        return label_permutations(self.num_classes, self.groups, np.random.default_rng([seed, _STREAM]), self.kind)

    def apply(self, x: Tensor, y: Tensor, client: int, num_clients: int, seed: int) -> tuple[Tensor, Tensor]:
        """Relabel by the permutation of the client's group."""
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.num_classes:
            raise PartitionError(
                f"Client {client} has the label {int(y.max())}, but `num_classes` = {self.num_classes}: set "
                "`num_classes` to the number of classes of the data."
            )
        table = torch.from_numpy(self.permutations(seed)[client % self.groups])
        return x, table.to(y)[y.long()]


def _generator(seed: int, client: int) -> torch.Generator:
    state = np.random.SeedSequence([seed, client, _STREAM]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))
