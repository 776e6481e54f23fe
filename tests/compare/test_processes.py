"""Comparisons in real processes: what they leave, what they skip, and how they end."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

QUICK = ["--federation.local_epochs", "1", "--federation.participation", "0.5", "--trainer.max_epochs", "2"]
#: Longer than an interruption takes.
LONG = ["--federation.local_epochs", "10", "--trainer.max_epochs", "40"]
PATIENCE = 120


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def start(folder, *arguments):
    command = [sys.executable, "-m", "flightning", "compare", "--config", "quickstart", "--out", "out", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
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
    began = time.monotonic()
    code, out, _ = compare(folder, "--models", "FedAvg", "FedProx:mu=0.1", *QUICK)
    assert code == 0
    assert "2 of 2 cells are finished already" in out
    assert log.stat().st_mtime_ns == before
    assert time.monotonic() - began < 60  # no PyTorch was imported


def test_other_settings_in_the_same_folder_are_refused(finished):
    code, _, err = compare(finished[0], "--models", "FedAvg", *QUICK[:-1], "3")
    assert code == 2
    assert "other settings (`--trainer.max_epochs`: `2`, now `3`)" in err


def start_and_wait_for_a_round(folder, options=LONG):
    process = start(folder, "--models", "FedAvg", *options)
    checkpoint = folder / "out" / "fedavg" / "seed_0" / "checkpoints" / "last.ckpt"
    wait_for(lambda: checkpoint.exists() or process.poll() is not None, "the first checkpoint")
    assert process.poll() is None, process.communicate()
    (child,) = children(process.pid)
    return process, child


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A comparison that was ended by Ctrl-C in the middle of a cell."""
    folder = tmp_path_factory.mktemp("interrupted")
    process, child = start_and_wait_for_a_round(folder)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    return folder, process.returncode, err, child


@pytest.mark.slow  # races with the end of the run on a quick machine
def test_ctrl_c_leaves_no_process(interrupted):
    _, code, err, child = interrupted
    assert code == 130
    assert "Interrupted: the same command goes on where it stopped." in err
    assert not is_alive(child)


@pytest.mark.slow  # races with the end of the run on a quick machine
def test_an_interrupted_cell_goes_on(interrupted):
    folder = interrupted[0]
    run = folder / "out" / "fedavg" / "seed_0"
    done = len(rows_of(run))
    assert 1 <= done < 40
    first_seconds = rows_of(run)[0]["round/seconds"]
    code, out, err = compare(folder, "--models", "FedAvg", *LONG)
    assert code == 0, err
    rows = rows_of(run)
    assert [int(row["round"]) for row in rows] == list(range(1, 41))
    assert rows[0]["round/seconds"] == first_seconds  # the first round was not run again
    assert "finished, round 40/40" in out


def test_kill_9_leaves_no_process(tmp_path):
    endless = [*LONG[:-1], "100000"]
    process, child = start_and_wait_for_a_round(tmp_path, endless)
    second = start(tmp_path, "--models", "FedAvg", *endless)
    _, err = second.communicate(timeout=PATIENCE)
    assert "another comparison is running in `out`" in err
    process.kill()
    process.wait(timeout=PATIENCE)
    wait_for(lambda: not is_alive(child), "the end of the cell")
    process.communicate()
