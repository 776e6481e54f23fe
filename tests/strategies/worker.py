"""Run algorithms on the digits in this process, or in one of several; what they end with is saved per process.

python -m tests.strategies.worker FOLDER '{"names": ["FedAvg"], "strategy": "client_parallel", "devices": 2}'
"""

import json
import logging
import os
import sys
import warnings

import torch

from tests.algorithms_on_digits import DropoutNet, PlainNet, make_digits, run


def main(folder, names, net="DropoutNet", data=None, federation=None, **trainer):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    results = {}
    for name in names:
        made = make_digits(**(data or {}))
        module, used = run(
            name, net={"DropoutNet": DropoutNet, "PlainNet": PlainNet}[net], federation=federation, data=made, **trainer
        )
        results[name] = {
            "weights": {n: w.clone() for n, w in module.state_dict().items()},
            "server": module.server_state.values,
            "clients": module.client_states.state_dict(),
            "metrics": {k: float(v) for k, v in used.callback_metrics.items() if "seconds" not in k},
        }
    torch.save(results, os.path.join(folder, f"{os.environ.get('LOCAL_RANK', '0')}.pt"))


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2]))
