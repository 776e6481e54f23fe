import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """One thread is faster for tiny problems, and sums come out the same everywhere."""
    torch.set_num_threads(1)
