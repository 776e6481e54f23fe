"""Rules that decide which client holds which samples, each to be named in YAML."""

from flightning.datamodules.partitioners.base import Partitioner
from flightning.datamodules.partitioners.files import load_partition, sample_digests, save_partition
from flightning.datamodules.partitioners.flower import FlowerPartitioner
from flightning.datamodules.partitioners.label import IID, ClassesPerClient, Dirichlet, Shards, Similarity
from flightning.datamodules.partitioners.natural import FromFile, LongTail, Natural
from flightning.datamodules.partitioners.quantity import (
    DirichletPerClient,
    MixedSkew,
    QuantityBalancedness,
    QuantityDirichlet,
    QuantityLognormal,
    QuantityPowerLaw,
    SortedMix,
)

__all__ = [
    "IID",
    "ClassesPerClient",
    "Dirichlet",
    "DirichletPerClient",
    "FlowerPartitioner",
    "FromFile",
    "LongTail",
    "MixedSkew",
    "Natural",
    "Partitioner",
    "QuantityBalancedness",
    "QuantityDirichlet",
    "QuantityLognormal",
    "QuantityPowerLaw",
    "Shards",
    "Similarity",
    "SortedMix",
    "load_partition",
    "sample_digests",
    "save_partition",
]
