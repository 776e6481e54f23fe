"""The configuration of every algorithm trains, with the digits in place of its data and a net for their size."""

from pathlib import Path

import pytest
import yaml

from flightning.cli import main
from tests.algorithms_on_digits import READY_MADE

CONFIGS = sorted((Path(__file__).parents[2] / "flightning" / "configs").glob("*.yaml"))
DIGITS = ["--data.num_clients=4", "--data.batch_size=64"]
TINY = ["--trainer.max_epochs=1", "--trainer.strategy=auto", "--trainer.devices=1", "--trainer.precision=32-true"]


def config_of(name):
    return next(path for path in CONFIGS if yaml.safe_load(path.read_text())["model"]["class_path"] == name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READY_MADE)
def test_it_trains(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["flightning"])
    config = yaml.safe_load(config_of(name).read_text())
    given = config["data"].get("init_args", {})
    config["data"] = {"class_path": "Digits", "init_args": {k: given[k] for k in {"shared_fraction"} & given.keys()}}
    config["model"]["init_args"]["net"] = "MLP"
    config["federation"] = {**config.get("federation", {}), "participation": 1.0, "local_epochs": 1}
    config["federation"].pop("local_steps", None)
    Path("own.yaml").write_text(yaml.safe_dump(config))
    assert main(["fit", "--config", "own.yaml", "--run_folder", "run", *DIGITS, *TINY]) == 0
    assert (tmp_path / "run" / "summary.json").is_file()
