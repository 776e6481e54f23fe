"""Start real processes from a test."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from tests.programs import ROOT, environment


def run_jobs(folder, jobs, timeout=600):
    """Run jobs in the processes that they ask for; the results of each process by key."""
    command = [sys.executable, "-m", "tests.strategies.worker", str(folder), json.dumps(jobs)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(file, weights_only=False) for file in sorted(Path(folder).glob("*.pt"))]


def distance(a, b):
    """Largest relative difference of two trees of tensors and numbers."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        return max((distance(a[k], b[k]) for k in a), default=0.0)
    if isinstance(a, (list, tuple)):
        return max((distance(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (a, b))
    return 0.0 if torch.equal(a, b) else float((a - b).norm() / max(a.norm(), 1e-12))
