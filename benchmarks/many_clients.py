"""What many clients cost: partitioning, a round, and memory where clients have state.

python -m benchmarks.many_clients                 # a round by size of cohort and population
python -m benchmarks.many_clients --state         # 10 000 clients of SCAFFOLD, 1.6 million parameters, 500 touched
python -m benchmarks.many_clients --plot docs/img/scaling.png
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from flightning.algorithms import SCAFFOLD, FedAvg
from flightning.callbacks import Federation, LastCheckpoint
from flightning.datamodules import FederatedDataModule
from flightning.datamodules.partitioners import IID, Dirichlet
from flightning.nets import Net

COHORTS = (1, 10, 100, 1000)
POPULATIONS = (10, 100, 1_000, 10_000, 100_000)
BATCH = 8


class OneHidden(Net):
    """One hidden layer; 2000 units on 28 x 28 pixels are 1.6 million parameters with little work."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, hidden: int = 2000) -> None:
        super().__init__(input_shape, num_classes)
        pixels = math.prod(input_shape)
        self.fc1 = nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, num_classes)


class Clock(pl.Callback):
    """Seconds of every round, from its start to the start of the next."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A round begins."""
        now = time.perf_counter()
        self.seconds += [now - self._last] if self._last else []
        self._last = now


def peak() -> float:
    """Peak resident memory of this process in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def make_data(num_clients: int, partition: Any, side: int) -> FederatedDataModule:
    """One batch of square pictures per client, on average."""
    generator = torch.Generator().manual_seed(0)
    number = num_clients * BATCH
    images = torch.rand(number, 1, side, side, generator=generator)
    labels = torch.randint(0, 10, (number,), generator=generator)
    return FederatedDataModule.from_dataset(
        (images, labels), num_clients=num_clients, partition=partition, batch_size=BATCH, num_classes=10
    )


def fit(
    module: pl.LightningModule, data: FederatedDataModule, rounds: int, *callbacks: Any, **federation: Any
) -> Clock:
    """Train without evaluation."""
    clock = Clock()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=rounds,
        callbacks=[Federation(**federation), clock, *callbacks],
        logger=False,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(module, datamodule=data)
    return clock


def measure_state(in_memory: bool) -> dict[str, float]:
    """Ten rounds of fifty clients out of 10 000, with a checkpoint after each round."""
    data = make_data(10_000, IID(), side=28)
    module = SCAFFOLD(net=OneHidden, input_shape=(1, 28, 28), num_classes=10)
    before = peak()
    with tempfile.TemporaryDirectory() as folder:
        options = {} if in_memory else {"state_dir": str(Path(folder) / "states")}
        clock = fit(module, data, 11, LastCheckpoint(folder), participation=50, local_loop="fused", **options)
        return {
            "parameters": sum(p.numel() for p in module.parameters()),
            "clients with state": len(module.client_states),
            "peak GiB before": before,
            "peak GiB": peak(),
            "states on disk GiB": sum(f.stat().st_size for f in Path(folder).rglob("*.state")) / 2**30,
            "checkpoint MiB": (Path(folder) / "last.ckpt").stat().st_size / 2**20,
            "seconds per round": statistics.median(clock.seconds),
        }


def measure_round(population: int, cohort: int, rule: str = "IID") -> dict[str, float]:
    """Set-up and a steady round, one step of a small model for each client."""
    data = make_data(population, {"IID": IID(), "Dirichlet": Dirichlet(alpha=1.0, min_size=0)}[rule], side=8)
    start = time.perf_counter()
    data.setup("fit")
    setup = time.perf_counter() - start
    module = FedAvg(net=partial(OneHidden, hidden=16), input_shape=(1, 8, 8), num_classes=10)
    clock = fit(module, data, 7, participation=cohort, local_steps=1, local_loop="fused")
    return {"setup s": setup, "round s": statistics.median(clock.seconds[1:]), "peak GiB": peak()}


def in_process(*arguments: object) -> dict[str, float]:
    """Measure in a process of its own, so that peaks do not mix."""
    command = [sys.executable, "-m", "benchmarks.many_clients", "--only", *map(str, arguments)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def show(name: str, figures: dict[str, float]) -> None:
    """Print one line."""
    print(f"{name:40s}" + "  ".join(f"{key} {value:.4g}" for key, value in figures.items()), flush=True)


def measure_all() -> list[dict[str, float]]:
    """Every cohort in the largest population, and one cohort in every population."""
    cases = [(POPULATIONS[-1], c) for c in COHORTS] + [(p, min(p, 10)) for p in POPULATIONS[:-1]]
    results = []
    for population, cohort in cases:
        figures = in_process("round", population, cohort)
        show(f"{population} clients, {cohort} per round", figures)
        results.append({"population": population, "cohort": cohort, **figures})
    return results


def plot(results: list[dict[str, float]], path: Path) -> None:
    """Seconds per round over cohort and population, and memory over population."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    over_cohort, over_population, memory = figure.subplots(1, 3)
    largest = sorted((r for r in results if r["population"] == POPULATIONS[-1]), key=lambda r: r["cohort"])
    ten = sorted((r for r in results if r["cohort"] == 10), key=lambda r: r["population"])
    over_cohort.loglog([r["cohort"] for r in largest], [r["round s"] for r in largest], "o-")
    over_cohort.set(title="100 000 clients", xlabel="clients per round", ylabel="seconds per round")
    over_population.loglog([r["population"] for r in ten], [r["round s"] for r in ten], "o-")
    over_population.set(title="10 clients per round", xlabel="clients", ylabel="seconds per round")
    over_population.set_ylim(over_cohort.get_ylim())
    memory.semilogx([r["population"] for r in ten], [r["peak GiB"] for r in ten], "o-")
    samples = [r["population"] * BATCH * 65 * 4 / 2**30 for r in ten]
    memory.semilogx([r["population"] for r in ten], samples, "--", color="grey", label="of which samples")
    memory.set(title="Memory", xlabel="clients", ylabel="peak GiB of the process", ylim=(0, None))
    memory.legend(frameon=False)
    for axes in (over_cohort, over_population, memory):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", action="store_true", help="client state on disk and in memory")
    parser.add_argument("--plot", type=Path, help="draw seconds and memory into this file")
    parser.add_argument("--only", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if arguments.only:
        what, *rest = arguments.only
        figures = (
            measure_state(rest[0] == "memory") if what == "state" else measure_round(*map(int, rest[:2]), *rest[2:])
        )
        print(json.dumps(figures))
    elif arguments.state:
        for where in ("disk", "memory"):
            show(f"10 000 clients of SCAFFOLD, {where}", in_process("state", where))
    else:
        show("100000 clients, Dirichlet(1)", in_process("round", POPULATIONS[-1], 10, "Dirichlet"))
        results = measure_all()
        if arguments.plot:
            plot(results, arguments.plot)


if __name__ == "__main__":
    main()
