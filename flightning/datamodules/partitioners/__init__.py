"""Rules that decide which client holds which samples, each to be named in YAML."""

from flightning.datamodules.partitioners.base import Partitioner
from flightning.datamodules.partitioners.label import IID, ClassesPerClient, Dirichlet, Shards, Similarity

__all__ = ["IID", "ClassesPerClient", "Dirichlet", "Partitioner", "Shards", "Similarity"]
