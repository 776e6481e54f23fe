import random

import numpy as np
import pytest
import torch

from flightning.functional.seeding import (
    derive_seed,
    numpy_generator,
    resolve_seed,
    seed_global_generators,
    torch_generator,
)


def test_seeds_of_different_keys_differ():
    keys = [(s, r, c) for s in range(5) for r in range(10) for c in range(10)]
    assert len({derive_seed(*k) for k in keys}) == len(keys)


def test_a_negative_seed_is_a_seed_of_its_own():
    assert derive_seed(-1, 0) != derive_seed(1, 0)


def test_seeds_do_not_change_between_versions():
    # a resumed run must plan what the interrupted one planned, also after an update
    assert derive_seed(0, 1, 2) == 1535930435702422785


def test_generators_of_equal_keys_agree():
    assert numpy_generator(3, 1).random() == numpy_generator(3, 1).random()
    assert torch.equal(torch.rand(3, generator=torch_generator(3, 1)), torch.rand(3, generator=torch_generator(3, 1)))


def test_global_generators_are_all_seeded():
    def draw():
        seed_global_generators(0, 1, 2)
        return random.random(), np.random.random(), torch.rand(()).item()

    assert draw() == draw()


@pytest.mark.parametrize(("environment", "seed", "expected"), [("7", None, 7), ("7", 3, 3), (None, None, 0)])
def test_the_seed_is_ones_own_or_that_of_seed_everything_or_zero(monkeypatch, environment, seed, expected):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    if environment:
        monkeypatch.setenv("PL_GLOBAL_SEED", environment)
    assert resolve_seed(seed) == expected
