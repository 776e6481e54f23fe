"""Options of `flightning fit` that belong to one run: its folder and its budget."""

import json

import pytest
import yaml

from flightning.cli import main
from flightning.report import report

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI.s args parameter")
SHORT = ["--config=quickstart", "--federation.local_epochs=1"]
SCHEDULE = ["--lr_scheduler=torch.optim.lr_scheduler.MultiStepLR", "--lr_scheduler.milestones=[10,20]"]


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    code = main(["fit", *SHORT, *SCHEDULE, f"--run_folder={folder}", "--budget=0.1"])
    return folder, code


def test_the_run_lies_where_it_was_told_to(scaled):
    folder, code = scaled
    assert code == 0
    assert {"config.yaml", "metrics.csv", "summary.json", "checkpoints"} <= {p.name for p in folder.iterdir()}


def test_a_budget_scales_rounds_and_schedule(scaled):
    config = yaml.safe_load((scaled[0] / "config.yaml").read_text())
    assert config["trainer"]["max_epochs"] == 2
    assert config["lr_scheduler"]["init_args"]["milestones"] == [1, 2]


def test_a_budget_is_told_on_top_of_the_report(scaled, tmp_path):
    notice = json.loads((scaled[0] / "summary.json").read_text())["notice"]
    assert notice.startswith("Budget 0.1: 2 rounds in place of 20")
    made = report([scaled[0]], out=tmp_path)
    assert made.markdown.splitlines()[2] == f"> **{notice}**"
    assert notice in (tmp_path / "report.html").read_text()


def test_the_configuration_can_be_run_again_elsewhere(scaled):
    config = yaml.safe_load((scaled[0] / "config.yaml").read_text())
    assert not {"run_folder", "budget", "ckpt_path"} & set(config)


def test_a_folder_with_a_run_is_refused(scaled, capsys):
    assert main(["fit", *SHORT, f"--run_folder={scaled[0]}"]) == 2
    assert "holds a run already: choose another folder" in capsys.readouterr().err


def test_a_run_goes_on_in_its_folder(scaled, tmp_path, capsys):
    arguments = ["fit", *SHORT, *SCHEDULE, f"--run_folder={tmp_path / 'none'}", "--ckpt_path=last"]
    assert main(arguments) == 2
    assert "finds no `checkpoints/last.ckpt` in `run_folder=" in capsys.readouterr().err
    arguments = ["fit", *SHORT, *SCHEDULE, f"--run_folder={scaled[0]}", "--ckpt_path=last", "--trainer.max_epochs=3"]
    assert main(arguments) == 0
    assert json.loads((scaled[0] / "summary.json").read_text())["rounds"] == 3


def test_the_checkpoint_of_the_folder_can_be_named(scaled):
    checkpoint = scaled[0] / "checkpoints" / "last.ckpt"
    arguments = ["fit", *SHORT, *SCHEDULE, f"--run_folder={scaled[0]}", f"--ckpt_path={checkpoint}"]
    assert main([*arguments, "--trainer.max_epochs=4"]) == 0
    assert json.loads((scaled[0] / "summary.json").read_text())["rounds"] == 4


def test_a_budget_that_is_no_fraction(capsys):
    assert main(["fit", *SHORT, "--budget=2"]) == 2
    assert "`budget=2` must lie in (0, 1]" in capsys.readouterr().err
