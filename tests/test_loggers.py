import csv
import json

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from flightning.algorithms import SOLO, FedAvg
from flightning.callbacks import Federation, RoundLogging
from flightning.datamodules import LabelPermutation
from flightning.errors import ConfigurationError
from flightning.loggers import RoundCSVLogger, claim_version, ensure_writable, latest_version, next_version
from flightning.report.wandb_log import records
from tests.classification import make_data, make_module, make_turned_pictures
from tests.problems import fit, make_trainer


def read(folder, name="metrics.csv"):
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def train(logger, cls=FedAvg, rounds=3, federation=None, **kwargs):
    federation = federation or Federation(participation=2, seed=0)
    module = make_module(cls)
    fit(module, kwargs.pop("data", None) or make_data(), rounds, federation, [RoundLogging()], logger=logger, **kwargs)
    return federation, module


# --- metrics.csv ------------------------------------------------------------------------------------------------------


def test_one_row_per_round(tmp_path):
    federation, module = train(RoundCSVLogger(tmp_path))
    rows = read(tmp_path)
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    parameters = sum(p.numel() for p in module.parameters())
    for index, row in enumerate(rows):
        assert row["round/cohort"] == " ".join(str(c) for c in sorted(federation.plan(index).cohort))
        assert float(row["round/bytes_up"]) == 2 * 4 * parameters
        assert float(row["round/lr"]) == 0.01
        assert all(row[key] for key in ("val/loss", "val/accuracy", "round/loss", "round/task", "round/seconds"))
    assert not (tmp_path / "steps.csv").exists()


def test_personal_methods_log_the_spread(tmp_path):
    train(RoundCSVLogger(tmp_path), SOLO)
    assert all(float(row["val/accuracy_std"]) >= 0 for row in read(tmp_path))


def test_a_round_without_validation_has_empty_cells(tmp_path):
    train(RoundCSVLogger(tmp_path), check_val_every_n_epoch=2)
    assert [bool(row["val/accuracy"]) for row in read(tmp_path)] == [False, True, False]


def test_what_a_module_logs_in_single_steps_goes_elsewhere(tmp_path):
    class Chatty(FedAvg):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("train/loss", loss, on_step=True, on_epoch=False)
            return loss

    train(RoundCSVLogger(tmp_path), Chatty, log_every_n_steps=1)
    assert [row["round"] for row in read(tmp_path)] == ["1", "2", "3"]
    steps = read(tmp_path, "steps.csv")
    assert len(steps) == 3 * 2 * 3  # rounds, clients, batches
    assert all(row["train/loss"] for row in steps)


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path):
    first = RoundCSVLogger(tmp_path)
    for finished in (1, 2, 3):
        first.log_metrics({"round": finished, "val/loss": finished / 10, "round/cohort": "0 1"})
    first.save()
    second = RoundCSVLogger(tmp_path)  # went on from the checkpoint of round 1
    second.log_metrics({"round": 2.0, "val/loss": 7.0})
    second.save()
    assert [(row["round"], row["val/loss"], row["round/cohort"]) for row in read(tmp_path)] == [
        ("1", "0.1", "0 1"),
        ("2", "7.0", "0 1"),
    ]


def test_a_cohort_of_one_client_stays_a_whole_number(tmp_path):
    first = RoundCSVLogger(tmp_path)
    first.log_metrics({"round": 1, "round/cohort": "7"})
    first.save()
    second = RoundCSVLogger(tmp_path)
    second.log_metrics({"round": 2, "round/cohort": "8"})
    second.save()
    assert [row["round/cohort"] for row in read(tmp_path)] == ["7", "8"]


def test_a_resumed_run_keeps_the_steps_before_it(tmp_path):
    first = RoundCSVLogger(tmp_path)
    for step in range(4):
        first.log_metrics({"train/loss": step / 10}, step)
        first.save()
    with (tmp_path / "steps.csv").open("a") as file:
        file.write("4,0.")  # the end of a line that a kill has cut
    second = RoundCSVLogger(tmp_path)  # went on from a checkpoint after two steps
    for step in (2, 3):
        second.log_metrics({"train/loss": 7.0, "train/new": step}, step)
        second.save()
    assert [tuple(row.values()) for row in read(tmp_path, "steps.csv")] == [
        ("0", "0.0", ""),
        ("1", "0.1", ""),
        ("2", "7.0", "2"),
        ("3", "7.0", "3"),
    ]


