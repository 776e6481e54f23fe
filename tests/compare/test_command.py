"""What a comparison checks before it runs, and what it says when it has run."""

import errno
import json
import os

import pytest

from flightning.compare.cells import Cell
from flightning.compare.command import compare, run
from flightning.compare.folders import prepare
from flightning.compare.runner import Runner
from flightning.errors import ConfigurationError
from tests.report.synthetic import write_run

BASE = ["--config", "quickstart", "--models", "FedAvg", "SOLO"]


def finished_cell(out, model, seed=0, accuracy=(0.5, 0.8)):
    """A cell that an earlier comparison has run."""
    folder = write_run(out / model.lower() / f"seed_{seed}", model, seed, accuracy)
    summary = (folder / "summary.json").read_text()
    (folder / "metrics.csv").rename(folder / "kept")
    cell = Cell(model, "", seed, (), {"model": model, "seed": str(seed)}, folder)
    prepare(cell, "new", 0)
    (folder / "kept").rename(folder / "metrics.csv")
    (folder / "summary.json").write_text(summary)
    return cell


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "90"], "`target` is 90, but accuracies are fractions"),
        (["--last", "0"], "`last` is 0, but it counts the rounds"),
        (["--baseline", "FedAgv"], "`baseline` is `FedAgv`, which is none of the methods. Did you mean `FedAvg`"),
        (["--baseline", "SOLO(mu=1)"], "`baseline` is `SOLO(mu=1)`, which is none of the methods. Did you mean `SOLO`"),
    ],
)
def test_options_of_the_report_are_checked_before_anything_runs(tmp_path, capsys, options, message):
    assert run([*BASE, "--out", str(tmp_path / "out"), *options]) == 2
    said = capsys.readouterr()
    assert f"flightning compare: {message}" in said.err
    assert said.out == ""


def test_an_unknown_option_of_the_report_in_a_grid_is_refused(tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text("config: quickstart\nmodels: [FedAvg]\nreport: {tagret: 0.9}\n")
    assert run(["--grid", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "out")]) == 2
    assert "`tagret` is no option of a report. Did you mean `target`" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named_in_one_line(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert run([*BASE, "--out", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"flightning compare: the folder of the comparison `{tmp_path / 'file'}` cannot be written")
    assert said.count("\n") == 1


def test_the_report_is_of_all_finished_cells_of_the_folder(tmp_path, capsys):
    finished_cell(tmp_path, "FedAvg")
    added = finished_cell(tmp_path, "SOLO")
    assert compare([added], tmp_path) == 0
    assert "# Comparison of 2 methods on Digits" in capsys.readouterr().out


def test_options_of_the_report_are_passed_to_it(tmp_path, capsys):
    assert compare([finished_cell(tmp_path, "FedAvg")], tmp_path, report_options={"target": 0.7, "last": 2}) == 0
    said = capsys.readouterr().out
    assert "Target: accuracy 70 %" in said
    assert "accuracy of the last 2 rounds" in said


@pytest.mark.parametrize("baseline", ["SOLO (net=mlp)", "solo(net=MLP)", "SOLO"])
def test_a_baseline_may_be_named_as_the_comparison_names_it(tmp_path, capsys, baseline):
    cell = finished_cell(tmp_path, "SOLO")
    record = json.loads((cell.folder / "cell.json").read_text())
    (cell.folder / "cell.json").write_text(json.dumps({**record, "label": "SOLO(net=MLP)"}))
    finished_cell(tmp_path, "FedAvg")
    assert compare([cell], tmp_path, report_options={"baseline": baseline, "target": "baseline-final"}) == 0
    assert "final accuracy of SOLO with the same seed" in capsys.readouterr().out


def test_a_folder_that_cannot_be_locked_is_no_other_comparison(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(ConfigurationError, match=r"cannot be locked .*No locks available"):
        compare([finished_cell(tmp_path, "FedAvg")], tmp_path)


def test_failures_are_listed_even_if_the_report_fails(tmp_path, capsys, monkeypatch):
    cell = finished_cell(tmp_path, "FedAvg")
    failed = Cell("SOLO", "", 0, (), {"model": "SOLO"}, tmp_path / "solo" / "seed_0")

    def fail(runner, nurseries, show):
        runner.statuses[1].state, runner.statuses[1].error = "failed", "boom"

    monkeypatch.setattr("flightning.compare.command.check_data", lambda *_: [])
    monkeypatch.setattr("flightning.compare.command.Runner.run", fail)
    (cell.folder / "metrics.csv").write_text("round,val/accuracy\n")
    with pytest.raises(ValueError, match="logged `val/accuracy`"):
        compare([cell, failed], tmp_path)
    assert "failed: SOLO, seed 0: boom" in capsys.readouterr().err


def test_the_label_of_a_method_is_kept(tmp_path):
    cell = Cell("FedAvg + CCVR", "", 0, (), {}, tmp_path / "a")
    prepare(cell, "new", 0)
    assert json.loads((cell.folder / "cell.json").read_text())["label"] == "FedAvg + CCVR"


def test_a_cell_that_is_interrupted_is_read_again_and_shown_so(tmp_path):
    cell = Cell("FedAvg", "", 0, (), {}, tmp_path / "a")
    runner = Runner([cell], 1, "test")
    shown = []

    class Interrupted:
        """A nursery whose only run is interrupted in its third round."""

        def start(self, *_):
            return self

        def poll(self):
            (cell.folder / "summary.json").write_text('{"rounds": 2, "max_rounds": 4}')
            raise KeyboardInterrupt

        def interrupt(self, grace):
            (cell.folder / "summary.json").write_text('{"rounds": 3, "max_rounds": 4}')
            os.utime(cell.folder / "summary.json", (1, 1))  # not in the same moment as the round before

    with pytest.raises(KeyboardInterrupt):
        runner.run(Interrupted(), lambda: shown.append((runner.statuses[0].state, runner.statuses[0].round)))
    assert shown == [("interrupted", 3)]
