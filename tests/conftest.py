import os
import signal
from pathlib import Path

import pytest
import torch

#: What Lightning writes into the working directory when nobody tells it where.
STRAY = ("checkpoints", "lightning_logs", "runs", "wandb")


@pytest.fixture(autouse=True, scope="session")
def _heed_ctrl_c():
    """A shell starts background jobs deaf to SIGINT, and their children inherit it; tests send it to programs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """One thread is faster for tiny problems, and sums come out the same everywhere."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_seed_of_another_test():
    """`seed_everything` leaves its number in the environment, where data and federation would find it."""
    os.environ.pop("PL_GLOBAL_SEED", None)
    yield
    os.environ.pop("PL_GLOBAL_SEED", None)


@pytest.fixture(autouse=True)
def _tidy():
    """A test that leaves files in the working directory fails."""
    folder = Path.cwd()
    before = {name for name in STRAY if (folder / name).exists()}
    yield
    left = {name for name in STRAY if (folder / name).exists()} - before
    assert not left, f"the test left {sorted(left)} in {folder}: write below `tmp_path`"
