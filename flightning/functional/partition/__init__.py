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
    thin_like,
)
from flightning.functional.partition.label import (
    deal_classes,
    dirichlet_split,
    iid_split,
    shard_split,
    similarity_split,
    split_by_class,
)
from flightning.functional.partition.mix import Leftover, sorted_mix_split
from flightning.functional.partition.natural import Grouping, natural_ids, natural_split
from flightning.functional.partition.priors import dirichlet_per_client_split
from flightning.functional.partition.quantity import (
    balancedness_sizes,
    dirichlet_sizes,
    lognormal_sizes,
    long_tail,
    power_law_sizes,
    sized_split,
)

__all__ = [
    "NOBODY",
    "Assignment",
    "Grouping",
    "Leftover",
    "balancedness_sizes",
    "class_holders",
    "classes_split",
    "counts_from_shares",
    "deal",
    "deal_classes",
    "dirichlet_per_client_split",
    "dirichlet_sizes",
    "dirichlet_split",
    "equal_sizes",
    "hold_out",
    "iid_split",
    "labels_hash",
    "lognormal_sizes",
    "long_tail",
    "mixed_split",
    "natural_ids",
    "natural_split",
    "partition_hash",
    "power_law_sizes",
    "proportional_test_split",
    "shard_split",
    "similarity_split",
    "sized_split",
    "sorted_mix_split",
    "split_by_class",
    "thin_like",
]
