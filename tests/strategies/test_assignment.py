"""Longest first is never far from the best that there is."""

from itertools import product
from random import Random

import pytest

from flightning.strategies.assignment import assign


def makespan(steps, ranks, processes):
    return max(sum(s for s, own in zip(steps, ranks, strict=True) if own == rank) for rank in range(processes))


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_the_last_process_ends_within_four_thirds_of_the_optimum(processes, seed):
    # Graham (1969): 4/3 - 1/(3 P) of the optimum, which is found here by trying everything
    random = Random(seed)
    steps = [random.randint(1, 20) for _ in range(random.randint(1, 7))]
    best = min(makespan(steps, ranks, processes) for ranks in product(range(processes), repeat=len(steps)))
    assert makespan(steps, assign(steps, processes), processes) <= (4 / 3 - 1 / (3 * processes)) * best + 1e-9


def test_every_client_has_a_process():
    ranks = assign([3] * 10, 4)
    assert len(ranks) == 10
    assert set(ranks) == set(range(4))
