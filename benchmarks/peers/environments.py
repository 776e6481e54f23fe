"""Make one virtual environment per peer.

python -m benchmarks.peers.environments                    # below .peers/
python -m benchmarks.peers.environments --folder FOLDER --only pfl

Peers want other versions of the same packages, so none of them is installed beside flightning.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

#: Where the environments lie unless told otherwise; git ignores it.
FOLDER = Path(".peers")

#: The release that flightning and the hand-written loops run with, so that all contestants have the same kernels.
TORCH = f"torch=={version('torch').partition('+')[0]}"


@dataclass(frozen=True)
class Peer:
    """What makes an environment.

    Args:
        title: Name in the tables.
        packages: What pip installs after PyTorch.
        alone: Installed without what it asks for.
        stub: Lines of a package `torchvision` that takes the place of the real one; empty for none.
    """

    title: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()
    stub: str = ""


#: FedLab's data sets import torchvision, and `fedlab.core` imports them. None of them is used here, and the torchvision
#: that pip picks may bring another PyTorch along.
TORCHVISION_STUB = '''"""Stands in for torchvision, which FedLab imports and this benchmark never calls."""

datasets = transforms = None
'''

PEERS = {
    "flower": Peer("Flower 1.41.0", ("flwr[simulation]==1.41.0",)),
    "fedlab": Peer(
        "FedLab 1.3.0",
        ("numpy", "pandas", "pillow", "scikit-learn", "pynvml", "tqdm", "munch"),
        alone=("fedlab==1.3.0",),
        stub=TORCHVISION_STUB,
    ),
    "pfl": Peer("pfl 0.6.0", ("pfl==0.6.0",)),
}


def interpreter(folder: Path, peer: str) -> Path:
    """The Python of an environment."""
    return folder / peer / "bin" / "python"


def commands(folder: Path, peer: str, python: str = sys.executable) -> list[list[str]]:
    """The commands that make an environment, in order.

    Args:
        folder: Where the environments lie.
        peer: One of `PEERS`.
        python: Interpreter it is made from; Flower needs 3.11 or newer, pfl one below 3.13.
    """
    install = [str(interpreter(folder, peer)), "-m", "pip", "install", "--quiet"]
    found = [[python, "-m", "venv", str(folder / peer)], [*install, TORCH], [*install, TORCH, *PEERS[peer].packages]]
    return [*found, [*install, "--no-deps", *PEERS[peer].alone]] if PEERS[peer].alone else found


def write_stub(folder: Path, peer: str) -> None:
    """Put the stand-in for torchvision, where a peer has one, among the packages of its environment."""
    if PEERS[peer].stub:
        (packages,) = (folder / peer).glob("lib/python*/site-packages")
        target = packages / "torchvision" / "__init__.py"
        target.parent.mkdir(exist_ok=True)
        target.write_text(PEERS[peer].stub)


def main() -> None:
    """Make the environments that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where they go")
    parser.add_argument("--only", nargs="+", choices=[*PEERS], default=[*PEERS])
    parser.add_argument("--python", default=sys.executable, help="interpreter they are made from, 3.11 or 3.12")
    arguments = parser.parse_args()
    for peer in arguments.only:
        for command in commands(arguments.folder, peer, arguments.python):
            print(" ".join(command), flush=True)
            subprocess.run(command, check=True)
        write_stub(arguments.folder, peer)


if __name__ == "__main__":
    main()
