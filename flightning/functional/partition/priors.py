"""Label skew drawn client by client: a class prior and a size for each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flightning.functional.partition.dealing import NOBODY, Counts, Indices
from flightning.functional.partition.label import Labels, deal_classes
from flightning.functional.partition.quantity import lognormal_sizes

__all__ = ["dirichlet_per_client_split"]


def dirichlet_per_client_split(
    labels: Labels, num_clients: int, rng: np.random.Generator, *, alpha: float, sigma: float = 0.0
) -> list[Indices]:
    r"""Give each client a class prior :math:`q_k \sim \mathrm{Dir}_C(\alpha)` and a size, then draw its samples.

    The places of all clients are filled in random order. A class that is used up leaves the priors, which are
    renormalised over the others; a client with no mass on them draws uniformly. All samples are dealt.

    Args:
        labels: Label of each sample.
        num_clients: Number of clients.
        rng: Source of randomness.
        alpha: Concentration of the priors; small values skew more.
        sigma: Log standard deviation of lognormal sizes; ``0`` gives sizes that differ by at most one.

    Example:
        >>> labels = np.repeat(np.arange(10), 10)
        >>> [len(part) for part in dirichlet_per_client_split(labels, 4, np.random.default_rng(0), alpha=0.3)]
        [25, 25, 25, 25]
    """
    left = np.unique(labels, return_counts=True)[1]
    sizes = lognormal_sizes(len(labels), num_clients, rng, sigma=sigma)
    priors = rng.dirichlet(np.full(len(left), alpha), num_clients)
    places = rng.permutation(np.repeat(np.arange(num_clients), sizes))
    drawn = _draw_classes(places, priors, left > 0, rng)
    counts = np.zeros((num_clients, len(left)), dtype=np.int64)
    while True:
        stop, empty = _first_shortage(drawn, left)
        np.add.at(counts, (places[:stop], drawn[:stop]), 1)
        left = left - np.bincount(drawn[:stop], minlength=len(left))
        places, drawn = places[stop:], drawn[stop:]
        if not len(places):
            return deal_classes(labels, counts, rng)
        # only these are drawn again: the others already follow the prior given that it avoids the empty class
        again = drawn == empty
        drawn[again] = _draw_classes(places[again], priors, left > 0, rng)


def _draw_classes(
    places: Indices, priors: npt.NDArray[np.float64], available: npt.NDArray[np.bool_], rng: np.random.Generator
) -> Indices:
    """One available class for each place from the prior of its client."""
    clients, row = np.unique(places, return_inverse=True)
    weights = priors[clients] * available
    weights[weights.sum(axis=1) == 0] = available
    cumulative = np.cumsum(weights, axis=1)
    cumulative /= cumulative[:, -1:]
    # row k of the cumulative weights, shifted by k, turns the draws of all clients into one sorted search
    shifted = (cumulative + np.arange(len(clients))[:, None]).ravel()
    # below one by more than the rounding error of the shift
    uniform = np.minimum(rng.random(len(places)), 1 - 1e-9)
    drawn: Indices = np.searchsorted(shifted, row + uniform, side="right") - row * weights.shape[1]
    return drawn


def _first_shortage(drawn: Indices, left: Counts) -> tuple[int, int]:
    """Number of draws before one meets a used-up class, and that class."""
    stop, empty = len(drawn), NOBODY
    for k in np.flatnonzero(np.bincount(drawn, minlength=len(left)) > left):
        position = int(np.flatnonzero(drawn == k)[left[k]])
        if position < stop:
            stop, empty = position, int(k)
    return stop, empty
