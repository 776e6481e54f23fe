"""The quicker start hides what Lightning needs not, and only while Lightning is imported."""

import gc
import subprocess
import sys

from flightning.partition.startup import quick_imports

FRESH = """
import gc, sys
from flightning.partition.startup import quick_imports
with quick_imports():
    import lightning.pytorch
assert gc.isenabled()
assert "torchmetrics" in sys.modules
assert not {"scipy", "torchvision", "torch._dynamo"} & sys.modules.keys(), "they were imported after all"
assert gc.get_freeze_count() > 100_000
import torch
assert torch.compile(torch.nn.Linear(1, 1)).__class__.__module__ == "torch._dynamo.eval_frame"
import scipy.signal
import torchvision.transforms
from torchmetrics.classification import MulticlassF1Score
from importlib.metadata import version
from lightning_utilities.core.imports import RequirementCache
assert RequirementCache("torchvision")
assert version("torchvision")
"""


def test_a_fresh_process_imports_neither_and_finds_both_afterwards():
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_nothing_is_hidden_where_torchmetrics_is_known():
    import torchmetrics  # noqa: F401
    import torchvision

    with quick_imports():
        import torchvision as inside

        assert inside is torchvision
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
