"""Picture sets of torchvision, held in memory as bytes and normalised batch by batch.

The same sets as the Hugging Face Hub keeps them, parquet files in a folder of their own, are read where torchvision's
files are not there.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.hub import DataFiles
from flightning.datamodules.huggingface import HuggingFace
from flightning.datamodules.sources import PictureSource
from flightning.datamodules.transforms import HorizontalFlip, PadCrop, RandomRotation
from flightning.errors import ConfigurationError, DataNotFoundError, nearest

__all__ = ["CIFAR10", "CIFAR100", "EMNIST", "MNIST", "FashionMNIST"]


#: Not there: RuntimeError; no network: URLError, an OSError; cut off in the middle: the others.
_UNREADABLE = (RuntimeError, OSError, ValueError, AssertionError, EOFError, pickle.UnpicklingError)


@rank_zero_only
def _say(text: str) -> None:
    print(text, flush=True)


class _TorchvisionData(FederatedDataModule):
    """A picture set of torchvision.

    Args:
        root: Folder of the data sets, as torchvision lays them out; or parquet files as the Hugging Face Hub has them
            (``train*.parquet``, ``test*.parquet``) in its folders ``mnist``, ``fashion_mnist``, ``cifar10``,
            ``cifar100``.
        download: Whether to fetch what is missing.
        normalize: Whether to subtract the mean and divide by the standard deviation of each channel.
        **kwargs: Arguments of `FederatedDataModule`.
    """

    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]
    #: Folder below `root` in which torchvision keeps the files.
    torchvision_folder: ClassVar[str]
    #: Folder below `root` in which parquet files are looked for; ``None`` for none.
    parquet_folder: ClassVar[str | None] = None
    #: Their column of labels.
    label_column: ClassVar[str] = "label"

    def __init__(self, root: str = "data", download: bool = True, normalize: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root, self.download, self.normalize = root, download, normalize

    def open(self, train: bool) -> Any:
        """Open one split with torchvision."""
        return self._torchvision_class()(self.root, train=train, download=self.download)

    def _torchvision_class(self) -> Callable[..., Any]:
        from torchvision import datasets

        found: Callable[..., Any] = getattr(datasets, type(self).__name__)
        return found

    @cached_property
    def _table(self) -> HuggingFace | None:
        """The set in parquet files; ``None`` where torchvision's own are there, or neither."""
        if self.parquet_folder is None or Path(self.root, self.torchvision_folder).exists():
            return None
        folder = Path(self.root, self.parquet_folder)
        if next(folder.rglob("*.parquet"), None) is None:
            return None
        files: DataFiles = {split: f"{folder}/**/{split}*.parquet" for split in ("train", "test")}
        return HuggingFace("parquet", data_files=files, label_column=self.label_column)

    @property
    def origin(self) -> str:
        """A sentence about what is read, where it is not torchvision's files."""
        if self._table is None:
            return ""
        train, test = (len(self._table.cached.arrays[f"{split}_targets"]) for split in ("train", "test"))
        return (
            f"{type(self).__name__} is read from parquet files in {Path(self.root, str(self.parquet_folder))}: {train} "
            f"samples for training, {test} for testing."
        )

    def prepare_data(self) -> None:
        """Fetch or convert what is missing, once per machine."""
        if self._table is not None:
            self._table.prepare_data()
            return
        for train in (True, False):
            self._open(train)

    def _open(self, train: bool) -> Any:
        try:
            return self.open(train)
        except _UNREADABLE as error:
            reason = " ".join(str(error).split())
            parquet = f", or as parquet files into its folder `{self.parquet_folder}`" if self.parquet_folder else ""
            raise DataNotFoundError(
                f"`{type(self).__name__}` cannot be read from `root={self.root!r}` ({Path(self.root).resolve()}; "
                f"`download={self.download}`): {reason}. Put the files there as torchvision lays them out{parquet}, or "
                "delete what is damaged and run once with network access and `download: true`."
            ) from error

    def load(self) -> tuple[PictureSource, PictureSource]:
        """Both splits."""
        if self._table is not None:
            _say(self.origin)
            return self._table_pictures(self._table, "train"), self._table_pictures(self._table, "test")
        train, test = (self._pictures(self._open(train)) for train in (True, False))
        return train, test

    def _table_pictures(self, table: HuggingFace, split: str) -> PictureSource:
        for name in ("num_classes", "input_shape"):
            found, known = getattr(table, name), getattr(self, name)
            if found != known:
                raise ConfigurationError(
                    f"the parquet files in `{Path(self.root, str(self.parquet_folder))}` are no {type(self).__name__}: "
                    f"`{name}` is {found} in place of {known}. Read them with `--data HuggingFace`."
                )
        arrays = table.cached.arrays
        pictures, targets = (torch.from_numpy(arrays[f"{split}_{kind}"]) for kind in ("pictures", "targets"))
        return self._source(pictures, targets)

    def _pictures(self, dataset: Any) -> PictureSource:
        pictures = torch.as_tensor(np.asarray(dataset.data))
        pictures = pictures[:, None] if pictures.ndim == 3 else pictures.permute(0, 3, 1, 2).contiguous()
        return self._source(pictures, self.targets(dataset))

    def _source(self, pictures: Tensor, targets: Tensor) -> PictureSource:
        mean, std = (self.mean, self.std) if self.normalize else (None, None)
        return PictureSource(pictures, targets, mean, std)

    def targets(self, dataset: Any) -> Tensor:
        """Labels of a split."""
        return torch.as_tensor(dataset.targets, dtype=torch.long)


