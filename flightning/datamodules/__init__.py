"""Where samples come from and which client owns which."""

from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.characters import NextCharacter
from flightning.datamodules.digits import Digits
from flightning.datamodules.huggingface import HuggingFace
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
from flightning.datamodules.synthetic import FCube, Quadratic, Synthetic
from flightning.datamodules.text import PretrainedTokenizer, Words
from flightning.datamodules.transforms import HorizontalFlip, PadCrop, RandomRotation
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
    "FCube",
    "FashionMNIST",
    "FeatureSkew",
    "FederatedDataModule",
    "FlowerPartitioner",
    "FromFile",
    "HorizontalFlip",
    "HuggingFace",
    "LabelPermutation",
    "LongTail",
    "MixedSkew",
    "Natural",
    "NextCharacter",
    "NoiseSkew",
    "PadCrop",
    "Partitioner",
    "PretrainedTokenizer",
    "Quadratic",
    "QuantityBalancedness",
    "QuantityDirichlet",
    "QuantityLognormal",
    "QuantityPowerLaw",
    "RandomRotation",
    "RotationSkew",
    "Shards",
    "Similarity",
    "SortedMix",
    "Synthetic",
    "Words",
]
