"""Whoever starts the processes, the run is the same, and one of them writes it."""

import socket
import subprocess
import sys

import pytest
import torch

from tests.classification import assert_equal_nested
from tests.programs import PROGRAM, ROOT, environment

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "flightning"]
SETTINGS = ["fit", "--config=quickstart", "--trainer.strategy=client_parallel", "--trainer.max_epochs=2"]
SETTINGS += ["--trainer.enable_progress_bar=false", "--federation.local_epochs=1"]
PAIR = ["--trainer.devices=2"]
TWO_NODES = ["--trainer.devices=1", "--trainer.num_nodes=2"]


def start(launcher, folder, layout, **variables):
    command = [*launcher, *SETTINGS, *layout, f"--run_folder={folder}"]
    return subprocess.Popen(
        command,
        cwd=ROOT if "tests" in launcher[-1] else folder.parent,
        env=environment(**variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def weights(folder, *programs):
    """Wait for the end of a run."""
    try:
        texts = [program.communicate(timeout=600)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()
    assert [program.returncode for program in programs] == [0] * len(programs), "".join(t[-3000:] for t in texts)
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=False)["state_dict"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run by Lightning's own launcher, and what each of its processes has written."""
    folder = tmp_path_factory.mktemp("lightning")
    program = [sys.executable, "-m", "tests.strategies.audited"]
    run = start(program, folder / "run", PAIR, FLIGHTNING_WRITES=str(folder / "writes"))
    expected = weights(folder / "run", run)
    return folder / "run", expected, [(folder / f"writes-{rank}").read_text().splitlines() for rank in range(2)]


@pytest.fixture(scope="module")
def expected(written):
    return written[1]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def test_the_first_process_alone_writes(written):
    folder, _, (first, second) = written
    assert any(path.startswith(str(folder)) for path in first)
    assert [path for path in second if path.startswith(str(folder))] == []


def test_torchrun_gives_the_weights_of_lightnings_own_launcher(tmp_path, expected):
    folder = tmp_path / "run"
    assert_equal_nested(weights(folder, start(TORCHRUN, folder, PAIR)), expected)


def test_programs_on_two_nodes_give_them(tmp_path, expected):
    folder, place = tmp_path / "run", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    programs = [start(PROGRAM, folder, TWO_NODES, NODE_RANK=str(rank), **place) for rank in range(2)]
    assert_equal_nested(weights(folder, *programs), expected)


def test_tasks_of_slurm_on_two_nodes_give_them(tmp_path, expected):
    folder, place = tmp_path / "run", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "job", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}
    job["SLURM_NTASKS_PER_NODE"] = "1"
    programs = [
        start(PROGRAM, folder, TWO_NODES, SLURM_PROCID=rank, SLURM_NODEID=rank, SLURM_LOCALID="0", **job, **place)
        for rank in ("0", "1")
    ]
    assert_equal_nested(weights(folder, *programs), expected)


def test_all_processes_of_a_run_share_the_folder_that_the_first_has_claimed(tmp_path):
    settings = [word for word in SETTINGS if "max_epochs" not in word]
    command = [*PROGRAM, *settings, *PAIR, "--trainer.max_epochs=1"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    runs = tmp_path / "runs" / "digits-fedavg"
    assert [path.name for path in runs.iterdir()] == ["version_0"]
    assert (runs / "version_0" / "checkpoints" / "last.ckpt").exists()
