"""The packaged W&B sweep makes commands that run."""

import json
import os
import subprocess
import sys
from importlib.resources import files

import pytest
import yaml


@pytest.mark.slow  # starts W&B, which writes into the folder of the test run
def test_one_point_of_the_sweep_runs(tmp_path):
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils", reason="wandb is not installed")
    sweep = yaml.safe_load((files("flightning") / "configs" / "sweeps" / "fedprox.yaml").read_text())
    point = {"model.mu": 0.25, "optimizer.lr": 0.03, "federation.local_epochs": 1}
    assert set(point) == set(sweep["parameters"])
    # what W&B's agent puts in place of the macros
    macros = utils.create_sweep_command_args({"args": {name: {"value": value} for name, value in point.items()}})
    macros |= {"env": ["/usr/bin/env"], "program": [sys.executable, "-m", sweep["program"]]}
    command = [word for c in sweep["command"] for word in (macros[c[2:-1]] if c.startswith("${") else [c])]
    ended = subprocess.run(
        [*command, "--trainer.max_epochs=1"],
        cwd=tmp_path,
        env={**os.environ, "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    (run,) = tmp_path.glob("runs/digits-fedprox/version_0")
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["init_args"]["mu"] == 0.25
    assert config["optimizer"]["init_args"]["lr"] == 0.03
    assert json.loads((run / "summary.json").read_text())["finished"]
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