class MNIST(_TorchvisionData):
    """Handwritten digits, 28 x 28 pixels, 60 000 for training and 10 000 for testing."""

    num_classes = 10
    input_shape = (1, 28, 28)
    class_names = tuple("0123456789")
    torchvision_folder, parquet_folder = "MNIST/raw", "mnist"
    mean, std = (0.1307,), (0.3081,)


class FashionMNIST(_TorchvisionData):
    """Clothes, 28 x 28 pixels, 60 000 for training and 10 000 for testing."""

    num_classes = 10
    input_shape = (1, 28, 28)
    class_names = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
    torchvision_folder, parquet_folder = "FashionMNIST/raw", "fashion_mnist"
    mean, std = (0.2860,), (0.3530,)


class EMNIST(_TorchvisionData):
    """Handwritten letters or characters, 28 x 28 pixels.

    Args:
        split: ``letters`` (26 classes), ``balanced`` (47), ``byclass`` (62), ``bymerge`` (47), ``digits`` or ``mnist``.
        **kwargs: Arguments of the other picture sets.
    """

    input_shape = (1, 28, 28)
    torchvision_folder = "EMNIST/raw"
    mean, std = (0.1736,), (0.3317,)
    _CLASSES: ClassVar[dict[str, int]] = {
        "letters": 26, "balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "mnist": 10,
    }  # fmt: skip

    def __init__(self, split: str = "letters", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if split not in self._CLASSES:
            raise ConfigurationError(f"`split={split!r}` is no split of EMNIST. {nearest(split, self._CLASSES)}")
        self.split, self.num_classes = split, self._CLASSES[split]

    def open(self, train: bool) -> Any:
        """Open one split with torchvision."""
        return self._torchvision_class()(self.root, split=self.split, train=train, download=self.download)

    def targets(self, dataset: Any) -> Tensor:
        """Labels from 0: torchvision counts the letters from 1."""
        return super().targets(dataset) - int(self.split == "letters")


class CIFAR10(_TorchvisionData):
    """Photographs, 32 x 32 pixels, 50 000 for training and 10 000 for testing.

    Args:
        augment: Random transforms of training batches; ``None`` is pad-crop and flip, ``[]`` is none.
        **kwargs: Arguments of the other picture sets.
    """

    num_classes = 10
    input_shape = (3, 32, 32)
    class_names: Sequence[str] | None = (
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    )  # fmt: skip
    torchvision_folder, parquet_folder = "cifar-10-batches-py", "cifar10"
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

    def __init__(self, augment: list[Any] | None = None, **kwargs: Any) -> None:
        super().__init__(augment=[PadCrop(), HorizontalFlip()] if augment is None else augment, **kwargs)


class CIFAR100(CIFAR10):
    """Photographs of 100 classes, 32 x 32 pixels, 50 000 for training and 10 000 for testing.

    Args:
        augment: Random transforms of training batches; ``None`` is those of MOON: pad with black and crop, flip, turn
            by up to 15 degrees. ``[]`` is none.
        normalize: Whether to subtract the mean and divide by the standard deviation of each channel.
        **kwargs: Arguments of the other picture sets.
    """

    num_classes = 100
    class_names = None
    torchvision_folder, parquet_folder, label_column = "cifar-100-python", "cifar100", "fine_label"
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)

    def __init__(self, augment: list[Any] | None = None, normalize: bool = True, **kwargs: Any) -> None:
        if augment is None:
            black = [-m / s for m, s in zip(self.mean, self.std, strict=True)] if normalize else 0.0
            augment = [PadCrop(mode="constant", fill=black), HorizontalFlip(), RandomRotation(15, fill=black)]
        super().__init__(augment=augment, normalize=normalize, **kwargs)
