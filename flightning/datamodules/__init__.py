"""Where samples come from and which client owns which."""

from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.digits import Digits
from flightning.datamodules.partitioners import IID, ClassesPerClient, Dirichlet, Partitioner, Shards, Similarity
from flightning.datamodules.transforms import HorizontalFlip, PadCrop
from flightning.datamodules.vision import CIFAR10, CIFAR100, EMNIST, MNIST, FashionMNIST

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "EMNIST",
    "IID",
    "MNIST",
    "ClassesPerClient",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "FederatedDataModule",
    "HorizontalFlip",
    "PadCrop",
    "Partitioner",
    "Shards",
    "Similarity",
]
