"""Whoever starts the processes, the run is the same."""

import subprocess
import sys

import torch

from tests.classification import assert_equal_nested
from tests.programs import PROGRAM, environment

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "flightning"]
SETTINGS = ["fit", "--config=quickstart", "--trainer.strategy=client_parallel", "--trainer.devices=2"]
SETTINGS += ["--trainer.max_epochs=2", "--trainer.enable_progress_bar=false", "--federation.local_epochs=1"]


def weights(launcher, folder):
    command = [*launcher, *SETTINGS, f"--run_folder={folder}"]
    done = subprocess.run(
        command, cwd=folder.parent, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=False)["state_dict"]


def test_torchrun_gives_the_weights_of_lightnings_own_launcher(tmp_path):
    assert_equal_nested(weights(TORCHRUN, tmp_path / "torchrun"), weights(PROGRAM, tmp_path / "lightning"))


def test_all_processes_of_a_run_share_the_folder_that_the_first_has_claimed(tmp_path):
    settings = [word for word in SETTINGS if "max_epochs" not in word]
    command = [*PROGRAM, *settings, "--trainer.max_epochs=1"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    runs = tmp_path / "runs" / "digits-fedavg"
    assert [path.name for path in runs.iterdir()] == ["version_0"]
    assert (runs / "version_0" / "checkpoints" / "last.ckpt").exists()
