"""Whoever stops a run stops it after a whole round."""

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from flightning.algorithms import FedAvg
from flightning.callbacks import Federation
from tests.classification import RoundMemory, assert_same, make_data, make_module, run, weights_of
from tests.problems import fit


class StopInside(Callback):
    """Ask for the end inside the second round, at this batch."""

    def __init__(self, at=1):
        self.at = at

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch == 1 and batch_idx == self.at:
            trainer.should_stop = True


@pytest.mark.parametrize(("loop", "at"), [("lightning", 1), ("fused", 0)])
def test_a_stop_inside_a_round_waits_for_its_end(loop, at):
    memory, module = RoundMemory(), make_module(FedAvg)
    federation = Federation(local_epochs=2, local_loop=loop)
    fit(module, make_data(), 5, federation, callbacks=[StopInside(at)], logger=memory)
    assert sorted(memory.rounds) == [1, 2]
    assert memory.rounds[2]["round/clients"] == 3
    assert_same(module, run(FedAvg, 2)[0])


def test_max_time_ends_with_a_whole_round():
    memory, module = RoundMemory(), make_module(FedAvg)
    trainer = fit(module, make_data(), 100000, logger=memory, max_time={"seconds": 1})
    assert 1 <= trainer.current_epoch < 100000
    assert all(r["round/clients"] == 3 for r in memory.rounds.values())
    assert all(torch.equal(module.global_weights[n], w) for n, w in weights_of(module).items())


def test_the_checkpoint_of_a_stopped_run_can_be_resumed(tmp_path):
    saving = ModelCheckpoint(tmp_path, save_last=True)
    fit(
        make_module(FedAvg),
        make_data(),
        4,
        Federation(local_epochs=2),
        [StopInside(), saving],
        enable_checkpointing=True,
    )
    resumed, _ = run(FedAvg, 4, ckpt_path=str(tmp_path / "last.ckpt"), seed=9)
    assert_same(resumed, run(FedAvg, 4)[0])
