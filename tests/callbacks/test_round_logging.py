"""What W&B gets, read back from the file that it writes offline."""

import json
import time

import pytest
from lightning.pytorch.loggers import WandbLogger

from flightning.algorithms import VHL, FedAvg
from flightning.callbacks import Drift, Federation, LastCheckpoint, RoundLogging, RunReport
from flightning.loggers import RoundCSVLogger, name_wandb_run
from flightning.report.runs import read_run, read_runs
from flightning.report.wandb_log import records
from tests.classification import RoundMemory, make_data, make_module
from tests.problems import fit, make_trainer

wandb = pytest.importorskip("wandb")
VARIABLES = ("WANDB_NAME", "WANDB_RUN_GROUP", "WANDB_JOB_TYPE", "WANDB_TAGS", "WANDB_RUN_ID")


@pytest.fixture
def clean(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def read_back(folder):
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 60
    while True:  # W&B's service writes on after `finish`
        found = {"run": [], "metric": [], "history": [], "summary": [], "exit": []}
        for payload in records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(payload or b"")
            kind = record.WhichOneof("record_type")
            if kind in ("history", "summary"):
                items = record.history.item if kind == "history" else record.summary.update
                found[kind].append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
            elif kind in found:
                found[kind].append(getattr(record, kind))
        if found["exit"]:
            return found
        assert time.monotonic() < deadline, "W&B did not finish its file"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        logger = WandbLogger(project="test", save_dir=str(folder), offline=True)
        name_wandb_run(logger, "FedAvg", "Digits", "Dirichlet(alpha=0.5)", 3)
        callbacks = [RoundLogging(), Drift(), RunReport(folder / "run", notice="Budget 0.5: 2 rounds in place of 4.")]
        loggers = [RoundCSVLogger(folder / "run"), logger]
        data = make_data()
        logger.log_hyperparams({"model": {"class_path": "FedAvg"}, "data": {"class_path": type(data).__name__}})
        fit(make_module(FedAvg), data, 2, Federation(), callbacks, logger=loggers)
        logger.experiment.finish()
    return {**read_back(folder), "folder": folder}


def test_a_run_has_the_names_of_its_method_and_setting(logged):
    run = logged["run"][0]
    assert (run.display_name, run.job_type) == ("FedAvg, seed 3", "FedAvg")
    assert run.run_group == "Digits, Dirichlet(alpha=0.5)"
    assert list(run.tags) == ["FedAvg", "Digits", "seed-3"]


def test_round_bytes_and_seconds_may_be_x_axes(logged):
    steps = {m.name or m.glob_name: m.step_metric for m in logged["metric"]}
    assert {"round", "total/bytes", "total/seconds"} <= set(steps)
    assert {steps[name] for name in ("val/accuracy", "round/*", "drift/*", "clients/*")} == {"round"}


def test_every_accuracy_stands_beside_its_x_axes(logged):
    rows = [row for row in logged["history"] if "val/accuracy" in row]
    assert [row["round"] for row in rows] == [1, 2]
    parameters = sum(p.numel() for p in make_module(FedAvg).parameters())
    # three clients, up and down, four bytes each
    assert [row["total/bytes"] for row in rows] == [24 * parameters, 48 * parameters]
    assert 0 < rows[0]["total/seconds"] < rows[1]["total/seconds"]


def test_the_summary_has_the_best_values(logged):
    summary = {key: value for update in logged["summary"] for key, value in update.items()}
    accuracies = [row["val/accuracy"] for row in logged["history"] if "val/accuracy" in row]
    assert summary["best_accuracy"] == pytest.approx(max(accuracies))
    assert summary["best_round"] == accuracies.index(max(accuracies)) + 1
    assert summary["val/accuracy"]["max"] == pytest.approx(max(accuracies))
    assert summary["total_seconds"] > 0


def test_a_report_reads_the_same_from_wandb_as_from_the_folder(logged):
    (path,) = logged["folder"].glob("wandb/offline-run-*/run-*.wandb")
    there, here = read_run(path), read_run(logged["folder"] / "run")
    for name in ("partition", "partition_hash", "seed", "clients", "notice"):
        assert getattr(there, name) == getattr(here, name), name
    assert here.notice == "Budget 0.5: 2 rounds in place of 4."


def test_a_run_logged_as_csv_and_by_wandb_counts_once(logged):
    runs, notes = read_runs([logged["folder"]])
    assert [r.folder.name for r in runs] == ["run"]
    assert "it is the W&B log of a run whose `metrics.csv` is here, too" in notes[-1]


def test_names_that_were_given_stay(clean):
    clean.setenv("WANDB_RUN_GROUP", "mine")
    logger = WandbLogger(name="own", offline=True)
    name_wandb_run(logger, "FedAvg", "Digits", "IID()", 0)
    assert logger._wandb_init["name"] == "own"
    assert logger._wandb_init.get("group") is None  # W&B takes it from the environment
    assert logger._wandb_init["job_type"] == "FedAvg"


def test_totals_begin_with_what_is_sent_once(tmp_path):
    logger = RoundCSVLogger(tmp_path)
    fit(make_module(VHL), make_data(), 2, Federation(), [RoundLogging()], logger=logger)
    parts = ("bytes_up", "bytes_down", "setup_bytes")
    sent = [sum(logger.rows[r][f"round/{part}"] for part in parts) for r in (1, 2)]
    assert logger.rows[1]["round/setup_bytes"] > 0
    assert [logger.rows[r]["total/bytes"] for r in (1, 2)] == [sent[0], sum(sent)]


def test_a_total_beside_an_accuracy_has_what_is_sent_once():
    memory = RoundMemory()
    seen = []
    log = memory.log_metrics
    memory.log_metrics = lambda metrics, step=None: (seen.append(dict(metrics)), log(metrics, step))
    fit(make_module(VHL), make_data(), 1, Federation(), [RoundLogging()], logger=memory)
    beside = next(metrics["total/bytes"] for metrics in seen if "val/accuracy" in metrics)
    assert beside == memory.rounds[1]["total/bytes"]
    assert memory.rounds[1]["round/setup_bytes"] > 0


def test_totals_go_on_where_a_run_was_resumed(tmp_path):
    def run(folder, rounds, ckpt_path=None):
        callbacks = [RoundLogging(), LastCheckpoint(folder / "checkpoints")]
        trainer = make_trainer(
            rounds, Federation(), callbacks, logger=RoundCSVLogger(folder), enable_checkpointing=True
        )
        trainer.fit(make_module(FedAvg), datamodule=make_data(), ckpt_path=ckpt_path)
        return trainer.logger.rows

    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 2)
    parts = run(tmp_path / "parts", 4, ckpt_path=tmp_path / "parts" / "checkpoints" / "last.ckpt")
    assert [parts[r]["total/bytes"] for r in parts] == [whole[r]["total/bytes"] for r in whole]
    seconds = [parts[r]["round/seconds"] for r in parts]
    assert parts[4]["total/seconds"] == pytest.approx(sum(seconds))
