"""Run algorithms on the digits in this process, or in one of several; what they end with is saved per process.

python -m tests.strategies.worker FOLDER '[{"key": "a", "name": "FedAvg", "strategy": "client_parallel", "devices": 2}]'
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path

import torch

from tests import algorithms_on_digits as digits


def result(name, net="DropoutNet", data=None, **options):
    """What a run ends with."""
    module, trainer = digits.run(name, net=getattr(digits, net), data=digits.make_digits(**(data or {})), **options)
    return {
        "weights": {n: w.clone() for n, w in module.state_dict().items()},
        "server": module.server_state.values,
        "clients": module.client_states.state_dict(),
        "metrics": {k: float(v) for k, v in trainer.callback_metrics.items() if "seconds" not in k},
    }


def main(folder, jobs):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    results = {job.pop("key"): result(**job) for job in jobs}
    torch.save(results, Path(folder) / f"{os.environ.get('LOCAL_RANK', '0')}.pt")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
