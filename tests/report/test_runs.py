import json

import numpy as np
import pytest

from flightning.report.configuration import data_and_partition
from flightning.report.runs import ReportError, find_runs, read_csv, read_run, read_runs
from tests.report.synthetic import write_run


def test_runs_are_found_at_any_depth_in_natural_order_and_once(tmp_path):
    for name in ("a/seed-10", "a/seed-2", "b/c/d/seed-1"):
        write_run(tmp_path / name)
    found = find_runs([tmp_path, tmp_path / "a", tmp_path / "a" / "seed-2"])
    assert [p.relative_to(tmp_path).as_posix() for p in found] == ["a/seed-2", "a/seed-10", "b/c/d/seed-1"]


def test_a_run_that_was_also_logged_by_wandb_counts_once(tmp_path):
    folder = write_run(tmp_path / "run")
    inner = folder / "wandb" / "offline-run-1"
    inner.mkdir(parents=True)
    (inner / "run-1.wandb").write_bytes(b"")
    assert find_runs([tmp_path]) == [folder]


def test_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ReportError, match=r"no run in .* a run is a folder with a `metrics.csv`.* check the path"):
        find_runs([tmp_path])


def test_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ReportError, match=r"missing` is not a folder, but RUN_DIR must be one; give a run folder"):
        find_runs([tmp_path / "missing"])


def test_everything_of_a_run_is_read(tmp_path):
    run = read_run(write_run(tmp_path / "run", "FedProx", 3, (0.5, 0.6), arguments={"mu": 0.1}, notice="scaled"))
    assert (run.model, run.data, run.partition, run.partition_hash) == (
        "FedProx",
        "Digits",
        "Dirichlet(alpha=0.5)",
        "hash3",
    )
    assert (run.seed, run.notice, run.finished, run.broken) == (3, "scaled", True, 0)
    assert run.config["model.mu"] == "0.1"
    assert run.rounds.tolist() == [1, 2]
    assert run.logged("val/accuracy").tolist() == [0.5, 0.6]
    assert np.isnan(run.logged("clients/jain")).all()
    assert run.picture == tmp_path / "run" / "partition.png"


@pytest.mark.parametrize(
    "line",
    [
        "2,0.6\n",
        "2,0.#6,1\n",
        "two,0.6,1\n",
        "0,0.6,1\n",
        "1.5,0.6,1\n",
        "2,0.6,1,9\n",
        "2,0.6,\0\0\n",
        "\0\0\0\n",
        "2,0.6,1",
    ],
    ids=["short", "number", "round", "zero", "fraction", "long", "nul", "only-nul", "unterminated"],
)
def test_broken_line_is_skipped_and_counted(tmp_path, line):
    path = tmp_path / "metrics.csv"
    path.write_text("round,val/accuracy,round/seconds\n1,0.5,1\n" + line)
    assert read_csv(path) == ({1: {"val/accuracy": 0.5, "round/seconds": 1.0}}, 1)


def test_bytes_that_are_no_text_break_only_their_line(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"round,val/accuracy\n1,0.5\n2,\xff\xfe\n3,0.7\n")
    assert read_csv(path) == ({1: {"val/accuracy": 0.5}, 3: {"val/accuracy": 0.7}}, 1)


def test_broken_lines_are_said(tmp_path):
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.csv").open("a") as file:
        file.write("garbage\n4,0.\n")
    runs, notes = read_runs([tmp_path])
    assert runs[0].broken == 2
    assert notes == [f"`{folder}`: 2 broken log lines were skipped; sums of bytes and seconds lack these rounds."]


def test_text_columns_and_empty_cells_are_no_faults(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text('round,round/cohort,val/accuracy\n1,"0 3 7",\n2,1 2,0.6\n')
    assert read_csv(path) == ({1: {}, 2: {"val/accuracy": 0.6}}, 0)


def test_round_logged_again_after_a_resume_keeps_the_last_values(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("round,val/accuracy\n1,0.5\n2,0.6\nround,val/accuracy\n2,0.65\n3,0.7\n")
    table, broken = read_csv(path)
    assert broken == 0
    assert [table[r]["val/accuracy"] for r in (1, 2, 3)] == [0.5, 0.65, 0.7]


def test_log_of_lightnings_csv_logger_is_merged_by_epoch(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,round/seconds,val/accuracy\n0,9,,0.5\n0,9,2.0,\n1,19,,0.6\n")
    expected = {1: {"val/accuracy": 0.5, "round/seconds": 2.0}, 2: {"val/accuracy": 0.6}}
    assert read_csv(path) == (expected, 0)


def test_run_without_summary_is_named_by_its_configuration(tmp_path):
    folder = write_run(tmp_path / "run", "FedDyn", 4)
    (folder / "summary.json").unlink()
    config = (
        (folder / "config.yaml")
        .read_text()
        .replace("batch_size: 32", "partition: {class_path: p.Shards, init_args: {k: 2}}")
    )
    (folder / "config.yaml").write_text(config)
    run = read_run(folder)
    assert (run.model, run.data, run.partition, run.seed) == ("FedDyn", "Digits", "Shards(k=2)", 4)


def test_a_skew_stands_beside_the_partition():
    skew = {"class_path": "p.RotationSkew", "init_args": {"groups": 4}}
    config = {"data": {"class_path": "p.Digits", "init_args": {"partition": {"class_path": "p.IID"}, "skew": skew}}}
    assert data_and_partition({}, config) == ("Digits", "IID, RotationSkew(groups=4)")


def test_seed_of_everything_tells_runs_apart_where_the_seed_of_the_data_is_fixed(tmp_path):
    for seed in (0, 1):
        folder = write_run(tmp_path / str(seed), seed=5)
        config = (folder / "config.yaml").read_text().replace("seed_everything: 5", f"seed_everything: {seed}")
        (folder / "config.yaml").write_text(config)
    assert [r.seed for r in read_runs([tmp_path])[0]] == [0, 1]


def test_data_have_the_name_that_their_grid_gives_to_them(tmp_path):
    folder = write_run(tmp_path / "a", data="HuggingFace")
    (folder / "cell.json").write_text('{"data": "Sent140"}')
    assert read_run(folder).data == "Sent140"


def test_half_written_summary_is_passed_over_and_said(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "summary.json").write_text(json.dumps({"model": "FedAvg"})[:-4])
    runs, notes = read_runs([folder])
    assert runs[0].model == "FedAvg"
    assert "`summary.json` cannot be read and was passed over" in notes[0]


def test_run_without_accuracy_is_left_out_and_said(tmp_path):
    write_run(tmp_path / "good")
    folder = write_run(tmp_path / "started", seed=1)
    (folder / "metrics.csv").write_text("round,val/accuracy\n")
    runs, notes = read_runs([tmp_path])
    assert [r.folder.name for r in runs] == ["good"]
    assert notes == [f"`{folder}` is left out: it logged no `val/accuracy` in any round."]


def test_runs_that_all_lack_the_accuracy_are_refused(tmp_path):
    folder = write_run(tmp_path / "started")
    (folder / "metrics.csv").write_text("round,val/accuracy\n")
    with pytest.raises(ReportError, match="none of the 1 runs logged `val/accuracy`, and every table needs it"):
        read_runs([tmp_path])