def test_a_step_writes_one_line_and_no_round(tmp_path):
    logger = RoundCSVLogger(tmp_path)
    logger.log_metrics({"round": 1, "val/loss": 0.5})
    logger.log_metrics({"train/loss": 0.1}, 0)
    logger.save()
    rounds, steps = tmp_path / "metrics.csv", tmp_path / "steps.csv"
    before = rounds.stat().st_ino, steps.stat().st_ino, steps.stat().st_size
    logger.log_metrics({"train/loss": 0.2}, 1)
    logger.save()
    # a file that is written whole takes the place of the one before
    assert (rounds.stat().st_ino, steps.stat().st_ino) == before[:2]
    assert steps.stat().st_size == before[2] + len("1,0.2\r\n")


def test_metrics_of_one_round_are_merged(tmp_path):
    logger = RoundCSVLogger(tmp_path)
    logger.log_metrics({"round": 1, "val/loss": 0.5})
    logger.log_metrics({"round": 1, "round/loss": 0.7, "epoch": 0})
    logger.finalize("success")
    assert read(tmp_path) == [{"round": "1", "val/loss": "0.5", "round/loss": "0.7"}]


def test_nothing_half_written_is_left(tmp_path):
    train(RoundCSVLogger(tmp_path), rounds=1)
    assert not list(tmp_path.glob("*.tmp"))


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigurationError, match=r"the run's folder `.*` cannot be written .*`--trainer.default_root_dir`"
    ):
        ensure_writable(tmp_path / "file" / "run")


def test_versions(tmp_path):
    assert latest_version(tmp_path) is None
    assert next_version(tmp_path).name == "version_0"
    for name in ("version_2", "version_10", "version_x", "other"):
        (tmp_path / name).mkdir()
    assert latest_version(tmp_path).name == "version_10"
    assert next_version(tmp_path).name == "version_11"


def test_a_version_is_claimed_once(tmp_path, monkeypatch):
    (tmp_path / "version_0").mkdir()
    looked = iter([tmp_path / "version_0", tmp_path / "version_1"])  # the first was made since it was looked for
    monkeypatch.setattr("flightning.loggers.next_version", lambda folder: next(looked))
    assert claim_version(tmp_path) == tmp_path / "version_1"
    assert (tmp_path / "version_1").is_dir()


