"""Real processes are killed, interrupted and asked to end; whoever is left says so, and the run goes on later."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests.classification import assert_equal_nested
from tests.programs import ROOT, environment
from tests.strategies.processes import distance

PAIR = {"strategy": "client_parallel", "devices": 2}
DDP = {"strategy": "ddp", "devices": 2}
#: Generous: the machine may be busy.
LONG = 300


def start(folder, *command, **options):
    command = command or ("-m", "tests.strategies.faulty", str(folder), json.dumps(options))
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, *command],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr").open("w"),
        start_new_session=True,
    )


def wait_for(condition):
    until = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def ready(folder, process, rank):
    """Process id of a rank once it waits inside the third round."""
    path = folder / f"ready-{rank}"
    wait_for(lambda: path.exists() or process.poll() is not None)
    assert process.poll() is None, (folder / "stderr").read_text()[-3000:]
    return int(path.read_text())


def ended(process, folder):
    """Exit code and what was printed; fails where a process of the run is left."""
    code = process.wait(LONG)
    wait_for(lambda: not _members(process.pid))
    return code, (folder / "stderr").read_text()


def _members(session):
    listed = subprocess.run(["ps", "-o", "pid=,stat=", "-s", str(session)], capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if "Z" not in line.split()[1]]


def finished(folder, **options):
    """Run to the end, from the last checkpoint where there is one."""
    process = start(folder, resume=(folder / "last.ckpt").exists(), **options)
    code, text = ended(process, folder)
    assert code == 0, text[-3000:]
    return torch.load(folder / "final-0.pt")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run of two processes ends with that nobody interrupts."""
    return finished(tmp_path_factory.mktemp("whole"), **PAIR)


