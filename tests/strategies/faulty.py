"""A run that waits inside a round until somebody ends it.

python -m tests.strategies.faulty FOLDER '{"strategy": "client_parallel", "devices": 2, "pause": 2}'
"""

import json
import logging
import os
import socket
import sys
import time
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback

from flightning.callbacks import LastCheckpoint
from flightning.strategies import heartbeat
from tests import algorithms_on_digits as digits

ROUNDS = 4


class Pause(Callback):
    """In one round, after the first local step, say so; these ranks wait: for a signal, or for ever."""

    def __init__(self, folder, round_index, ranks):
        self.folder, self.round_index, self.ranks = Path(folder), round_index, ranks

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch == self.round_index and batch_idx == 0:
            self.pause(trainer)

    def pause(self, trainer):
        ready = self.folder / f"ready-{trainer.global_rank}"
        ready.with_suffix(".tmp").write_text(str(os.getpid()))
        ready.with_suffix(".tmp").rename(ready)
        while trainer.global_rank in self.ranks and not trainer.received_sigterm:
            time.sleep(0.02)


class PauseInside(Pause):
    """The same inside of the first local step, when a whole client is one item of the stream."""

    def on_after_backward(self, trainer, pl_module):
        if trainer.current_epoch == self.round_index and pl_module.client.steps == 0:
            self.pause(trainer)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pass


class Fail(Callback):
    """Raise in one process, after the first local step of the third round."""

    def __init__(self, rank):
        self.rank = rank

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch == 2 and trainer.global_rank == self.rank:
            raise ZeroDivisionError("a fault of this process alone")


def far_apart():
    """Let every process believe that it is alone on its machine, and a lost one be missed soon."""
    host = f"node{os.environ.get('LOCAL_RANK', '0')}"
    socket.gethostname = lambda: host
    heartbeat.BEAT, heartbeat.STALE = 0.5, 5.0


def main(
    folder,
    pause=None,
    waiting=(0, 1),
    inside=False,
    apart=False,
    fails=None,
    name="SCAFFOLD",
    federation=None,
    resume=False,
    **options,
):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    folder = Path(folder)
    if apart:
        far_apart()
    faults = [] if pause is None else [(PauseInside if inside else Pause)(folder, pause, waiting)]
    faults += [] if fails is None else [Fail(fails)]
    module, _ = digits.run(
        name,
        ROUNDS,
        federation={"state_dir": str(folder / "states"), **(federation or {})},
        callbacks=[LastCheckpoint(folder), *faults],
        ckpt_path=str(folder / "last.ckpt") if resume else None,
        enable_checkpointing=True,
        **options,
    )
    states = {c: module.client_states.load(c, torch.device("cpu")) for c in module.client_states}
    rank = os.environ.get("LOCAL_RANK", "0")
    torch.save({"weights": module.state_dict(), "clients": states}, folder / f"final-{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2]))
