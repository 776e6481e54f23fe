"""What evaluation per client costs: 500 clients of 20 test samples against one pass over all of them together.

python -m benchmarks.evaluation
python -m benchmarks.evaluation --clients 500 --samples 20 --repetitions 5
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from flightning.algorithms import SOLO, FedAvg, FedBN
from flightning.callbacks import ClientEvaluation, Federation
from flightning.datamodules import IID, FederatedDataModule
from flightning.nets import SimpleCNN

SHAPE, CLASSES = (1, 28, 28), 10

#: Whose weights are evaluated.
ALGORITHMS = {"global weights": FedAvg, "own BatchNorm layers (FedBN)": FedBN, "own weights (SOLO)": SOLO}


def make_data(clients: int, samples: int) -> FederatedDataModule:
    """Random pictures, as many for training as for testing."""
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(clients * samples, *SHAPE, generator=generator), torch.arange(clients * samples) % CLASSES)
        for _ in ("train", "test")
    ]
    return FederatedDataModule.from_dataset(*pairs, num_clients=clients, partition=IID(stratified=True))


def seconds_of(call, repetitions: int) -> float:
    """Median processor time of a call, in seconds."""
    call()
    times = []
    for _ in range(repetitions):
        began = time.process_time()  # of this process alone, whatever else the machine does
        call()
        times.append(time.process_time() - began)
    return statistics.median(times)


def one_pass(trainer: pl.Trainer, module: pl.LightningModule, data: FederatedDataModule) -> None:
    """The plain way: batches of all test samples in a row, right answers counted."""
    hits, order = torch.zeros(()), np.arange(len(data.test_source))
    batches = [order[i : i + data.eval_batch_size] for i in range(0, len(order), data.eval_batch_size)]
    module.eval()
    with torch.no_grad():
        for inputs, targets in data.test_source.batches(batches):
            hits += (module(inputs).argmax(dim=-1) == targets).sum()


def measure(algorithm: type[Any], clients: int, samples: int, repetitions: int) -> tuple[float, float]:
    """Seconds of one pass over the union and of the evaluation per client."""
    torch.manual_seed(0)
    data, callback = make_data(clients, samples), ClientEvaluation()
    net = functools.partial(SimpleCNN, batch_norm=algorithm is FedBN)
    module = algorithm(net=net, input_shape=SHAPE, num_classes=CLASSES)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder, limit_val_batches=0,
            callbacks=[Federation(local_steps=1), callback],
        )  # fmt: skip
        measured: dict[str, float] = {}

        class Measure(pl.Callback):
            """Measure inside the fit, where the callback has all it needs."""

            def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
                pl_module.log_dict = lambda *args, **kwargs: None  # type: ignore[method-assign]
                measured["union"] = seconds_of(lambda: one_pass(trainer, pl_module, data), repetitions)
                measured["clients"] = seconds_of(lambda: callback._evaluate(trainer, pl_module), repetitions)

        trainer.callbacks.append(Measure())
        trainer.fit(module, datamodule=data)
    return measured["union"], measured["clients"]


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{arguments.clients} clients of {arguments.samples} test samples, SimpleCNN on 28 x 28 pixels")
    for what, algorithm in ALGORITHMS.items():
        union, clients = measure(algorithm, arguments.clients, arguments.samples, arguments.repetitions)
        print(f"{what:34s} one pass {union:.3f} s, per client {clients:.3f} s, ratio {clients / union:.2f}", flush=True)


if __name__ == "__main__":
    main()
