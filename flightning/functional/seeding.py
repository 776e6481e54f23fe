"""Seeds derived from names, so that nothing about randomness has to be stored."""

from __future__ import annotations

import os
import random

import numpy as np
import torch

__all__ = ["derive_seed", "numpy_generator", "resolve_seed", "seed_global_generators", "torch_generator"]


def derive_seed(*keys: int) -> int:
    """Hash integers, such as ``(seed, round, client)``, into one 63-bit seed.

    Example:
        >>> derive_seed(0, 1, 2) == derive_seed(0, 1, 2), derive_seed(0, 1, 2) == derive_seed(0, 2, 1)
        (True, False)
    """
    state = np.random.SeedSequence([k % 2**64 for k in keys]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def numpy_generator(*keys: int) -> np.random.Generator:
    """NumPy generator that belongs to these keys alone."""
    return np.random.default_rng(derive_seed(*keys))


def torch_generator(*keys: int) -> torch.Generator:
    """CPU torch generator that belongs to these keys alone."""
    return torch.Generator().manual_seed(derive_seed(*keys))


def seed_global_generators(*keys: int) -> None:
    """Seed the generators that a user's own code draws from (dropout, Python's `random`, NumPy)."""
    seed = derive_seed(*keys)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    # not `torch.manual_seed`: without a GPU in use it queues the seed with a traceback at every call
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def resolve_seed(seed: int | None) -> int:
    """The seed itself, or the one of Lightning's `seed_everything`, or 0."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
