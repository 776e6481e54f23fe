import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from benchmarks.peers.export import make_task
from benchmarks.peers.task import Task
from benchmarks.plain import WORKLOADS, initial_weights
from benchmarks.workloads import make_module
from flightning.callbacks import Federation
from flightning.datamodules import FederatedDataModule
from flightning.datamodules.partitioners import Similarity


class Stop(Exception):
    pass


def data_of(num_clients=120):
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(size=(600, 1, 28, 28)).astype("float32"))
    labels = torch.from_numpy(rng.integers(10, size=600))
    samples = torch.utils.data.TensorDataset(inputs, labels)
    test = torch.utils.data.TensorDataset(inputs[:50], labels[:50])
    options = {"num_clients": num_clients, "partition": Similarity(1.0), "batch_size": 10, "seed": 0}
    data = FederatedDataModule.from_dataset(samples, test, **options)
    data.prepare_data()
    data.setup("fit")
    return data, inputs, labels


def test_clients_hold_the_samples_that_flightning_deals_them_in_its_order():
    data, inputs, labels = data_of()
    clients = make_task("C", data, 3).clients()
    assert len(clients) == 120
    for part, (x, y) in zip(data.parts, clients, strict=True):
        assert torch.equal(x, inputs[part])
        assert torch.equal(y, labels[part])


def test_cohorts_are_those_that_flightning_trains():
    data, *_ = data_of()
    federation = Federation(local_epochs=1, participation=WORKLOADS["C"].cohort, seed=0)
    task = make_task("C", data, 3)

    seen = []

    class Look(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            seen.extend(federation.plan(r).cohort for r in range(3))
            raise Stop

    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=3,
        callbacks=[federation, Look()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        limit_val_batches=0,
    )
    with pytest.raises(Stop):
        trainer.fit(make_module(WORKLOADS["C"]), datamodule=data)
    assert seen == [task.cohort(r) for r in range(3)]


def test_weights_and_test_set_are_those_of_the_project():
    data, inputs, labels = data_of()
    task = make_task("C", data, 1)
    assert torch.equal(task.initial, initial_weights(WORKLOADS["C"]))
    assert torch.equal(task.test[0], inputs[:50])
    assert torch.equal(task.test[1], labels[:50])


def test_a_task_comes_back_from_its_file(tmp_path):
    data, *_ = data_of()
    task = make_task("C", data, 2)
    task.save(tmp_path / "C.npz")
    back = Task.load(tmp_path / "C.npz")
    assert back.name == "C"
    assert back.work is WORKLOADS["C"]
    for field in ("inputs", "targets", "sizes", "cohorts", "weights", "test_inputs", "test_targets"):
        own, found = getattr(task, field), getattr(back, field)
        np.testing.assert_array_equal(own, found)
        assert own.dtype == found.dtype
