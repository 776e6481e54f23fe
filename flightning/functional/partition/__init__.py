"""Rules that deal sample indices to clients: arrays and a generator in, one index array for each client out."""

from flightning.functional.partition.classes import Assignment, class_holders, classes_split, mixed_split
from flightning.functional.partition.dealing import (
    NOBODY,
    counts_from_shares,
    deal,
    equal_sizes,
    hold_out,
    labels_hash,
    partition_hash,
    proportional_test_split,
)
from flightning.functional.partition.label import (
    dirichlet_split,
    iid_split,
    shard_split,
    similarity_split,
)

__all__ = [
    "NOBODY",
    "Assignment",
    "class_holders",
    "classes_split",
    "counts_from_shares",
    "deal",
    "dirichlet_split",
    "equal_sizes",
    "hold_out",
    "iid_split",
    "labels_hash",
    "mixed_split",
    "partition_hash",
    "proportional_test_split",
    "shard_split",
    "similarity_split",
]
