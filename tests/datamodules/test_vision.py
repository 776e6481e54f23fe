"""Picture sets, on small files that are written in torchvision's own formats."""

import pickle
import struct

import numpy as np
import pytest
import torch

from flightning.datamodules import CIFAR10, CIFAR100, EMNIST, MNIST, FashionMNIST, HorizontalFlip, PadCrop
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
    assert CIFAR100().num_classes == 100


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
