"""Real data sets through the Hugging Face module: folders of parquet files below `$FLIGHTNING_DATA`.

The folders are `cifar10` (img, label), `cifar100_small` (img, fine_label, coarse_label), `mnist_writers` (image, label,
writer_id) and `shakespeare` (role, text): `FLIGHTNING_DATA=data pytest -m slow tests/datamodules/test_real_data.py`.
"""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from flightning.cli import main
from flightning.datamodules import Dirichlet, HuggingFace, Natural, NextCharacter

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.slow


def folder(name):
    """Place of a data set; the test is skipped where it is not there."""
    root = os.environ.get("FLIGHTNING_DATA")
    if root is None:
        pytest.skip(f"`FLIGHTNING_DATA` is not set: the folder that holds `{name}` with its parquet files")
    path = Path(root).resolve() / name
    if not path.is_dir():
        pytest.skip(f"there is no folder `{path}`")
    return str(path)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def test_cifar10(tmp_path, monkeypatch):
    path = folder("cifar10")
    data = HuggingFace(path, num_clients=10, partition=Dirichlet(alpha=0.5))
    data.prepare_data()
    data.setup("fit")
    assert (data.num_classes, data.input_shape, len(data.train_source), len(data.test_source)) == (
        10, (3, 32, 32), 50000, 10000,
    )  # fmt: skip
    assert data.class_names[:3] == ["airplane", "automobile", "bird"]
    assert np.bincount(data.train_source.labels).tolist() == [5000] * 10
    # the means of the training pictures that every CIFAR-10 recipe uses
    assert data.cached.meta["mean"] == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)

    monkeypatch.setattr(datasets, "load_dataset", None)  # the second start must not need it
    began = time.process_time()
    again = HuggingFace(path, num_clients=10, partition=Dirichlet(alpha=0.5))
    again.prepare_data()
    again.setup("fit")
    # time of this process: the machine may be busy
    assert time.process_time() - began < 2
    assert again.partition_hash == data.partition_hash
    assert torch.equal(again.train_source.inputs[:100], data.train_source.inputs[:100])


def test_half_a_cache_of_cifar10_is_made_again(tmp_path, capsys):
    path = folder("cifar10")
    data = HuggingFace(path, cache_dir=str(tmp_path / "arrays"))
    data.prepare_data()
    (pictures,) = (tmp_path / "arrays").glob("*/train_pictures.npy")
    whole = pictures.stat().st_size
    with pictures.open("r+b") as file:
        file.truncate(whole // 2)
    again = HuggingFace(path, cache_dir=str(tmp_path / "arrays"))
    again.setup("fit")
    assert pictures.stat().st_size == whole
    assert len(again.train_source) == 50000


@pytest.mark.parametrize(("column", "classes"), [("fine_label", 100), ("coarse_label", 20)])
def test_small_cifar100_by_either_label(column, classes):
    data = HuggingFace(folder("cifar100_small"), label_column=column, num_clients=20, partition=Dirichlet(alpha=0.5))
    data.setup("fit")
    assert (data.num_classes, data.input_shape, len(data.train_source)) == (classes, (3, 32, 32), 10000)
    assert data.sizes.sum() == 10000


def test_two_columns_of_labels_ask_for_one(capsys):
    path = folder("cifar100_small")
    assert main(["partition", "--data", "HuggingFace", "--data.path", path]) == 2
    printed = capsys.readouterr().err
    assert "2 columns fit (fine_label, coarse_label)" in printed
    assert "set it to one of `img`, `fine_label`, `coarse_label`" in printed


def test_mnist_by_writer():
    data = HuggingFace(
        folder("mnist_writers"), client_column="writer_id", partition=Natural(min_samples=20), client_test=0.2
    )
    data.setup("fit")
    assert (data.num_classes, data.input_shape) == (10, (1, 28, 28))
    writers = [np.unique(data.train_source.ids[part]) for part in data.parts]
    assert all(len(own) == 1 for own in writers)
    assert len({int(own[0]) for own in writers}) == data.num_clients > 100
    # a client had at least 20 samples, of which a fifth is for testing
    assert data.sizes.min() >= 16
    assert len(data.local_tests.parts) == data.num_clients


def test_shakespeare_by_role():
    data = NextCharacter(folder("shakespeare"), stride=5, partition=Natural(min_samples=64))
    data.setup("fit")
    assert data.num_clients > 500
    assert "HAMLET" in " ".join(data.client_names).upper()
    inputs, targets = next(data.train_source.batches([data.parts[0][:4]]))
    assert inputs.shape == (4, 80)
    assert targets.shape == (4,)


@pytest.mark.parametrize("clients", [10, 1000])
def test_partition_of_cifar10_is_shown(tmp_path, clients, capsys, monkeypatch):
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    arguments = ["--data", "HuggingFace", "--data.path", folder("cifar10"), "--data.num_clients", str(clients)]
    assert main(["partition", *arguments, "--out", str(tmp_path / "out")]) == 0
    assert "50000" in capsys.readouterr().out
    assert (tmp_path / "out" / "partition.png").stat().st_size < 300_000


@pytest.mark.parametrize(
    ("config", "name", "options"),
    [
        ("cifar10_huggingface", "cifar10", ["--data.num_clients", "500", "--federation.participation", "1"]),
        ("mnist_writers", "mnist_writers", ["--federation.participation", "2"]),
        ("shakespeare_charlstm", "shakespeare", ["--data.stride", "500", "--data.partition.min_samples", "5",
                                                 "--federation.participation", "2"]),
    ],
)  # fmt: skip
def test_packaged_configuration_trains(tmp_path, monkeypatch, config, name, options):
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    run = ["--config", config, "--data.path", folder(name), *options, "--federation.local_epochs", "1"]
    assert main(["fit", *run, "--trainer.max_epochs", "1", "--run_folder", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "summary.json").is_file()
