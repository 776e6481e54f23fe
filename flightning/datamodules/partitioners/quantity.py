"""Partitioners that skew the sizes, alone or together with the labels."""

from __future__ import annotations

import math
import warnings
from typing import get_args

import numpy as np
import numpy.typing as npt

from flightning.datamodules.partitioners.base import Partitioner
from flightning.datamodules.settings import require
from flightning.functional.partition import (
    Leftover,
    balancedness_sizes,
    dirichlet_per_client_split,
    dirichlet_sizes,
    lognormal_sizes,
    mixed_split,
    power_law_sizes,
    sized_split,
    sorted_mix_split,
)

__all__ = [
    "DirichletPerClient",
    "MixedSkew",
    "QuantityBalancedness",
    "QuantityDirichlet",
    "QuantityLognormal",
    "QuantityPowerLaw",
    "SortedMix",
]

Labels = npt.NDArray[np.int64]
Parts = list[npt.NDArray[np.int64]]


class DirichletPerClient(Partitioner):
    r"""Draw the samples of each client from its own class prior :math:`q_k \sim \mathrm{Dir}_C(\alpha)`.

    The split of FedDyn, FedDC and FedAvgM; sizes do not depend on the labels.

    Args:
        alpha: Concentration of the class priors, > 0; small values skew more.
        sigma: Log standard deviation of lognormal sizes; ``0`` gives equal sizes.

    Example:
        >>> labels = np.repeat(np.arange(10), 10)
        >>> [len(part) for part in DirichletPerClient(alpha=0.3)(labels, 4, seed=0)]
        [25, 25, 25, 25]
    """

    shown = ("alpha",)

    def __init__(self, alpha: float = 0.3, sigma: float = 0.0) -> None:
        require(
            0 < alpha < math.inf,
            "alpha",
            alpha,
            "must be > 0 and finite",
            "use 0.1 for strong skew or 100 for nearly IID",
        )
        require(0 <= sigma < math.inf, "sigma", sigma, "must be >= 0 and finite", "use 0 for equal sizes")
        self.alpha = alpha
        self.sigma = sigma

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Fill the places of all clients in random order."""
        return dirichlet_per_client_split(labels, num_clients, rng, alpha=self.alpha, sigma=self.sigma)


class SortedMix(Partitioner):
    """Random sizes; a share of each client from the label-sorted list, the rest random (CDFDM "2-class Non-IID").

    The sorted list is walked from the first class on: when the sizes add up to much less than the data set, its last
    classes come from the random share alone.

    Args:
        sorted_fraction: Share ``P`` that comes from the sorted list, in ``[0, 1]``; ``0`` is IID.
        low: Smallest size.
        high: Largest size.
        leftover: Samples that nobody drew are left out (``drop``), all go to the smallest client (``literal``, as the
            paper writes), or one at a time to the smallest client of the moment (``fill_smallest``).
        overlap: Draw the random part from all samples, so that two clients may hold the same one.

    Example:
        >>> SortedMix(sorted_fraction=0.8, leftover="fill_smallest")
        SortedMix(sorted_fraction=0.8, leftover='fill_smallest')
    """

    shown = ("sorted_fraction",)

    def __init__(
        self,
        sorted_fraction: float = 0.6,
        low: int = 120,
        high: int = 600,
        leftover: Leftover = "drop",
        overlap: bool = False,
    ) -> None:
        require(
            0 <= sorted_fraction <= 1, "sorted_fraction", sorted_fraction, "must lie in [0, 1]", "write 60 % as 0.6"
        )
        require(low >= 1, "low", low, "must be >= 1", "use 120 as in the paper")
        require(high >= low, "high", high, f"must be at least `low` = {low}", "use 600 as in the paper")
        names = get_args(Leftover)
        require(leftover in names, "leftover", leftover, f"must be one of {', '.join(names)}", "use drop")
        self.sorted_fraction = sorted_fraction
        self.low = low
        self.high = high
        self.leftover = leftover
        self.overlap = overlap

    @property
    def allows_overlap(self) -> bool:
        """As ``overlap`` says."""
        return self.overlap

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Draw the sizes, then both shares of each client; warn where classes are left out."""
        parts = sorted_mix_split(
            labels,
            num_clients,
            rng,
            sorted_fraction=self.sorted_fraction,
            low=self.low,
            high=self.high,
            leftover=self.leftover,
            overlap=self.overlap,
        )
        classes, held = np.unique(labels), np.unique(labels[np.concatenate(parts)])
        if len(held) < len(classes):
            warnings.warn(
                f"No client holds {len(classes) - len(held)} of {len(classes)} classes, their samples are left out: "
                "use more clients, raise `high`, lower `sorted_fraction`, or set `leftover: fill_smallest`.",
                stacklevel=3,
            )
        return parts


