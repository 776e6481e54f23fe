"""Comparisons in real processes: what they leave, what they skip, and how they end."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.programs import ROOT

QUICK = ["--federation.local_epochs", "1", "--federation.participation", "0.5", "--trainer.max_epochs", "2"]
GATED = [*QUICK[:-1], "4", "--trainer.callbacks+=gate.Gate"]
GATE = """
import pathlib, time
from lightning.pytorch import Callback

class Gate(Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            pathlib.Path("waiting").touch()
            while not pathlib.Path("go").exists():
                time.sleep(0.02)
"""
PATIENCE = 300


def start(folder, *arguments):
    command = [sys.executable, "-m", "flightning", "compare", "--config", "quickstart", "--out", "out", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def compare(folder, *arguments):
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def children(pid):
    """Processes that a process has started, by the /proc file system."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def descendants(pid):
    return [found for child in children(pid) for found in (child, *descendants(child))]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.02)


def rows_of(run):
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two methods that run and one that cannot."""
    folder = tmp_path_factory.mktemp("compare")
    code, out, err = compare(folder, "--models", "FedAvg", "FedProx:mu=0.1", "FedProx:mu=-1", "--jobs", "3", *QUICK)
    return folder, code, out, err


def test_every_cell_leaves_a_run(finished):
    folder = finished[0] / "out"
    for name in ("fedavg", "fedprox-mu=0.1"):
        summary = json.loads((folder / name / "seed_0" / "summary.json").read_text())
        assert (summary["finished"], summary["rounds"], summary["seed"]) == (True, 2, 0)


def test_methods_share_partition_and_cohorts(finished):
    runs = [finished[0] / "out" / name / "seed_0" for name in ("fedavg", "fedprox-mu=0.1")]
    hashes = {json.loads((run / "summary.json").read_text())["partition_hash"] for run in runs}
    assert len(hashes) == 1
    first, second = ([row["round/cohort"] for row in rows_of(run)] for run in runs)
    assert first == second
    assert len(first[0].split()) == 5


def test_a_failing_cell_is_listed_and_stops_nobody(finished):
    _, code, out, err = finished
    assert code == 1
    assert "failed: FedProx(mu=-1), seed 0: `mu=-1.0` must" in err
    assert "2 of 3 finished, 1 failed" in out


def test_the_comparison_ends_with_its_report(finished):
    folder, _, out, _ = finished
    assert "# Comparison of 2 methods on Digits" in out
    assert (folder / "out" / "report" / "report.html").stat().st_size > 10_000
    assert (folder / "out" / "report" / "accuracy_over_rounds.png").exists()


def test_finished_cells_are_not_run_again(finished):
    folder = finished[0]
    log = folder / "out" / "fedavg" / "seed_0" / "metrics.csv"
    before = log.stat().st_mtime_ns
    code, out, _ = compare(folder, "--models", "FedAvg", "FedProx:mu=0.1", *QUICK)
    assert code == 0
    assert "2 of 2 cells are finished already" in out
    assert log.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["fedavg", "fedavg-+-ccvr"])
def test_a_cell_that_was_stopped_after_its_last_round_is_finished(tmp_path, name):
    entry = "{FedAvg: {}, with: {trainer: {callbacks: [{class_path: CCVR}]}}}" if "ccvr" in name else "FedAvg"
    (tmp_path / "grid.yaml").write_text(f"config: quickstart\nmodels: [{entry}]\n")
    assert compare(tmp_path, "--grid", "grid.yaml", *QUICK)[0] == 0
    run = tmp_path / "out" / name / "seed_0"
    whole, rows = json.loads((run / "summary.json").read_text()), rows_of(run)
    stopped = {k: v for k, v in whole.items() if k != "ccvr_accuracy"}
    (run / "summary.json").write_text(json.dumps({**stopped, "finished": False}))
    with (run / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [k for k in rows[0] if not k.startswith("ccvr/")], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    code, out, err = compare(tmp_path, "--grid", "grid.yaml", *QUICK)
    assert code == 0, err
    assert "finished, round 2/2" in out
    assert json.loads((run / "summary.json").read_text()) == whole
    assert rows_of(run) == rows


def test_a_dry_run_leaves_no_states_of_clients(tmp_path):
    code, _, err = compare(tmp_path, "--models", "SCAFFOLD", "--dry-run", "--federation.state_dir", "states", *QUICK)
    assert code == 0, err
    assert list(tmp_path.iterdir()) == []


def test_other_settings_in_the_same_folder_are_refused(finished):
    code, _, err = compare(finished[0], "--models", "FedAvg", *QUICK[:-1], "3")
    assert code == 2
    assert "other settings (`--trainer.max_epochs`: `2`, now `3`)" in err


def test_a_dry_run_tells_the_cells_and_the_time_and_leaves_nothing(tmp_path):
    code, out, err = compare(tmp_path, "--models", "FedAvg", "FedProx:mu=-1", "--seeds", "0", "1", "--dry-run", *QUICK)
    assert code == 1, err
    lines = out.splitlines()
    assert re.fullmatch(r"FedAvg, seed 0: \d+ (s|min)", lines[0])
    assert lines[1].startswith("    flightning fit --config=")
    assert lines[1].endswith("--trainer.max_epochs 2 --seed_everything=0 --run_folder=out/fedavg/seed_0")
    assert lines[2].startswith("FedProx(mu=-1), seed 0: fails (`mu=-1.0` must be at least 0")
    assert re.fullmatch(r"4 cells, about \d+ (s|min)", lines[-1])
    assert not (tmp_path / "out").exists()


def test_missing_data_are_refused_before_anything_runs(tmp_path):
    (tmp_path / "grid.yaml").write_text(
        "config: quickstart\nmodels: [FedAvg]\ndata: [Digits, {MNIST: {root: nowhere, download: false}}]\n"
    )
    code, out, err = compare(tmp_path, "--grid", "grid.yaml", *QUICK)
    assert code == 2, err
    assert "nothing was started. `MNIST` cannot be read from `root='nowhere'`" in err
    assert err.rstrip().endswith("Or leave these cells out with `--without MNIST`.")
    assert "starting" not in out
    assert not (tmp_path / "out" / "digits").exists()


def start_and_wait_at_the_gate(folder, *models):
    """A comparison whose first cell waits in its third round; the comparison, and all processes below it."""
    process = start(folder, "--models", *models, *GATED)
    wait_for(lambda: (folder / "waiting").exists() or process.poll() is not None, "the third round")
    assert process.poll() is None, process.communicate()
    return process, descendants(process.pid)


@pytest.fixture
def gated(tmp_path):
    """A folder with a callback that lets a run wait in its third round, however long that takes."""
    (tmp_path / "gate.py").write_text(GATE)
    return tmp_path


def expect_resumed(folder):
    run = folder / "out" / "fedavg" / "seed_0"
    before = rows_of(run)
    assert [int(row["round"]) for row in before] == [1, 2]
    (folder / "go").touch()
    code, out, err = compare(folder, "--models", "FedAvg", *GATED)
    assert code == 0, err
    rows = rows_of(run)
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4]
    seconds = [[row["round/seconds"] for row in found] for found in (before, rows)]
    assert seconds[1][:2] == seconds[0]  # the first rounds were not run again
    assert "finished, round 4/4" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "kill"])
def test_a_comparison_that_is_interrupted_leaves_no_process_and_goes_on(gated, number):
    process, below = start_and_wait_at_the_gate(gated, "FedAvg")
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Interrupted: the same command goes on where it stopped." in err
    assert len(below) >= 2  # the nursery and the run
    assert not any(is_alive(pid) for pid in below)
    if number == signal.SIGINT:
        expect_resumed(gated)


def test_a_comparison_that_is_killed_leaves_no_process_and_goes_on(gated):
    process, below = start_and_wait_at_the_gate(gated, "FedAvg")
    _, _, err = compare(gated, "--models", "FedAvg", *GATED)
    assert "another comparison is running in `out`" in err
    process.kill()
    process.communicate()
    wait_for(lambda: not any(is_alive(pid) for pid in below), "the end of all processes")
    expect_resumed(gated)


def test_runs_whose_nursery_is_killed_fail_and_the_others_run(gated):
    process, below = start_and_wait_at_the_gate(gated, "FedAvg", "SOLO")
    (nursery,) = children(process.pid)
    os.kill(nursery, signal.SIGKILL)
    wait_for(lambda: not any(is_alive(pid) for pid in below), "the end of the run")
    (gated / "go").touch()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "failed: FedAvg, seed 0: its process was ended by SIGKILL" in err
    assert "SOLO, seed 0: finished, round 4/4" in out
