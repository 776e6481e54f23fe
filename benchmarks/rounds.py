"""What a round costs over a hand-written loop: the same local steps, interleaved in one run, as a ratio.

python -m benchmarks.rounds                       # time, small and McMahan CNN
python -m benchmarks.rounds --memory              # peak memory with 10 and 1000 clients
"""

from __future__ import annotations

import argparse
import logging
import resource
import statistics
import subprocess
import sys
import time
import warnings
from typing import Any

import lightning.pytorch as pl
import torch

from benchmarks.handwritten import federated_round, make_clients
from flightning.algorithms import FedAvg
from flightning.callbacks import Federation
from flightning.datamodules import FederatedDataModule
from flightning.datamodules.in_memory import InMemoryData
from flightning.nets import McMahanCNN, SimpleCNN, SmallCNN

NETS = {"SimpleCNN": SimpleCNN, "SmallCNN": SmallCNN, "McMahanCNN": McMahanCNN}
SHAPE, BATCH, LR, MOMENTUM = (1, 28, 28), 32, 0.01, 0.9


class Interleave(pl.Callback):
    """After every round of flightning, time one round of the hand-written loop."""

    def __init__(self, net: torch.nn.Module, clients: list[Any]) -> None:
        self.net, self.clients = net, clients
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.bookkeeping: list[float] = []
        self._last = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin with the first round."""
        self._last = self._last or time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop our clock, run theirs, start ours again."""
        self.ours.append(time.perf_counter() - self._last)
        record = next(c.record for c in trainer.callbacks if isinstance(c, Federation))
        self.bookkeeping.append(record.seconds.get("aggregation", 0.0))
        start = time.perf_counter()
        federated_round(self.net, self.clients, BATCH, LR, MOMENTUM)
        self.theirs.append(time.perf_counter() - start)
        self._last = time.perf_counter()


def make_trainer(rounds: int, *callbacks: pl.Callback, **federation: Any) -> pl.Trainer:
    """A Trainer that does nothing but train."""
    return pl.Trainer(
        accelerator="cpu",
        max_epochs=rounds,
        callbacks=[Federation(**federation), *callbacks],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )


class PlainSGD(FedAvg):
    """FedAvg with the optimizer of the hand-written loop."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=LR, momentum=MOMENTUM)


def measure_time(net: str, rounds: int, **federation: Any) -> dict[str, float]:
    """Median seconds per round of both, and their ratio."""
    clients = make_clients(10, 26 * BATCH, SHAPE)
    data = FederatedDataModule.from_clients(clients, batch_size=BATCH)
    module = PlainSGD(net=NETS[net], input_shape=SHAPE, num_classes=10)
    interleave = Interleave(NETS[net](SHAPE, 10), clients)
    make_trainer(rounds + 2, interleave, **federation).fit(module, datamodule=data)
    ours, theirs = interleave.ours[2:], interleave.theirs[2:]  # the first rounds warm up
    return {
        "hand-written s": statistics.median(theirs),
        "flightning s": statistics.median(ours),
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "bookkeeping %": 100 * statistics.median(interleave.bookkeeping[2:]) / statistics.median(ours),
    }


def measure_memory(which: str, num_clients: int) -> int:
    """Peak resident kilobytes of this process after two rounds over the same tensors."""
    [(inputs, targets)] = make_clients(1, 32_000, SHAPE)
    parts = list(torch.arange(len(targets)).split(len(targets) // num_clients))
    if which == "hand-written":
        net = McMahanCNN(SHAPE, 10)
        clients = [(inputs[part[0] : part[-1] + 1], targets[part[0] : part[-1] + 1]) for part in parts]
        for _ in range(2):
            federated_round(net, clients, BATCH, LR, MOMENTUM)
    else:
        module = PlainSGD(net=McMahanCNN, input_shape=SHAPE, num_classes=10)
        data = InMemoryData((inputs, targets), parts=[part.numpy() for part in parts], batch_size=BATCH)
        make_trainer(2).fit(module, datamodule=data)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def report_memory(threads: int) -> None:
    """Run each case in a process of its own and print the difference in model sizes."""
    size = sum(p.numel() * p.element_size() for p in McMahanCNN(SHAPE, 10).parameters())
    options = ["--threads", str(threads)]
    for num_clients in (10, 1000):
        peaks = {
            which: int(
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.rounds", *options, "--memory-of", which, str(num_clients)],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout.split()[-1]
            )
            for which in ("hand-written", "flightning")
        }
        extra = (peaks["flightning"] - peaks["hand-written"]) * 1024 / size
        megabytes = ", ".join(f"{which} {kilobytes / 1024:.0f} MB" for which, kilobytes in peaks.items())
        print(
            f"{num_clients:5d} clients: {megabytes}, {extra:+.1f} model sizes above the hand-written loop", flush=True
        )


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=[*NETS], nargs="+", default=["SimpleCNN", "SmallCNN", "McMahanCNN"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--local-loop", default=None, help="`lightning` or `fused`")
    parser.add_argument("--memory", action="store_true", help="measure memory in place of time")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        print(measure_memory(arguments.memory_of[0], int(arguments.memory_of[1])))
    elif arguments.memory:
        report_memory(arguments.threads)
    else:
        federation = {} if arguments.local_loop is None else {"local_loop": arguments.local_loop}
        print(f"{arguments.threads} threads, 10 clients x 26 steps of batch {BATCH}")
        for net in arguments.net:
            figures = measure_time(net, arguments.rounds, **federation)
            print(f"{net:12s}" + "  ".join(f"{name} {value:.3f}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