class QuantityDirichlet(Partitioner):
    r"""IID contents, sizes with shares :math:`q \sim \mathrm{Dir}_N(\alpha)` (NIID-Bench).

    Args:
        alpha: Concentration of the shares, > 0; small values make few clients hold most samples.
        min_size: Least number of samples of a client; drawn again until reached.

    Example:
        >>> sum(len(part) for part in QuantityDirichlet(alpha=0.5)(np.zeros(500, dtype=int), 5, seed=0))
        500
    """

    shown = ("alpha",)

    def __init__(self, alpha: float = 0.5, min_size: int = 10) -> None:
        require(0 < alpha < math.inf, "alpha", alpha, "must be > 0 and finite", "use 0.5 as in NIID-Bench")
        require(min_size >= 0, "min_size", min_size, "must be >= 0", "use 0 to allow empty clients")
        self.alpha = alpha
        self.min_size = min_size

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Draw the sizes, then random samples."""
        sizes = dirichlet_sizes(len(labels), num_clients, rng, alpha=self.alpha, min_size=self.min_size)
        return sized_split(sizes, len(labels), rng)


class QuantityLognormal(Partitioner):
    """IID contents, lognormal sizes (FedDyn).

    Args:
        sigma: Log standard deviation; ``0`` gives equal sizes.
        min_size: Samples that everybody gets before the shares apply.

    Example:
        >>> [len(part) for part in QuantityLognormal(sigma=0.0)(np.zeros(9, dtype=int), 3, seed=0)]
        [3, 3, 3]
    """

    shown = ("sigma",)

    def __init__(self, sigma: float = 1.0, min_size: int = 1) -> None:
        require(0 <= sigma < math.inf, "sigma", sigma, "must be >= 0 and finite", "use 0 for equal sizes")
        require(min_size >= 0, "min_size", min_size, "must be >= 0", "use 0 to allow empty clients")
        self.sigma = sigma
        self.min_size = min_size

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Draw the sizes, then random samples."""
        sizes = lognormal_sizes(len(labels), num_clients, rng, sigma=self.sigma, min_size=self.min_size)
        return sized_split(sizes, len(labels), rng)


class QuantityPowerLaw(Partitioner):
    r"""IID contents, sizes proportional to :math:`(i + 1)^{-a}` for client :math:`i`.

    Args:
        exponent: The power :math:`a`; ``0`` gives equal sizes.
        min_size: Samples that everybody gets before the shares apply.

    Example:
        >>> [len(part) for part in QuantityPowerLaw(exponent=1.0, min_size=0)(np.zeros(70, dtype=int), 3, seed=0)]
        [38, 19, 13]
    """

    shown = ("exponent",)

    def __init__(self, exponent: float = 1.0, min_size: int = 1) -> None:
        require(0 <= exponent < math.inf, "exponent", exponent, "must be >= 0 and finite", "use 0 for equal sizes")
        require(min_size >= 0, "min_size", min_size, "must be >= 0", "use 0 to allow empty clients")
        self.exponent = exponent
        self.min_size = min_size

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Random samples in parts of these sizes."""
        sizes = power_law_sizes(len(labels), num_clients, exponent=self.exponent, min_size=self.min_size)
        return sized_split(sizes, len(labels), rng)


class QuantityBalancedness(Partitioner):
    r"""IID contents, sizes with shares :math:`\alpha / N + (1 - \alpha) \gamma^i / \sum_j \gamma^j` (Sattler).

    Args:
        gamma: Ratio of the sizes of neighbouring clients in ``(0, 1]``; ``1`` gives equal sizes.
        alpha: Share that is divided equally, in ``[0, 1]``.

    Example:
        >>> labels = np.zeros(70, dtype=int)
        >>> [len(part) for part in QuantityBalancedness(gamma=0.5, alpha=0.0)(labels, 3, seed=0)]
        [40, 20, 10]
    """

    shown = ("gamma",)

    def __init__(self, gamma: float = 0.9, alpha: float = 0.1) -> None:
        require(0 < gamma <= 1, "gamma", gamma, "must lie in (0, 1]", "use 1 for equal sizes")
        require(0 <= alpha <= 1, "alpha", alpha, "must lie in [0, 1]", "use 0.1 as in the paper")
        self.gamma = gamma
        self.alpha = alpha

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Random samples in parts of these sizes."""
        return sized_split(
            balancedness_sizes(len(labels), num_clients, gamma=self.gamma, alpha=self.alpha), len(labels), rng
        )


class MixedSkew(Partitioner):
    r"""Label and quantity skew at once: a few classes each, cut at :math:`\mathrm{Dir}(\alpha)` shares (NIID-Bench).

    Args:
        classes: Classes of each client.
        alpha: Concentration of the shares of the holders of a class, > 0.
        min_size: Least number of samples of a client; drawn again until reached.

    Example:
        >>> MixedSkew(classes=2, alpha=0.5)
        MixedSkew(classes=2, alpha=0.5)
    """

    shown = ("classes", "alpha")

    def __init__(self, classes: int = 2, alpha: float = 0.5, min_size: int = 10) -> None:
        require(classes >= 1, "classes", classes, "must be >= 1", "use 2 as in NIID-Bench")
        require(0 < alpha < math.inf, "alpha", alpha, "must be > 0 and finite", "use 0.5 as in NIID-Bench")
        require(min_size >= 0, "min_size", min_size, "must be >= 0", "use 0 to allow empty clients")
        self.classes = classes
        self.alpha = alpha
        self.min_size = min_size

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Choose the holders of each class, then draw their shares."""
        return mixed_split(labels, num_clients, rng, classes=self.classes, alpha=self.alpha, min_size=self.min_size)