def test_names_for_lightning(tmp_path):
    logger = RoundCSVLogger(tmp_path / "runs" / "digits-fedavg" / "version_3")
    assert (logger.name, logger.version) == ("digits-fedavg", "version_3")
    assert logger.save_dir == str(tmp_path / "runs")
    assert logger.log_dir == str(tmp_path / "runs" / "digits-fedavg" / "version_3")


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def test_tensorboard_has_the_round_as_step(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(TensorBoardLogger(tmp_path, name="tb", version="0"))
    events = EventAccumulator(str(tmp_path / "tb" / "0"), {"images": 0, "scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    for key in ("val/accuracy", "round/loss", "round/bytes_up"):
        assert [e.step for e in events.Scalars(key)] == [1, 2, 3]
    assert "partition" in tags["images"]
    assert [e.step for e in events.Tensors("round/cohort/text_summary")] == [1, 2, 3]


def test_what_a_skew_changes_is_logged_at_the_start(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    data = make_turned_pictures(skew=LabelPermutation(num_classes=3, groups=3, kind="full"))
    train(TensorBoardLogger(tmp_path, name="tb", version="0"), rounds=1, data=data)
    events = EventAccumulator(str(tmp_path / "tb" / "0"), {"images": 0, "scalars": 0})
    events.Reload()
    assert {"partition", "samples"} <= set(events.Tags()["images"])
    for key in ("partition/emd", "partition/feature_shift", "partition/changed_labels"):
        (event,) = events.Scalars(key)
        assert event.step == 0
    assert events.Scalars("partition/changed_labels")[0].value > 0


# --- Weights & Biases -------------------------------------------------------------------------------------------------


def read_wandb(folder):
    """Config, history, summary and metric definitions of the one offline run below a folder."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.rglob("*.wandb")
    found = {"config": {}, "history": [], "summary": {}, "metrics": {}}

    def keyed(items):
        return {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in items}

    for payload in records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(payload)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found["config"].update(keyed(record.run.config.update))
        elif kind == "config":
            found["config"].update(keyed(record.config.update))
        elif kind == "history":
            found["history"].append(keyed(record.history.item))
        elif kind == "summary":
            found["summary"].update(keyed(record.summary.update))
        elif kind == "metric":
            found["metrics"][record.metric.name or record.metric.glob_name] = record.metric.step_metric
    return found


@pytest.fixture(scope="module")
def wandb_run(tmp_path_factory):
    """What one offline run of three rounds wrote."""
    pytest.importorskip("wandb")
    import wandb
    from lightning.pytorch.loggers import WandbLogger

    folder = tmp_path_factory.mktemp("wandb")
    logger = WandbLogger(save_dir=str(folder), offline=True, project="test")
    logger.log_hyperparams({"model": {"class_path": "FedAvg"}, "seed_everything": 0})
    federation, module = train(logger)
    wandb.finish()
    wandb.teardown()  # the file is whole only when the writing process has ended
    return read_wandb(folder), federation, module


def test_wandb_history_has_the_round_as_x_axis(wandb_run):
    found, federation, _ = wandb_run
    accuracies = [h for h in found["history"] if "val/accuracy" in h]
    assert [h["round"] for h in accuracies] == [1, 2, 3]
    losses = [h for h in found["history"] if "round/loss" in h]
    assert [h["round"] for h in losses] == [1, 2, 3]
    cohorts = [h["round/cohort"] for h in found["history"] if "round/cohort" in h]
    assert cohorts == [" ".join(str(c) for c in sorted(federation.plan(r).cohort)) for r in range(3)]


def test_wandb_charts_use_the_round(wandb_run):
    found, _, _ = wandb_run
    assert found["metrics"]["val/accuracy"] == found["metrics"]["round/*"] == "round"


def test_wandb_config_is_the_resolved_one(wandb_run):
    found, _, _ = wandb_run
    assert "FedAvg" in json.dumps(found["config"])
    data = make_data()
    data.setup("fit")
    assert found["config"]["partition_hash"] == data.partition_hash


def test_wandb_has_picture_and_table_of_the_partition(wandb_run):
    found, _, _ = wandb_run
    (first,) = [h for h in found["history"] if "partition_table" in h or "partition_table/_type" in h]
    text = json.dumps(first)
    assert "image-file" in text
    assert "table-file" in text


def test_wandb_summary(wandb_run):
    found, _, module = wandb_run
    accuracies = {h["round"]: h["val/accuracy"] for h in found["history"] if "val/accuracy" in h}
    best = max(accuracies, key=lambda r: accuracies[r])
    assert found["summary"]["best_accuracy"] == pytest.approx(accuracies[best])
    assert found["summary"]["best_round"] == best
    parameters = sum(p.numel() for p in module.parameters())
    assert found["summary"]["total_bytes"] == 3 * 2 * 2 * 4 * parameters  # rounds, clients, directions, bytes


def test_totals_of_a_resumed_run_count_from_the_beginning(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(RoundCSVLogger(whole), rounds=4)
    saving = ModelCheckpoint(parts, filename="saved")
    fit(make_module(FedAvg), make_data(), 2, Federation(participation=2, seed=0), [RoundLogging(), saving],
        logger=RoundCSVLogger(parts), enable_checkpointing=True)  # fmt: skip
    trainer = make_trainer(4, Federation(participation=2, seed=0), [RoundLogging()], logger=RoundCSVLogger(parts))
    trainer.fit(make_module(FedAvg, seed=7), datamodule=make_data(), ckpt_path=str(parts / "saved.ckpt"))
    changing = ("round/seconds", "total/seconds")
    resumed, expected = (
        [{k: v for k, v in row.items() if not k.startswith(changing)} for row in read(folder)]
        for folder in (parts, whole)
    )
    assert resumed == expected


def test_a_checkpoint_with_the_logs_state_is_safe_to_load(tmp_path):
    state = RoundLogging().state_dict()
    torch.save(state, tmp_path / "s.pt")
    assert torch.load(tmp_path / "s.pt", weights_only=True) == state
