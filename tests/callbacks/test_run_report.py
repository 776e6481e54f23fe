import json

import pytest
import torch

from flightning.algorithms import VHL, Centralized, FedAvg
from flightning.callbacks import CCVR, Federation, LastCheckpoint, RoundLogging, RunReport, run_report
from flightning.callbacks.run_report import format_bytes
from flightning.errors import ConfigurationError
from flightning.loggers import RoundCSVLogger
from tests.classification import make_data, make_module, make_turned_pictures
from tests.problems import QuadraticModule, fit, make_trainer

PNG = b"\x89PNG\r\n\x1a\n"


def run(folder, rounds=3, module=None, **kwargs):
    callbacks = [*kwargs.pop("callbacks", ()), RoundLogging(), RunReport(folder)]
    module = module or make_module(FedAvg)
    data = kwargs.pop("data", None) or make_data()
    fit(module, data, rounds, Federation(seed=4), callbacks, logger=RoundCSVLogger(folder), **kwargs)
    return json.loads((folder / "summary.json").read_text())


def test_summary_and_pictures(tmp_path, capsys):
    summary = run(tmp_path)
    rows = RoundCSVLogger(tmp_path)
    rows.open()
    accuracies = {r: row["val/accuracy"] for r, row in rows.rows.items()}
    best = max(accuracies, key=lambda r: accuracies[r])
    assert summary["model"] == "FedAvg"
    assert summary["rounds"] == 3
    assert summary["finished"] is True
    assert summary["best_round"] == best
    assert summary["best_accuracy"] == accuracies[best]
    assert summary["final_accuracy"] == accuracies[3]
    parameters = sum(p.numel() for p in make_module(FedAvg).parameters())
    assert summary["bytes_up"] == summary["bytes_down"] == 3 * 3 * 4 * parameters
    for name in ("partition.png", "learning_curve.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
    shown = capsys.readouterr().out
    assert "best accuracy" in shown
    assert f"The run lies in {tmp_path}" in shown.replace("\n", "")


@pytest.fixture
def wide(monkeypatch):
    """A terminal in which no title is wrapped."""
    monkeypatch.setenv("COLUMNS", "120")


def shown_cells(text):
    """Column titles and cells of the printed table."""
    titles, row = (line for line in text.splitlines() if line.startswith(("┃", "│")))
    return dict(zip(*([cell.strip() for cell in line[1:-1].split(line[0])] for line in (titles, row)), strict=True))


def test_bytes_sent_once_have_their_own_place(tmp_path, capsys, wide):
    summary = run(tmp_path, rounds=2, module=make_module(VHL, virtual_per_class=7))
    assert summary["setup_bytes"] == 3 * 3 * 7 * (4 * 4 + 8)  # clients, classes, samples of 4 floats and a label
    assert shown_cells(capsys.readouterr().out)["bytes once"] == "1.5 kB"


def test_without_bytes_sent_once_there_is_no_column_for_them(tmp_path, capsys, wide):
    assert run(tmp_path, rounds=1)["setup_bytes"] == 0
    assert "bytes once" not in shown_cells(capsys.readouterr().out)


def test_ccvr_is_part_of_the_summary(tmp_path, capsys, wide):
    plain = run(tmp_path / "plain")
    summary = run(tmp_path / "ccvr", callbacks=[CCVR()])
    rows = RoundCSVLogger(tmp_path / "ccvr")
    rows.open()
    last = rows.rows[3]
    assert summary["ccvr_accuracy"] == last["ccvr/accuracy"]
    for way in ("up", "down"):
        assert summary[f"bytes_{way}"] == plain[f"bytes_{way}"] + last[f"ccvr/bytes_{way}"]
    assert "ccvr_accuracy" not in plain
    cells = shown_cells(capsys.readouterr().out.rpartition("FedAvg on")[2])
    assert cells["after CCVR"] == f"{100 * summary['ccvr_accuracy']:.2f} %"


def test_an_interrupted_run_can_be_read_too(tmp_path):
    class Stopping(FedAvg):
        def on_round_start(self):
            if self.round_index == 2:
                raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(tmp_path, module=make_module(Stopping))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rounds"] == 2
    assert summary["finished"] is False


def go_on(folder, callbacks=(), rounds=2):
    """Resume a run from the checkpoint of its last round, as if it had been stopped right after it."""
    callbacks = [LastCheckpoint(folder), *callbacks, RoundLogging(), RunReport(folder)]
    logger = RoundCSVLogger(folder)
    trainer = make_trainer(rounds, Federation(seed=4), callbacks, logger=logger, enable_checkpointing=True)
    module = make_module(FedAvg, seed=7)
    trainer.fit(module, datamodule=make_data(), ckpt_path=str(folder / "last.ckpt"))
    return module, json.loads((folder / "summary.json").read_text())


def timeless(summary):
    return {key: value for key, value in summary.items() if key != "seconds"}


def test_a_run_that_was_stopped_after_its_last_round_is_finished(tmp_path, capsys):
    whole = run(tmp_path, rounds=2, callbacks=[LastCheckpoint(tmp_path)], enable_checkpointing=True)
    (tmp_path / "summary.json").write_text(json.dumps({**whole, "finished": False}))
    (tmp_path / "learning_curve.png").unlink()
    assert go_on(tmp_path)[1] == whole
    assert (tmp_path / "learning_curve.png").exists()
    assert "No round was trained: the checkpoint has all 2 rounds already" in capsys.readouterr().out


def test_a_run_that_was_stopped_before_its_calibration_is_calibrated(tmp_path):
    (tmp_path / "whole").mkdir()
    whole = run(tmp_path / "whole", rounds=2, callbacks=[CCVR()])
    run(tmp_path, rounds=2, callbacks=[LastCheckpoint(tmp_path)], enable_checkpointing=True)
    module, summary = go_on(tmp_path, [CCVR()])
    assert timeless(summary) == timeless(whole)
    saved = torch.load(tmp_path / "ccvr.ckpt", weights_only=False)["state_dict"]
    assert torch.equal(saved["net.head.weight"], module.net.head.weight)
    last = torch.load(tmp_path / "last.ckpt", weights_only=False)["state_dict"]
    assert not torch.equal(last["net.head.weight"], module.net.head.weight)


def test_a_checkpoint_of_another_folder_makes_no_summary(tmp_path):
    run(tmp_path / "a", rounds=2, callbacks=[LastCheckpoint(tmp_path)], enable_checkpointing=True)
    with pytest.raises(FileNotFoundError, match="summary"):
        go_on(tmp_path)


def test_the_clients_are_drawn_before_the_first_local_step(tmp_path):
    class Stopping(FedAvg):
        def training_step(self, batch, batch_idx):
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(tmp_path, module=make_module(Stopping), data=make_turned_pictures())
    for name in ("partition.png", "samples.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)


def test_clients_that_see_the_same_have_no_strip_of_samples(tmp_path, capsys):
    run(tmp_path, rounds=1)
    assert not (tmp_path / "samples.png").exists()
    assert "samples.png" not in capsys.readouterr().out


def test_the_skew_is_in_title_and_summary(tmp_path, monkeypatch):
    titles = []
    draw = run_report.learning_curve_figure
    monkeypatch.setattr(run_report, "learning_curve_figure", lambda rows, t: titles.append(t) or draw(rows, t))
    summary = run(tmp_path, 1, make_module(FedAvg), data=make_turned_pictures())
    assert summary["skew"] == "RotationSkew(groups=3)"
    assert summary["heterogeneity"]["feature_shift"] > 0
    assert titles == ["FedAvg on InMemoryData, IID, RotationSkew(groups=3), seed 0"]


def test_a_pooled_client_is_drawn_with_its_skew(tmp_path):
    module = make_module(Centralized)
    summary = run(tmp_path, 1, module, data=make_turned_pictures())
    assert summary["heterogeneity"]["clients"] == 1
    assert (tmp_path / "samples.png").exists()


def test_a_module_without_accuracy(tmp_path, capsys):
    from flightning.algorithms import FedAvgMixin
    from flightning.datamodules.synthetic import Quadratic

    module = type("FedQuadratic", (FedAvgMixin, QuadraticModule), {})()
    summary = run(tmp_path, module=module, data=Quadratic())
    assert summary["best_accuracy"] is None
    assert (tmp_path / "learning_curve.png").exists()
    assert "-" in capsys.readouterr().out


def test_bad_updates_are_mentioned_at_the_end(tmp_path, capsys):
    class Bad(FedAvg):
        def on_client_end(self):
            upload = super().on_client_end()
            upload["weights"] = {n: w * float("nan") for n, w in upload["weights"].items()}
            return upload

    run(tmp_path, rounds=1, module=make_module(Bad))
    assert "3 client updates held NaN or infinity and were left out" in capsys.readouterr().out


def test_an_unwritable_folder_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")

    class Untouched(FedAvg):
        def training_step(self, batch, batch_idx):
            raise AssertionError("a local step was taken")

    with pytest.raises(
        ConfigurationError, match=r"the run's folder `.*` cannot be written .*`--trainer.default_root_dir`"
    ):
        run(tmp_path / "file" / "run", module=make_module(Untouched))


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999 B"), (1000, "1.0 kB"), (2_345_678, "2.3 MB"), (7e12, "7.0 TB"), (9e15, "9000.0 TB")]
)
def test_bytes_for_people(count, text):
    assert format_bytes(count) == text
