"""What methods cost over FedAvg: rounds of all of them in turn, in one run, as ratios.

python -m benchmarks.algorithms                                   # the methods of the table in docs/performance.md
python -m benchmarks.algorithms --methods MOON VHL --net SimpleCNN
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from typing import Any

import lightning.pytorch as pl
import torch

import flightning.algorithms
from benchmarks.handwritten import make_clients
from flightning.callbacks import Federation
from flightning.datamodules import FederatedDataModule
from flightning.nets import McMahanCNN, Net, SimpleCNN

BATCH, LR, MOMENTUM = 32, 0.01, 0.9


def moon_cnn(input_shape: tuple[int, ...], num_classes: int) -> Net:
    """The net of the FedCD paper."""
    return SimpleCNN(input_shape, num_classes, projection=256)


NETS: dict[str, tuple[Any, tuple[int, int, int]]] = {
    "McMahanCNN": (McMahanCNN, (1, 28, 28)),
    "SimpleCNN": (SimpleCNN, (3, 32, 32)),
    "SimpleCNN-projection": (moon_cnn, (3, 32, 32)),
}
TABLE = [("McMahanCNN", ["FedProx", "SCAFFOLD", "FedRL", "FedCD"]), ("SimpleCNN-projection", ["FedCD"])]


class Clock(pl.Callback):
    """Seconds of each round, from the plan to the new global weights."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start."""
        self._began = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop."""
        self.seconds.append(time.perf_counter() - self._began)


class Run:
    """One method, trained round by round.

    Args:
        method: Name of its class.
        net: Name of the network.
        clients: Number of clients.
        steps: Local steps of each.
        loop: The local loop.
    """

    def __init__(self, method: str, net: str, clients: int, steps: int, loop: Any) -> None:
        build, shape = NETS[net]
        cls = getattr(flightning.algorithms, method)
        torch.manual_seed(0)
        self.module = cls(net=build, input_shape=shape, num_classes=10)
        self.module.configure_optimizers = lambda: torch.optim.SGD(self.module.parameters(), lr=LR, momentum=MOMENTUM)
        self.data = FederatedDataModule.from_clients(make_clients(clients, steps * BATCH, shape), batch_size=BATCH)
        self.clock = Clock()
        self.trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=0,
            # the clock comes first: it stops before anything is logged, and starts with the plan
            callbacks=[self.clock, Federation(local_loop=loop)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )

    def round(self) -> float:
        """Train one more round and return its seconds."""
        self.trainer.fit_loop.max_epochs = self.trainer.current_epoch + 1
        self.trainer.fit(self.module, datamodule=self.data)
        return self.clock.seconds[-1]


def measure(net: str, methods: list[str], rounds: int, **options: Any) -> None:
    """Print seconds of FedAvg and the ratios of the others, from rounds in turn."""
    runs = {method: Run(method, net, **options) for method in ["FedAvg", *methods]}
    for run in runs.values():
        run.round()  # warms up
    seconds: dict[str, list[float]] = {method: [] for method in runs}
    for _ in range(rounds):
        for method, run in runs.items():
            seconds[method].append(run.round())
    base = seconds.pop("FedAvg")
    print(f"{net}: FedAvg {statistics.median(base):.2f} s per round", flush=True)
    for method, own in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(own, base, strict=True))
        print(f"  {method}: {statistics.median(own):.2f} s, {ratio:.2f} x FedAvg", flush=True)


def main() -> None:
    """Measure the table, or what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--net", default="McMahanCNN", choices=NETS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--steps", type=int, default=26)
    parser.add_argument("--loop", default="lightning", choices=["lightning", "fused"])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for net, methods in [(options.net, options.methods)] if options.methods else TABLE:
        measure(net, methods, options.rounds, clients=options.clients, steps=options.steps, loop=options.loop)


if __name__ == "__main__":
    main()
