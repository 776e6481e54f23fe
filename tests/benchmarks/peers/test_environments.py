import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.environments import PEERS, TORCH, commands, interpreter, main, write_stub


@pytest.mark.parametrize("peer", PEERS)
def test_an_environment_is_made_before_pytorch_and_the_peer_come_into_it(peer, tmp_path):
    make, torch, *rest = commands(tmp_path, peer, "python3")
    assert make == ["python3", "-m", "venv", str(tmp_path / peer)]
    assert torch[0] == str(interpreter(tmp_path, peer))
    assert torch[-1] == TORCH
    assert all(command[0] == torch[0] for command in rest)


@pytest.mark.parametrize("peer", PEERS)
def test_pytorch_and_the_peer_are_pinned(peer, tmp_path):
    words = [word for command in commands(tmp_path, peer) for word in command]
    pinned = {word.split("==")[0] for word in words if "==" in word}
    assert pinned == {"torch", {"flower": "flwr[simulation]"}.get(peer, peer)}


def test_every_install_names_pytorch_or_takes_no_dependencies_so_that_no_other_build_comes(tmp_path):
    installs = [c for peer in PEERS for c in commands(tmp_path, peer) if "install" in c]
    assert all(TORCH in c or "--no-deps" in c for c in installs)


def test_the_stub_can_be_imported_the_way_fedlab_does(tmp_path):
    packages = tmp_path / "fedlab" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    write_stub(tmp_path, "fedlab")
    code = "import torchvision; from torchvision import transforms"
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env={"PYTHONPATH": str(packages)})


def test_a_peer_without_a_stub_needs_no_environment(tmp_path):
    write_stub(tmp_path, "pfl")
    assert not list(tmp_path.iterdir())


def test_only_those_that_were_asked_for_are_made(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command))
    monkeypatch.setattr(sys, "argv", ["environments", "--folder", str(tmp_path), "--only", "pfl"])
    main()
    assert ran == commands(Path(tmp_path), "pfl")
