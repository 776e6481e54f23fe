"""Flower, FedLab and pfl on the same work as flightning and hand-written loops.

python -m benchmarks.peers.environments                    # once: .peers/flower, .peers/fedlab, .peers/pfl
python -m benchmarks.peers --data DATA                     # check, then measure A, B and C
python -m benchmarks.peers --data DATA --only C --contestants hand-written pfl --steps measure --turns 3

DATA holds MNIST and Fashion-MNIST as torchvision lays them out. First every contestant trains a few rounds with a fixed
order of batches, one thread per process, and all must end with the same weights. Then contestants are measured one
after the other, `--turns` times; measurements go to a file from which the tables are made, and with `--append` they
join those of earlier calls.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers import check, table
from benchmarks.peers.environments import FOLDER, PEERS, interpreter
from benchmarks.peers.export import export
from benchmarks.plain import WORKLOADS
from benchmarks.workloads import CONTESTANTS, Setting, measure, own_command

LAYOUTS = {"1 process x 2 threads": (1, 2), "2 processes x 1 thread": (2, 1)}

#: Contestants in environments of their own: peer, processes and threads of each.
PEER_CONTESTANTS = {
    f"{peer.title}, {layout}": (name, *numbers) for name, peer in PEERS.items() for layout, numbers in LAYOUTS.items()
}

ALL = {**CONTESTANTS, **PEER_CONTESTANTS}


def peer_command(contestant: str, peers: Path, task: Path, setting: Setting, folder: Path) -> list[str]:
    """How to start a contestant of `PEER_CONTESTANTS`; pfl's processes are those of `torchrun`."""
    peer, processes, _ = PEER_CONTESTANTS[contestant]
    python = [str(interpreter(peers, peer))]
    if peer == "pfl" and processes > 1:
        python += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    options = [peer, task, processes, setting.threads, setting.rounds, int(setting.shuffle), folder]
    return [*python, "-m", "benchmarks.peers.contestant", *map(str, options)]


class Contest:
    """Runs contestants on one workload.

    Args:
        name: The workload.
        data: Folder of the data.
        peers: Folder of the environments.
        path: Where to write its task.
    """

    def __init__(self, name: str, data: str, peers: Path, path: Path) -> None:
        self.name, self.data, self.peers, self.path = name, data, peers, path

    def run(self, contestant: str, setting: Setting, folder: Path) -> dict[str, float]:
        """Let a contestant train, and return what it took."""
        if contestant in CONTESTANTS:
            command = own_command(contestant, self.name, self.data, setting, folder)
        else:
            command = peer_command(contestant, self.peers, self.path, setting, folder)
        return measure(command, setting.threads, folder)

    def check(self, contestants: Sequence[str], rounds: int) -> None:
        """Print how far apart the weights are after some rounds with a fixed order of batches."""
        setting = Setting(1, rounds, shuffle=False, share=check.SHARES[self.name])
        task = export(self.name, self.data, rounds, setting.share)
        task.save(self.path)
        found = {}
        for contestant in contestants:
            with tempfile.TemporaryDirectory() as folder:
                self.run(contestant, setting, Path(folder))
                found[contestant] = np.load(Path(folder) / "weights.npy")
        differences = check.compare(found, task.weights)
        for contestant, value in differences.items():
            print(f"{self.name}  {contestant:56s} weights after {rounds} rounds differ by {value:.1e}", flush=True)
        check.refuse_differences(differences)

    def measure(self, contestants: Sequence[str], rounds: int, turns: int, results: Path) -> None:
        """Add measurements of each contestant to the results, turn after turn."""
        export(self.name, self.data, rounds).save(self.path)
        for contestant in [*contestants] * turns:
            with tempfile.TemporaryDirectory() as folder:
                figures = self.run(contestant, Setting(ALL[contestant][2], rounds), Path(folder))
            table.append(results, {"workload": self.name, "contestant": contestant, **figures})
            shown = "  ".join(f"{key} {value:.3f}" for key, value in figures.items())
            print(f"{self.name}  {contestant:56s} {shown}", flush=True)


def main() -> None:
    """Check, measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with MNIST and FashionMNIST")
    parser.add_argument("--peers", type=Path, default=FOLDER, help="folder of the environments")
    parser.add_argument("--only", nargs="+", choices=[*WORKLOADS], default=[*WORKLOADS])
    parser.add_argument("--contestants", nargs="+", default=[*ALL], help="parts of their names")
    parser.add_argument("--steps", nargs="+", choices=["check", "measure", "table"], default=["check", "measure"])
    parser.add_argument("--check-rounds", type=int, default=2, help="rounds before weights are compared")
    parser.add_argument("--rounds", type=int, help="steady rounds of each contestant")
    parser.add_argument("--turns", type=int, default=3, help="how often all contestants run, one after the other")
    parser.add_argument("--results", type=Path, help="file of the measurements; results.jsonl beside the environments")
    parser.add_argument("--append", action="store_true", help="keep the measurements that are there")
    parser.add_argument("--markdown", type=Path, help="file for the tables, which are printed, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # of this process, which only makes the files
    chosen = [c for c in ALL if any(part in c for part in arguments.contestants)]
    results = arguments.results or arguments.peers / "results.jsonl"
    if "measure" in arguments.steps and not arguments.append:
        results.write_text("")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            contest = Contest(name, arguments.data, arguments.peers, Path(folder) / f"{name}.npz")
            if "check" in arguments.steps:
                contest.check(chosen, arguments.check_rounds)
            if "measure" in arguments.steps:
                rounds = 1 + (arguments.rounds or WORKLOADS[name].rounds)
                contest.measure(chosen, rounds, arguments.turns, results)
    if arguments.steps != ["check"]:
        text = table.markdown(table.read_records(results))
        print(text)
        if arguments.markdown:
            arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
