"""Run algorithms on the digits in this process, or in one of several; what they end with is saved per process.

python -m tests.strategies.worker FOLDER '[{"key": "a", "name": "FedAvg", "strategy": "client_parallel", "devices": 2}]'
"""

import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassConfusionMatrix

import flightning.callbacks
from flightning.algorithms import FedAvg
from flightning.callbacks import ExtraMetrics, LastCheckpoint
from tests import algorithms_on_digits as digits
from tests.classification import RoundMemory


class Talkative(FedAvg):
    """Logs numbers and a metric in its local steps, as users do."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.accuracy = MulticlassAccuracy(10, average="micro")
        self.auroc = MulticlassAUROC(10)  # it keeps all answers

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        answers = self(batch[0]).detach()
        self.accuracy(answers, batch[1])
        self.auroc.update(answers.softmax(1), batch[1])
        self.log("train/auroc", self.auroc, on_step=False, on_epoch=True)
        self.log("train/accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.log("train/loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("train/now", loss, sync_dist=True)
        self.log("train/largest", loss.detach().max(), on_step=False, on_epoch=True, reduce_fx="max")
        return loss


class Counting(FedAvg):
    """Sums up its evaluation by itself, as users do."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.confusion = MulticlassConfusionMatrix(10)

    def validation_step(self, batch, batch_idx):
        self.confusion.update(self.net(batch[0]), batch[1])
        self.log("val/batches", 1.0, reduce_fx="sum")
        return super().validation_step(batch, batch_idx)

    def on_validation_epoch_end(self):
        super().on_validation_epoch_end()
        self.log("val/samples", self.confusion.compute().sum().float())
        self.confusion.reset()


class Seen(MulticlassConfusionMatrix):
    """How many samples there were."""

    def compute(self):
        return super().compute().sum()


class Stop(Callback):
    """Asks one process alone to stop, in the first round."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if int(os.environ.get("LOCAL_RANK", "1")) == 1:
            trainer.should_stop = True


CALLBACKS = {"Seen": lambda: ExtraMetrics({"seen": Seen}), "Stop": Stop}


def make_data(tests=None, **kwargs):
    """The digits, with only so many for testing."""
    data = digits.make_digits(**kwargs)
    if tests is not None:
        (train, test) = data.load()
        data.load = lambda: (train, tuple(part[:tests] for part in test))
    return data


def result(name, net="DropoutNet", data=None, callbacks=(), saves=False, **options):
    """What a run ends with; callbacks are given by name, ``saves`` after every round."""
    name = {"Talkative": Talkative, "Counting": Counting}.get(name, name)
    listeners = [CALLBACKS.get(c, getattr(flightning.callbacks, c, None))() for c in callbacks]
    with tempfile.TemporaryDirectory() as folder:
        if saves:
            listeners, options["enable_checkpointing"] = [*listeners, LastCheckpoint(folder)], True
        options |= {"callbacks": listeners, "logger": RoundMemory()}
        module, trainer = digits.run(name, net=getattr(digits, net), data=make_data(**(data or {})), **options)
    logged = trainer.callback_metrics | trainer.logger.rounds[trainer.current_epoch]
    of_a_step = ("train/loss_step", "train/now")
    return {
        "global_step": trainer.global_step,
        "weights": {n: w.clone() for n, w in module.state_dict().items()},
        "server": module.server_state.values,
        "clients": module.client_states.state_dict(),
        "metrics": {k: float(v) for k, v in logged.items() if "seconds" not in k and k not in of_a_step},
    }


def main(folder, jobs):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    results = {job.pop("key"): result(**job) for job in jobs}
    torch.save(results, Path(folder) / f"{os.environ.get('LOCAL_RANK', '0')}.pt")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
