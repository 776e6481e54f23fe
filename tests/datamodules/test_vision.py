"""Picture sets, on small files that are written in torchvision's own formats."""

import pickle
import struct

import numpy as np
import pytest
import torch

from flightning.datamodules import (
    CIFAR10,
    CIFAR100,
    EMNIST,
    MNIST,
    FashionMNIST,
    HorizontalFlip,
    PadCrop,
    RandomRotation,
)
from flightning.errors import ConfigurationError, DataNotFoundError

RNG = np.random.default_rng(0)


def pictures_of(source):
    """All samples as a model gets them."""
    return next(iter(source.batches([np.arange(len(source))])))[0]


def write_idx(folder, prefix, labels):
    pictures = RNG.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in ((f"{prefix}-images-idx3-ubyte", pictures), (f"{prefix}-labels-idx1-ubyte", labels)):
        data = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()
        (folder / name).write_bytes(data)
    return pictures


def write_mnist(root, name="MNIST"):
    labels = np.arange(40, dtype=np.uint8) % 10
    pictures = write_idx(root / name / "raw", "train", labels)
    write_idx(root / name / "raw", "t10k", labels[:20])
    return pictures, labels


@pytest.mark.parametrize("cls", [MNIST, FashionMNIST])
def test_idx_files_become_normalised_tensors(cls, tmp_path):
    pictures, labels = write_mnist(tmp_path, cls.__name__)
    data = cls(root=str(tmp_path), download=False, num_clients=2)
    data.setup("fit")
    expected = (torch.tensor(pictures[:, None]) / 255 - cls.mean[0]) / cls.std[0]
    torch.testing.assert_close(pictures_of(data.train_source), expected)
    assert data.train_source.labels.tolist() == labels.tolist()
    assert len(data.test_source) == 20


def test_without_normalisation_pixels_lie_between_0_and_1(tmp_path):
    pictures, _ = write_mnist(tmp_path)
    data = MNIST(root=str(tmp_path), download=False, normalize=False, num_clients=2)
    data.setup("fit")
    torch.testing.assert_close(pictures_of(data.train_source), torch.tensor(pictures[:, None]) / 255)


def test_emnist_letters_count_from_zero(tmp_path):
    labels = np.arange(1, 27, dtype=np.uint8)  # torchvision counts the letters from 1
    for split in ("train", "test"):
        write_idx(tmp_path / "EMNIST" / "raw", f"emnist-letters-{split}", labels)
    data = EMNIST(root=str(tmp_path), download=False, num_clients=2, partition=None)
    assert (data.num_classes, data.open(True).targets.min()) == (26, 1)
    assert data.targets(data.open(True)).tolist() == list(range(26))


def test_emnist_split_is_checked():
    with pytest.raises(ConfigurationError, match=r"`split='leters'` is no split of EMNIST. Did you mean `letters`"):
        EMNIST(split="leters")


def write_cifar10(root, monkeypatch):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    labels = (np.arange(20) % 10).tolist()
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        content = {"data": RNG.integers(0, 256, (20, 3072), dtype=np.uint8), "labels": labels}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(CIFAR10.class_names)}))
    from torchvision import datasets

    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *args: True)
    return pickle.loads((folder / "data_batch_1").read_bytes())["data"]


def test_cifar_channels_come_first(tmp_path, monkeypatch):
    raw = write_cifar10(tmp_path, monkeypatch)
    data = CIFAR10(root=str(tmp_path), download=False, num_clients=2)
    data.setup("fit")
    assert pictures_of(data.train_source).shape == (100, 3, 32, 32)
    first = torch.tensor(raw[0].reshape(3, 32, 32)) / 255
    expected = (first - torch.tensor(CIFAR10.mean)[:, None, None]) / torch.tensor(CIFAR10.std)[:, None, None]
    torch.testing.assert_close(pictures_of(data.train_source)[0], expected)


def test_cifar_is_augmented_unless_told_otherwise():
    assert [type(t) for t in CIFAR10().augment] == [PadCrop, HorizontalFlip]
    assert CIFAR10(augment=[]).augment == []
    assert CIFAR100(augment=[]).augment == []


