"""What `flightning compare` costs: against the same runs started one by one, and with several runs at once.

python -m benchmarks.compare                      # the quickstart grid: 5 methods x 3 seeds
python -m benchmarks.compare --part cost --seeds 0
python -m benchmarks.compare --part jobs --rounds 8
python -m benchmarks.compare --part report        # the report of 60 runs x 200 rounds
python -m benchmarks.compare --part drift         # a round with and without the callback
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS = ["FedAvg", "FedProx", "SCAFFOLD", "FedRL", "SOLO"]
CHOICES = ("cost", "jobs", "report", "drift")


def seconds(command: list[str], threads: int) -> float:
    """Time of a command that must succeed."""
    began = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run([sys.executable, "-m", "flightning", *command], check=True, env=environment, capture_output=True)
    return time.perf_counter() - began


class Grid:
    """The runs that are measured.

    Args:
        options: Options of the command line.
        folder: Where the runs are written.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.models, self.seeds, self.threads, self.folder = options.models, options.seeds, options.threads, folder
        self.rounds = [f"--trainer.max_epochs={options.rounds}"] if options.rounds else []
        self.name = f"{len(self.models)} methods x {len(self.seeds)} seeds"

    def one_by_one(self) -> float:
        """Time of all runs, each started by hand after the other."""
        place = self.folder / "alone"
        return sum(
            seconds(
                [
                    "fit",
                    "--config=quickstart",
                    f"--model={m}",
                    f"--seed_everything={s}",
                    f"--run_folder={place / m / s}",
                    *self.rounds,
                ],
                self.threads,
            )
            for s in self.seeds
            for m in self.models
        )

    def compared(self, jobs: int) -> float:
        """Time of the comparison with its report."""
        grid = ["--config=quickstart", "--models", *self.models, "--seeds", *self.seeds, *self.rounds]
        return seconds(["compare", *grid, f"--out={self.folder / f'jobs-{jobs}'}", f"--jobs={jobs}"], self.threads)


def cost(grid: Grid) -> None:
    """Compare with runs that are started by hand."""
    alone = grid.one_by_one()
    print(f"{grid.name}, one by one: {alone:.1f} s", flush=True)
    compared = grid.compared(1)
    print(f"compare --jobs 1: {compared:.1f} s, {compared / alone:.3f} of that", flush=True)


def jobs(grid: Grid, at_once: int) -> None:
    """Compare runs one after the other with several at once."""
    sequential = grid.compared(1)
    print(f"{grid.name}, --jobs 1: {sequential:.1f} s", flush=True)
    parallel = grid.compared(at_once)
    print(f"--jobs {at_once}: {parallel:.1f} s, {parallel / sequential:.3f} of --jobs 1", flush=True)


def report(folder: Path) -> None:
    """Time and size of the report of 60 runs of 200 rounds."""
    from tests.report.synthetic import write_grid

    real = folder / "real"
    seconds(["fit", "--config=quickstart", f"--run_folder={real}", "--trainer.max_epochs=1"], 1)
    config = (real / "config.yaml").read_text()
    for run in write_grid(folder / "runs", [f"Method{i}" for i in range(20)], seeds=3, rounds=200).iterdir():
        model, _, seed = run.name.partition("-")
        text = config.replace(".FedAvg", f".{model}").replace("seed_everything: 0", f"seed_everything: {seed}")
        (run / "config.yaml").write_text(text)
        shutil.copy(real / "partition.png", run)
    taken = seconds(["report", str(folder / "runs"), f"--out={folder / 'report'}"], 1)
    size = (folder / "report" / "report.html").stat().st_size
    print(f"report of 60 runs x 200 rounds: {taken:.1f} s, page of {size / 1e6:.2f} MB", flush=True)


def drift(folder: Path, threads: int) -> None:
    """Seconds of a round with and without the callback, in turns."""
    found: dict[str, list[float]] = {"without": [], "with": []}
    for turn in range(3):
        for name in found:
            run = folder / f"{name}-{turn}"
            more = ["--trainer.callbacks+=Drift"] if name == "with" else []
            seconds(["fit", "--config=quickstart", f"--run_folder={run}", "--trainer.max_epochs=10", *more], threads)
            found[name].append(json.loads((run / "summary.json").read_text())["seconds"] / 10)
    least = {name: min(values) for name, values in found.items()}
    print(f"a round without `Drift`: {least['without']:.4f} s (least of 3 runs)")
    print(f"a round with it: {least['with']:.4f} s, {least['with'] / least['without']:.3f} of that", flush=True)
    spread = statistics.pstdev(found["without"]) / least["without"]
    print(f"deviation between runs without it: {spread:.3f}", flush=True)


def main() -> None:
    """Print the times and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2"])
    parser.add_argument("--rounds", type=int, help="rounds of a run in place of the 20 of the quickstart")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of a run, the same in all measurements")
    options = parser.parse_args()
    for part in options.part:
        with tempfile.TemporaryDirectory() as name:
            if part == "cost":
                cost(Grid(options, Path(name)))
            elif part == "jobs":
                jobs(Grid(options, Path(name)), options.jobs)
            elif part == "report":
                report(Path(name))
            else:
                drift(Path(name), options.threads)


if __name__ == "__main__":
    main()
