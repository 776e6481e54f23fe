"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flightning.errors import ConfigurationError

__all__ = ["SAMPLERS", "cohort_size", "sample_cohort"]

Sampler = Callable[[NDArray[np.int64], NDArray[np.int64], int, float, np.random.Generator], NDArray[np.int64]]


def cohort_size(participation: float | int, num_clients: int) -> int:
    r"""Size of a cohort: :math:`m = \max(1, \mathrm{round}(f N))` of a fraction, or the count itself.

    Args:
        participation: A float in (0, 1] is a fraction, an integer of at least 1 a count.
        num_clients: How many clients can be sampled.

    Raises:
        ConfigurationError: Where this selects nobody or more than there are.

    Example:
        >>> cohort_size(0.1, 25), cohort_size(1.0, 25), cohort_size(1, 25)
        (2, 25, 1)
    """
    is_count = isinstance(participation, int) and not isinstance(participation, bool)
    if num_clients < 1 or participation <= 0 or (not is_count and participation > 1):
        raise ConfigurationError(
            f"`participation={participation}` of {num_clients} clients with data selects nobody or too many: give a "
            "fraction in (0, 1], such as 0.1, or a whole number of clients of at least 1."
        )
    if is_count and participation > num_clients:
        raise ConfigurationError(
            f"`participation={participation}` asks for more clients than the {num_clients} that have data: lower it, "
            "or give the fraction 1.0 for all of them."
        )
    return int(participation) if is_count else max(1, round(participation * num_clients))


def _fixed(
    clients: NDArray[np.int64], sizes: NDArray[np.int64], m: int, probability: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    return rng.choice(clients, m, replace=False)


def _bernoulli(
    clients: NDArray[np.int64], sizes: NDArray[np.int64], m: int, probability: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    while True:  # ends almost surely, since the probability is positive
        chosen = clients[rng.random(len(clients)) < probability]
        if len(chosen):
            return rng.permutation(chosen)


def _weighted(
    clients: NDArray[np.int64], sizes: NDArray[np.int64], m: int, probability: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    return rng.choice(clients, m, replace=False, p=sizes / sizes.sum())


SAMPLERS: dict[str, Sampler] = {"fixed": _fixed, "bernoulli": _bernoulli, "weighted": _weighted}


def sample_cohort(
    sizes: NDArray[np.int64], participation: float | int, sampler: str, rng: np.random.Generator
) -> list[int]:
    """Draw the clients of a round; a client without samples is never drawn.

    Args:
        sizes: Training samples of each client.
        participation: Fraction in (0, 1] or count of the clients that have samples.
        sampler: ``fixed`` (that many, uniformly without replacement), ``bernoulli`` (each client by itself with that
            probability, drawn again while nobody is chosen) or ``weighted`` (that many, by number of samples).
        rng: Generator of this round.

    Returns:
        Client numbers in the order in which they train.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> sample_cohort(np.array([3, 0, 5, 2]), 1.0, "fixed", rng)
        [3, 0, 2]
    """
    clients = np.flatnonzero(sizes > 0)
    m = cohort_size(participation, len(clients))
    # an integer is a count: then, and only then, the probability follows from the size of the cohort
    probability = m / len(clients) if isinstance(participation, int) else participation
    return [int(c) for c in SAMPLERS[sampler](clients, sizes[clients], m, probability, rng)]