@pytest.mark.parametrize("normalize", [True, False])
def test_cifar100_has_the_transforms_of_moon_with_black_borders(normalize):
    data = CIFAR100(normalize=normalize)
    crop, flip, turn = data.augment
    assert [type(t) for t in (crop, flip, turn)] == [PadCrop, HorizontalFlip, RandomRotation]
    assert (crop.padding, crop.mode, turn.degrees, data.num_classes) == (4, "constant", 15, 100)
    black = torch.zeros(1, 3, 1, 1, dtype=torch.uint8)
    expected = data._source(black, torch.zeros(1, dtype=torch.long)).gather(np.array([0]))[0].flatten()
    for fill in (crop.fill, turn.fill):
        torch.testing.assert_close(torch.as_tensor(fill).expand(3), expected)


def test_missing_files_name_both_remedies(tmp_path):
    with pytest.raises(
        DataNotFoundError, match=r"`MNIST` cannot be read from `root=.*Put the files there .* and run once with network"
    ):
        MNIST(root=str(tmp_path), download=False).setup("fit")


def test_offline_names_both_remedies(tmp_path, monkeypatch):
    import urllib.error

    def refuse(*args, **kwargs):
        raise urllib.error.URLError("Temporary failure in name resolution")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", refuse)
    with pytest.raises(
        DataNotFoundError,
        match=r"name resolution.*Put the files there .* run once with network access and `download: true`",
    ):
        MNIST(root=str(tmp_path)).prepare_data()


def test_a_file_that_was_cut_off_is_reported_as_such(tmp_path):
    write_mnist(tmp_path)
    pictures = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    pictures.write_bytes(pictures.read_bytes()[:1000])
    with pytest.raises(DataNotFoundError, match=r"`MNIST` cannot be read .* or delete what is damaged"):
        MNIST(root=str(tmp_path), download=False).setup("fit")


@pytest.fixture
def tables(monkeypatch, tmp_path):
    """Write both splits of a set as the Hub keeps them; converted samples are kept below the test's folder."""
    datasets = pytest.importorskip("datasets", reason="package datasets missing")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def write(folder, shape=(32, 32, 3), classes=10, column="label"):
        folder.mkdir(parents=True)
        pictures = RNG.integers(0, 256, (30, *shape), dtype=np.uint8)
        features = {"img": datasets.Image(), column: datasets.ClassLabel(num_classes=classes)}
        for split, size in (("train", 30), ("test", 10)):
            rows = {"img": list(pictures[:size]), column: [i % 10 for i in range(size)]}
            table = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
            table.to_parquet(folder / f"{split}-00000-of-00001.parquet")
        return pictures

    return write


@pytest.mark.parametrize(
    ("cls", "folder", "shape", "column"),
    [
        (CIFAR10, "cifar10/plain_text", (32, 32, 3), "label"),
        (CIFAR100, "cifar100", (32, 32, 3), "fine_label"),
        (FashionMNIST, "fashion_mnist", (28, 28), "label"),
    ],
)
def test_parquet_files_stand_in_for_those_of_torchvision_and_are_named(cls, folder, shape, column, tmp_path, tables):
    pictures = tables(tmp_path / folder, shape, cls.num_classes, column)
    data = cls(root=str(tmp_path), num_clients=2)
    data.prepare_data()
    data.setup("fit")
    expected = torch.tensor(pictures[:, None] if len(shape) == 2 else pictures.transpose(0, 3, 1, 2)) / 255
    for channel, (mean, std) in enumerate(zip(cls.mean, cls.std, strict=True)):
        expected[:, channel] = (expected[:, channel] - mean) / std
    torch.testing.assert_close(pictures_of(data.train_source), expected)
    assert data.train_source.labels.tolist() == [i % 10 for i in range(30)]
    place = tmp_path / folder.partition("/")[0]
    assert data.origin == (
        f"{cls.__name__} is read from parquet files in {place}: 30 samples for training, 10 for testing."
    )


def test_parquet_files_are_passed_over_where_torchvision_has_its_own(tmp_path, monkeypatch, tables):
    tables(tmp_path / "cifar10")
    write_cifar10(tmp_path, monkeypatch)
    data = CIFAR10(root=str(tmp_path), download=False, num_clients=2)
    data.setup("fit")
    assert (len(data.train_source), data.origin) == (100, "")


def test_parquet_files_of_another_set_are_refused(tmp_path, tables):
    tables(tmp_path / "cifar10", (28, 28))
    with pytest.raises(
        ConfigurationError, match=r"are no CIFAR10: `input_shape` is \(1, 28, 28\) in place of \(3, 32, 32\)"
    ):
        CIFAR10(root=str(tmp_path)).setup("fit")


def test_a_missing_set_names_the_folder_of_parquet_files(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"or as parquet files into its folder `cifar10`, or delete"):
        CIFAR10(root=str(tmp_path), download=False).setup("fit")