def broken_off(folder, rank=1, how=signal.SIGKILL, **options):
    """Exit code and message of a run of which one process is ended inside the third round."""
    process = start(folder, pause=2, **options)
    pids = [ready(folder, process, r) for r in range(2)]
    os.kill(pids[rank], how)
    return pids[rank], *ended(process, folder)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run whose second process was killed."""
    folder = tmp_path_factory.mktemp("killed")
    return folder, *broken_off(folder, **PAIR)


def test_a_killed_process_is_named_and_the_others_end(killed):
    _, pid, code, text = killed
    assert code not in (0, None)
    assert f"error: rank 1 (process {pid}) ended before the run was over, so rank 0 stops, too" in text
    assert "`--ckpt_path last`" in text


def test_a_killed_run_goes_on_with_the_same_number_of_processes(killed, whole, tmp_path):
    shutil.copytree(killed[0], tmp_path / "run")
    resumed = finished(tmp_path / "run", federation={"state_dir": str(tmp_path / "run" / "states")}, **PAIR)
    assert_equal_nested(whole, resumed)


def test_a_killed_run_goes_on_in_one_process(killed, whole, tmp_path):
    shutil.copytree(killed[0], tmp_path / "run")
    assert distance(whole, finished(tmp_path / "run")) < 1e-6


def test_a_killed_run_of_one_process_goes_on_in_two(whole, tmp_path):
    process = start(tmp_path, pause=2)
    os.kill(ready(tmp_path, process, 0), signal.SIGKILL)
    ended(process, tmp_path)
    assert distance(whole, finished(tmp_path, **PAIR)) < 1e-6


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_an_error_in_one_process_ends_all_and_its_rank_is_named(tmp_path, rank):
    code, text = ended(start(tmp_path, fails=rank, **PAIR), tmp_path)
    assert code not in (0, None)
    assert "ZeroDivisionError: a fault of this process alone" in text
    assert f"error: rank {rank} (process " in text
    assert f"ended before the run was over, so rank {1 - rank} stops, too" in text


def test_a_killed_process_is_named_under_torchrun(tmp_path):
    options = json.dumps({"pause": 2, **PAIR})
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = start(tmp_path, *torchrun, "-m", "tests.strategies.faulty", str(tmp_path), options)
    pid = [ready(tmp_path, process, rank) for rank in range(2)][1]
    os.kill(pid, signal.SIGKILL)
    code, text = ended(process, tmp_path)
    assert code not in (0, None)
    assert f"error: rank 1 (process {pid}) ended before the run was over, so rank 0 stops, too" in text
    assert "stopped by SIGTERM" not in text


@pytest.mark.slow
def test_the_first_process_is_missed_by_the_others(tmp_path):
    pid, code, text = broken_off(tmp_path, rank=0, **PAIR)
    assert code == -signal.SIGKILL
    assert f"error: rank 0 (process {pid}) ended before the run was over, so rank 1 stops, too" in text


@pytest.mark.slow
def test_a_killed_process_is_named_under_ddp(tmp_path):
    pid, code, text = broken_off(tmp_path, **DDP)
    assert code not in (0, None)
    assert f"error: rank 1 (process {pid}) ended before the run was over" in text


@pytest.mark.parametrize(
    ("rank", "waiting"),
    [
        (1, [0, 1]),  # the first process trains
        pytest.param(1, [1], marks=pytest.mark.slow),  # it waits in an exchange
        pytest.param(0, [0, 1], marks=pytest.mark.slow),  # it is lost, and with it the store of the processes
    ],
)
def test_a_process_that_is_lost_on_another_machine_is_named(tmp_path, rank, waiting):
    pid, _, text = broken_off(tmp_path, rank, waiting=waiting, apart=True, **PAIR)
    assert f"error: rank {rank} (process {pid} on node{rank}) ended before the run was over" in text


@pytest.mark.slow
def test_sigterm_reaches_other_machines(tmp_path):
    _, code, text = broken_off(tmp_path, rank=1, how=signal.SIGTERM, apart=True, **PAIR)
    assert code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM in round 3: " in text
    assert "Traceback" not in text


@pytest.mark.parametrize("layout", [PAIR, pytest.param(DDP, marks=pytest.mark.slow)], ids=["client_parallel", "ddp"])
def test_sigterm_stops_all_processes(tmp_path, layout):
    _, code, text = broken_off(tmp_path, rank=0, how=signal.SIGTERM, **layout)
    assert code == 128 + signal.SIGTERM
    assert f"stopped by SIGTERM in round 3: `{tmp_path}/last.ckpt` holds the rounds before it" in text
    assert "ended before the run was over" not in text
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["epoch"] == 1


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", [pytest.param(PAIR, marks=pytest.mark.slow), DDP], ids=["client_parallel", "ddp"])
def test_sigterm_stops_a_client_in_the_midst_of_its_steps(tmp_path, layout, rank):
    federation = {"local_loop": "fused", "local_steps": 200_000}  # nobody waits for the end of a client
    process = start(tmp_path, pause=0, inside=True, federation=federation, **layout)
    os.kill([ready(tmp_path, process, r) for r in range(2)][rank], signal.SIGTERM)
    code, text = ended(process, tmp_path)
    assert code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM in round 1: no round was finished and saved" in text
    assert "ended before the run was over" not in text
    assert "Traceback" not in text


@pytest.mark.parametrize("to_all", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sigterm_ends_a_process_that_waits_in_an_exchange(tmp_path, to_all):
    process = start(tmp_path, pause=2, waiting=[1], **PAIR)
    pids = [ready(tmp_path, process, rank) for rank in range(2)]
    time.sleep(1)  # the first process has few batches left
    for pid in pids if to_all else pids[:1]:
        os.kill(pid, signal.SIGTERM)
    code, text = ended(process, tmp_path)
    assert code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM in round 3: " in text
    assert "Traceback" not in text


def test_ctrl_c_stops_all_processes(tmp_path, whole):
    process = start(tmp_path, pause=2, **PAIR)
    for rank in range(2):
        ready(tmp_path, process, rank)
    os.killpg(process.pid, signal.SIGINT)  # a terminal interrupts all processes in the foreground
    code, text = ended(process, tmp_path)
    assert code == 1
    assert "stopped by Ctrl-C in round 3: " in text
    assert "ended before the run was over" not in text
    assert_equal_nested(whole, finished(tmp_path, **PAIR))


@pytest.mark.parametrize(
    ("how", "reason"),
    [(signal.SIGTERM, "SIGTERM"), pytest.param(signal.SIGINT, "Ctrl-C", marks=pytest.mark.slow)],
)
def test_the_command_line_stops_and_goes_on(tmp_path, how, reason):
    folder = tmp_path / "run"
    command = ["-m", "flightning", "fit", "--config=quickstart", f"--run_folder={folder}", "--model=SCAFFOLD"]
    command += ["--trainer.enable_progress_bar=false", "--federation.state_dir=states"]
    process = start(tmp_path, *command, "--trainer.max_epochs=100000")
    wait_for((folder / "checkpoints" / "last.ckpt").exists)
    process.send_signal(how)
    code, text = ended(process, tmp_path)
    assert code == (143 if how is signal.SIGTERM else 1)
    assert f"stopped by {reason} in round" in text
    assert "Traceback" not in text
    rounds = len((folder / "metrics.csv").read_text().splitlines()) - 1
    process = start(tmp_path, *command, f"--trainer.max_epochs={rounds + 1}", "--ckpt_path=last")
    code, text = ended(process, tmp_path)
    assert code == 0, text[-3000:]
    assert json.loads((folder / "summary.json").read_text())["rounds"] == rounds + 1
