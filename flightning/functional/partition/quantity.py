"""Quantity skew: how many samples each client holds."""

from __future__ import annotations

import numpy as np

from flightning.functional.partition.dealing import Counts, Indices, counts_from_shares
from flightning.functional.partition.label import Labels, draw_until, split_by_class

__all__ = [
    "balancedness_sizes",
    "dirichlet_sizes",
    "lognormal_sizes",
    "long_tail",
    "power_law_sizes",
    "sized_split",
]


def sized_split(sizes: Counts, num_samples: int, rng: np.random.Generator) -> list[Indices]:
    """Deal random samples in parts of the given sizes; what is left over goes to nobody.

    Example:
        >>> parts = sized_split(np.array([3, 1]), 5, np.random.default_rng(0))
        >>> [len(part) for part in parts]
        [3, 1]
    """
    order = rng.permutation(num_samples)[: sizes.sum()]
    bounds = np.cumsum(sizes).tolist()
    return [order[start:stop] for start, stop in zip([0, *bounds[:-1]], bounds, strict=True)]


def dirichlet_sizes(
    num_samples: int, num_clients: int, rng: np.random.Generator, *, alpha: float, min_size: int = 10
) -> Counts:
    r"""Sizes with shares :math:`q \sim \mathrm{Dir}_N(\alpha)`, drawn again until each reaches ``min_size``.

    Raises:
        PartitionError: When no draw gives each client ``min_size`` samples.

    Example:
        >>> sizes = dirichlet_sizes(1000, 4, np.random.default_rng(0), alpha=0.5)
        >>> int(sizes.sum()), bool(sizes.min() >= 10)
        (1000, True)
    """
    return draw_until(
        lambda: counts_from_shares(rng.dirichlet(np.full(num_clients, alpha)), num_samples)[:, None],
        num_samples,
        num_clients,
        min_size,
        f"`alpha` = {alpha}",
    )[:, 0]


def lognormal_sizes(
    num_samples: int, num_clients: int, rng: np.random.Generator, *, sigma: float, min_size: int = 1
) -> Counts:
    r"""Sizes proportional to :math:`\exp(\sigma z), z \sim N(0, 1)`, above the ``min_size`` that everybody gets.

    Args:
        num_samples: Number of samples, all of which are dealt.
        num_clients: Number of clients.
        rng: Source of randomness.
        sigma: Log standard deviation; ``0`` gives equal sizes.
        min_size: Samples that everybody gets before the shares apply.

    Example:
        >>> lognormal_sizes(10, 3, np.random.default_rng(0), sigma=0.0).tolist()
        [3, 4, 3]
    """
    return counts_from_shares(rng.lognormal(0.0, sigma, num_clients), num_samples, min_size)


def power_law_sizes(num_samples: int, num_clients: int, *, exponent: float, min_size: int = 1) -> Counts:
    r"""Sizes proportional to :math:`(i + 1)^{-a}` for client :math:`i`: client 0 is the largest.

    Args:
        num_samples: Number of samples, all of which are dealt.
        num_clients: Number of clients.
        exponent: The power :math:`a`; ``0`` gives equal sizes.
        min_size: Samples that everybody gets before the shares apply.

    Example:
        >>> power_law_sizes(70, 3, exponent=1.0, min_size=0).tolist()
        [38, 19, 13]
    """
    return counts_from_shares(np.arange(1.0, num_clients + 1) ** -exponent, num_samples, min_size)


def balancedness_sizes(num_samples: int, num_clients: int, *, gamma: float, alpha: float = 0.1) -> Counts:
    r"""Sizes with shares :math:`\alpha / N + (1 - \alpha) \gamma^i / \sum_j \gamma^j` (Sattler et al.).

    Args:
        num_samples: Number of samples, all of which are dealt.
        num_clients: Number of clients.
        gamma: Ratio of the sizes of neighbouring clients; ``1`` gives equal sizes.
        alpha: Share that is divided equally.

    Example:
        >>> balancedness_sizes(70, 3, gamma=0.5, alpha=0.0).tolist()
        [40, 20, 10]
    """
    powers = gamma ** np.arange(num_clients, dtype=np.float64)
    return counts_from_shares(alpha / num_clients + (1 - alpha) * powers / powers.sum(), num_samples)


def long_tail(labels: Labels, rng: np.random.Generator, *, imbalance: float) -> Indices:
    r"""Random subset in which class :math:`c` keeps :math:`n_{\max} \cdot IF^{-c / (C - 1)}` samples, at least one.

    Args:
        labels: Label of each sample.
        rng: Source of randomness.
        imbalance: Imbalance factor :math:`IF`, the ratio of the largest to the smallest class; ``1`` keeps all.

    Returns:
        Sorted indices of the kept samples. A class with fewer samples than its target keeps all of them.

    Example:
        >>> labels = np.repeat(np.arange(3), 100)
        >>> np.bincount(labels[long_tail(labels, np.random.default_rng(0), imbalance=100)]).tolist()
        [100, 10, 1]
    """
    members = split_by_class(labels)
    largest = max(len(one) for one in members)
    place = np.arange(len(members)) / max(len(members) - 1, 1)
    targets = np.maximum(np.rint(largest * imbalance**-place), 1).astype(np.int64)
    kept = [rng.permutation(one)[:target] for one, target in zip(members, targets, strict=True)]
    return np.sort(np.concatenate(kept))
