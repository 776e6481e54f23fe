"""Partitioners that skew the labels."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import numpy.typing as npt

from flightning.datamodules.partitioners.base import Partitioner
from flightning.datamodules.settings import require
from flightning.functional.partition import (
    Assignment,
    classes_split,
    dirichlet_split,
    iid_split,
    shard_split,
    similarity_split,
)

__all__ = ["IID", "ClassesPerClient", "Dirichlet", "Shards", "Similarity"]

Labels = npt.NDArray[np.int64]
Parts = list[npt.NDArray[np.int64]]


class IID(Partitioner):
    """Random parts of equal size.

    Args:
        stratified: Also give each client the same number of samples of each class.

    Example:
        >>> [len(part) for part in IID()(np.zeros(10, dtype=int), 3, seed=0)]
        [4, 3, 3]
    """

    def __init__(self, stratified: bool = False) -> None:
        self.stratified = stratified

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Deal a shuffled (or class-sorted) deck one sample at a time."""
        return iid_split(labels, num_clients, rng, stratified=self.stratified)


class Dirichlet(Partitioner):
    r"""Cut each class at random shares :math:`p \sim \mathrm{Dir}_N(\alpha)` of the clients.

    The common benchmark split (NIID-Bench, MOON, FedMA). Note that ``balance`` makes the label skew stronger.

    Args:
        alpha: Concentration, > 0. Small values skew more; 100 is nearly IID.
        balance: Give nothing more to clients that already hold their equal share of samples.
        shuffle_classes: Visit the classes in random order; with ``balance`` the last ones are the most skewed.
        min_size: Least number of samples of a client; drawn again until reached.

    Example:
        >>> Dirichlet(alpha=0.1, balance=False)
        Dirichlet(alpha=0.1, balance=False)
    """

    shown = ("alpha",)

    def __init__(
        self, alpha: float = 0.5, balance: bool = True, shuffle_classes: bool = False, min_size: int = 10
    ) -> None:
        require(
            0 < alpha < math.inf,
            "alpha",
            alpha,
            "must be > 0 and finite",
            "use 0.1 for strong skew or 100 for nearly IID",
        )
        require(min_size >= 0, "min_size", min_size, "must be >= 0", "use 0 to allow empty clients")
        self.alpha = alpha
        self.balance = balance
        self.shuffle_classes = shuffle_classes
        self.min_size = min_size

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Draw shares class by class until the smallest client is large enough."""
        return dirichlet_split(
            labels,
            num_clients,
            rng,
            alpha=self.alpha,
            balance=self.balance,
            shuffle_classes=self.shuffle_classes,
            min_size=self.min_size,
        )


class Shards(Partitioner):
    """Equal shards of the label-sorted samples, a few random ones for each client (McMahan).

    Args:
        per_client: Shards of each client; 2 in the FedAvg paper.

    Example:
        >>> labels = np.repeat(np.arange(10), 20)
        >>> [len(part) for part in Shards(per_client=2)(labels, 4, seed=0)]
        [50, 50, 50, 50]
    """

    shown = ("per_client",)

    def __init__(self, per_client: int = 2) -> None:
        require(per_client >= 1, "per_client", per_client, "must be >= 1", "use 2 as in the FedAvg paper")
        self.per_client = per_client

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Sort, cut, deal."""
        return shard_split(labels, num_clients, rng, per_client=self.per_client)


class ClassesPerClient(Partitioner):
    """The same number of classes for each client, each class divided among its holders.

    Args:
        classes: Classes of each client (the ``#C`` of NIID-Bench).
        assignment: ``random``: class ``i mod C`` and random others (NIID-Bench). ``balanced``: random with equally
            many holders of each class. ``consecutive``: classes ``i, i + 1, ...`` (FedProx). ``blocks``: neighbouring
            clients share classes (PFLlib).
        sigma: Log standard deviation of lognormal shares inside a class; ``0`` divides equally, FedProx uses 2.
        least: Samples of each of its classes that a client gets before the shares apply; FedProx uses 5.

    Example:
        >>> ClassesPerClient(classes=2, assignment="consecutive", sigma=2.0, least=5)
        ClassesPerClient(classes=2, assignment='consecutive', sigma=2.0, least=5)
    """

    shown = ("classes",)

    def __init__(self, classes: int = 2, assignment: Assignment = "random", sigma: float = 0.0, least: int = 0) -> None:
        require(classes >= 1, "classes", classes, "must be >= 1", "use 2 for a strong but learnable skew")
        names = get_args(Assignment)
        require(assignment in names, "assignment", assignment, f"must be one of {', '.join(names)}", "use random")
        require(0 <= sigma < math.inf, "sigma", sigma, "must be >= 0 and finite", "use 0 to divide each class equally")
        require(least >= 0, "least", least, "must be >= 0", "use 0 for no guaranteed samples")
        self.classes = classes
        self.assignment = assignment
        self.sigma = sigma
        self.least = least

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Choose the holders of each class, then divide it."""
        return classes_split(
            labels,
            num_clients,
            rng,
            classes=self.classes,
            assignment=self.assignment,
            sigma=self.sigma,
            least=self.least,
        )


class Similarity(Partitioner):
    """A share of IID samples for each client, the rest sorted by label (SCAFFOLD, rFedAvg).

    Args:
        similarity: Share of IID samples in ``[0, 1]``: ``0`` is fully sorted, ``1`` is IID.

    Example:
        >>> Similarity(similarity=0.1)
        Similarity(similarity=0.1)
    """

    shown = ("similarity",)

    def __init__(self, similarity: float = 0.1) -> None:
        require(
            0 <= similarity <= 1,
            "similarity",
            similarity,
            "must lie in [0, 1]",
            "write 10 % as 0.1",
        )
        self.similarity = similarity

    def split(self, labels: Labels, num_clients: int, rng: np.random.Generator) -> Parts:
        """Equal chunks of the IID pool and of the sorted rest."""
        return similarity_split(labels, num_clients, rng, similarity=self.similarity)
