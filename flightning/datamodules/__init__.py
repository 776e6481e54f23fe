"""Where samples come from and which client owns which."""

from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.digits import Digits
from flightning.datamodules.partitioners import (
    IID,
    ClassesPerClient,
    Dirichlet,
    DirichletPerClient,
    FlowerPartitioner,
    FromFile,
    LongTail,
    MixedSkew,
    Natural,
    Partitioner,
    QuantityBalancedness,
    QuantityDirichlet,
    QuantityLognormal,
    QuantityPowerLaw,
    Shards,
    Similarity,
    SortedMix,
)
from flightning.datamodules.skews import (
    AffineSkew,
    BlurSkew,
    ColourCast,
    ContrastSkew,
    FeatureSkew,
    LabelPermutation,
    NoiseSkew,
    RotationSkew,
)
from flightning.datamodules.synthetic import Quadratic
from flightning.datamodules.transforms import HorizontalFlip, PadCrop
from flightning.datamodules.vision import CIFAR10, CIFAR100, EMNIST, MNIST, FashionMNIST

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "EMNIST",
    "IID",
    "MNIST",
    "AffineSkew",
    "BlurSkew",
    "ClassesPerClient",
    "ColourCast",
    "ContrastSkew",
    "Digits",
    "Dirichlet",
    "DirichletPerClient",
    "FashionMNIST",
    "FeatureSkew",
    "FederatedDataModule",
    "FlowerPartitioner",
    "FromFile",
    "HorizontalFlip",
    "LabelPermutation",
    "LongTail",
    "MixedSkew",
    "Natural",
    "NoiseSkew",
    "PadCrop",
    "Partitioner",
    "Quadratic",
    "QuantityBalancedness",
    "QuantityDirichlet",
    "QuantityLognormal",
    "QuantityPowerLaw",
    "RotationSkew",
    "Shards",
    "Similarity",
    "SortedMix",
]
