"""Processes of runs: what they are given, how they end, and that they end with the comparison."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from flightning.compare.processes import Nurseries

JOB = """
import json, os, pathlib, sys, time
import torch

def main():
    what, path = sys.argv[1:]
    if what == "tell":
        found = {
            "session": os.getsid(0) == os.getpid(),
            "threads": torch.get_num_threads(),
            "variable": os.environ["OF_THE_JOB"],
            "main": sys.modules["__main__"].__spec__.name,
        }
        pathlib.Path(path).write_text(json.dumps(found))
        print("said by the job")
        return 3
    if what == "raise":
        raise ValueError("boom")
    pathlib.Path(path).write_text(str(os.getpid()))
    while True:
        time.sleep(0.02)
"""
PATIENCE = 300


@pytest.fixture(scope="module", params=[True, False], ids=["fork", "new interpreter"])
def nurseries(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "job_of_test.py").write_text(JOB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.delenv("OMP_NUM_THREADS", raising=False)
        with Nurseries(can_fork=request.param) as found:
            yield found


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.02)


def start(nurseries, folder, what):
    output = folder / "output.txt"
    return nurseries.start("job_of_test", [what, str(folder / "told")], output, {"OF_THE_JOB": "yes"}, threads=1)


def run(nurseries, folder, what):
    process = start(nurseries, folder, what)
    wait_for(lambda: process.poll() is not None, "the end of the job")
    return process.code, (folder / "output.txt").read_text()


def test_a_job_has_its_arguments_environment_threads_and_session(nurseries, tmp_path):
    code, output = run(nurseries, tmp_path, "tell")
    assert (code, output) == (3, "said by the job\n")
    # further processes of a run are started by the name of its main module
    expected = {"session": True, "threads": 1, "variable": "yes", "main": "flightning.__main__"}
    assert json.loads((tmp_path / "told").read_text()) == expected


def test_output_is_added_to_what_is_there(nurseries, tmp_path):
    (tmp_path / "output.txt").write_text("before\n")
    assert run(nurseries, tmp_path, "tell")[1] == "before\nsaid by the job\n"


def test_what_a_job_raises_is_in_its_output(nurseries, tmp_path):
    code, output = run(nurseries, tmp_path, "raise")
    assert code == 1
    assert output.splitlines()[-1] == "ValueError: boom"


def test_a_job_that_is_killed_says_by_what(nurseries, tmp_path):
    process = start(nurseries, tmp_path, "wait")
    wait_for((tmp_path / "told").exists, "the job")
    process.kill()
    wait_for(lambda: process.poll() is not None, "the end of the job")
    assert process.code == -signal.SIGKILL


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(not Path("/proc").exists(), reason="the states of processes are not to be seen")
def test_a_job_that_ended_while_the_next_was_asked_for_is_told(nurseries, tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first = start(nurseries, folders[0], "wait")
    wait_for((folders[0] / "told").exists, "the first job")
    wait_for(lambda: first.poll() is not None or first.pid is not None, "its number")
    nursery = nurseries._by_threads[1]._process.pid
    os.kill(nursery, signal.SIGSTOP)
    os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: state(first.pid) == "Z", "the end of the first job")
    second = start(nurseries, folders[1], "tell")
    os.kill(nursery, signal.SIGCONT)
    wait_for(lambda: first.poll() is not None and second.poll() is not None, "both ends")
    assert (first.code, second.code) == (-signal.SIGKILL, 3)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_closing_ends_jobs_that_run_and_those_that_are_not_born_yet(tmp_path):
    (tmp_path / "job_of_test.py").write_text(JOB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with Nurseries(can_fork=False) as nurseries:
            process = start(nurseries, tmp_path, "wait")
            wait_for((tmp_path / "told").exists, "the job")
            (tmp_path / "other").mkdir()
            start(nurseries, tmp_path / "other", "wait")
            process.poll()
    pid = int((tmp_path / "told").read_text())
    wait_for(lambda: not is_alive(pid), "the end of the job")
    assert process.pid == pid
    assert os.listdir(tmp_path / "other") in ([], ["output.txt"])
