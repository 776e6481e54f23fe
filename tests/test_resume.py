"""`kill -9` in the middle of rounds, and the run that goes on."""

import csv
import os
import random
import signal
import time

import pytest
import torch

from tests.programs import call, start, wait_until

#: Dropout, shuffled batches, a part of the clients, momentum and a scheduler; rounds of about half a second.
CONFIG = """
seed_everything: 3
model:
  class_path: {model}
  init_args: {{net: tests.algorithms_on_digits.DropoutNet}}
data:
  class_path: Digits
  init_args: {{num_clients: 10, batch_size: 2, partition: {{class_path: Dirichlet, init_args: {{alpha: 0.5}}}}}}
federation: {{participation: 0.5, persist_client_optimizer: {persist}}}
optimizer: {{class_path: torch.optim.SGD, init_args: {{lr: 0.02, momentum: 0.9}}}}
lr_scheduler: {{class_path: torch.optim.lr_scheduler.StepLR, init_args: {{step_size: 2, gamma: 0.5}}}}
trainer: {{max_epochs: 6}}
"""


def rows_of(folder):
    """What was logged in every round, apart from the clock."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if "seconds" not in k} for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("model", "persist"),
    [
        ("FedAvg", "false"),
        pytest.param("SCAFFOLD", "false", marks=pytest.mark.slow),
        pytest.param("FedProx", "true", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_killed_several_times_ends_like_one_that_was_not(tmp_path, model, persist):
    (tmp_path / "config.yaml").write_text(CONFIG.format(model=model, persist=persist))
    fit = ["fit", "--config", "config.yaml", "--run_folder"]
    whole = call(*fit, "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr

    log, moments = tmp_path / "log.txt", random.Random(model)
    last = tmp_path / "killed" / "checkpoints" / "last.ckpt"
    kills = 0
    for _ in range(3):
        before = last.stat().st_mtime_ns if last.exists() else 0
        goes_on = ["--ckpt_path", "last"] if last.exists() else []
        process = start(*fit, "killed", *goes_on, cwd=tmp_path, log=log)
        # one more round is saved, then a random moment of the next
        if wait_until(lambda: last.exists() and last.stat().st_mtime_ns > before, process):  # noqa: B023
            time.sleep(moments.uniform(0.0, 0.4))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 2, log.read_text()
    assert len(rows_of(tmp_path / "killed")) < 6

    resumed = call(*fit, "killed", "--ckpt_path", last, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    ours, expected = (
        torch.load(tmp_path / run / "checkpoints" / "last.ckpt", weights_only=False) for run in ("killed", "whole")
    )
    assert all(torch.equal(ours["state_dict"][n], w) for n, w in expected["state_dict"].items())
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")
