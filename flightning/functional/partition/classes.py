"""A fixed number of classes for each client."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import numpy.typing as npt

from flightning.errors import PartitionError
from flightning.functional.partition.dealing import Counts, Indices, counts_from_shares
from flightning.functional.partition.label import Labels, deal_classes, draw_until

__all__ = ["Assignment", "class_holders", "classes_split", "mixed_split"]

Assignment = Literal["random", "balanced", "consecutive", "blocks"]


def class_holders(
    num_classes: int, num_clients: int, rng: np.random.Generator, *, classes: int, assignment: Assignment = "random"
) -> npt.NDArray[np.bool_]:
    """Which client holds which class, as a table of clients x classes with ``classes`` entries in each row.

    Args:
        num_classes: Number of classes there are.
        num_clients: Number of clients.
        rng: Source of randomness.
        classes: Classes of each client.
        assignment: ``random``: class ``i mod C`` and random others (NIID-Bench). ``balanced``: random, but each class
            has the same number of holders when the number of classes divides that of clients. ``consecutive``: classes
            ``i, i + 1, ...`` modulo ``C`` (FedProx). ``blocks``: the classes are dealt in order to blocks of
            neighbouring clients (PFLlib).

    Example:
        >>> class_holders(3, 3, np.random.default_rng(0), classes=2, assignment="consecutive").astype(int).tolist()
        [[1, 1, 0], [0, 1, 1], [1, 0, 1]]
    """
    if classes > num_classes:
        raise PartitionError(
            f"`classes` = {classes} is more than the {num_classes} classes of the data: use at most {num_classes}."
        )
    clients = np.arange(num_clients)
    if assignment == "consecutive":
        held = (clients[:, None] + np.arange(classes)) % num_classes
    elif assignment == "blocks":
        num_blocks = -(-num_classes // classes)
        held = ((clients * num_blocks // num_clients * classes)[:, None] + np.arange(classes)) % num_classes
    elif assignment == "random":
        key = rng.random((num_clients, num_classes))
        key[clients, clients % num_classes] = -1.0
        held = np.argpartition(key, classes - 1, axis=1)[:, :classes]
    else:
        # in every block of C clients: a random relabelling of a cyclic table with random offsets
        num_blocks = -(-num_clients // num_classes)
        names = np.argsort(rng.random((num_blocks, num_classes)), axis=1)
        offsets = np.argsort(rng.random((num_blocks, num_classes)), axis=1)[:, :classes]
        block, place = np.divmod(clients, num_classes)
        held = names[block[:, None], (place[:, None] + offsets[block]) % num_classes]
    holders = np.zeros((num_clients, num_classes), dtype=bool)
    holders[clients[:, None], held] = True
    return holders


def classes_split(
    labels: Labels,
    num_clients: int,
    rng: np.random.Generator,
    *,
    classes: int,
    assignment: Assignment = "random",
    sigma: float = 0.0,
    least: int = 0,
) -> list[Indices]:
    """Give each client ``classes`` classes and divide each class among its holders.

    Args:
        labels: Label of each sample.
        num_clients: Number of clients.
        rng: Source of randomness.
        classes: Classes of each client.
        assignment: Who holds which class, see :func:`class_holders`.
        sigma: Log standard deviation of the lognormal shares of the holders of a class; ``0`` divides equally.
        least: Samples of each of its classes that a client gets before the shares apply (5 in FedProx).

    Raises:
        PartitionError: When there are fewer than ``classes`` classes or a class is too small for ``least``.

    Example:
        >>> labels = np.repeat(np.arange(4), 10)
        >>> parts = classes_split(labels, 4, np.random.default_rng(0), classes=2)
        >>> [len(set(labels[part].tolist())) for part in parts]
        [2, 2, 2, 2]
    """
    totals = np.unique(labels, return_counts=True)[1]
    holders = class_holders(len(totals), num_clients, rng, classes=classes, assignment=assignment)
    _warn_unheld(holders)
    counts = np.zeros(holders.shape, dtype=np.int64)
    for k, total in enumerate(totals):
        clients = np.flatnonzero(holders[:, k])
        if len(clients):
            counts[clients, k] = counts_from_shares(rng.lognormal(0.0, sigma, len(clients)), int(total), least)
    return deal_classes(labels, counts, rng)


def mixed_split(
    labels: Labels,
    num_clients: int,
    rng: np.random.Generator,
    *,
    classes: int = 2,
    alpha: float = 0.5,
    min_size: int = 10,
) -> list[Indices]:
    r"""Label and quantity skew at once: a few classes for each client, cut at :math:`\mathrm{Dir}(\alpha)` shares.

    The classes have equally many holders; the shares of the holders of each class are drawn again until the smallest
    client holds ``min_size`` samples.

    Args:
        labels: Label of each sample.
        num_clients: Number of clients.
        rng: Source of randomness.
        classes: Classes of each client.
        alpha: Concentration of the shares; large values divide each class equally.
        min_size: Least number of samples of a client.

    Raises:
        PartitionError: When no draw gives each client ``min_size`` samples.

    Example:
        >>> labels = np.repeat(np.arange(4), 100)
        >>> parts = mixed_split(labels, 4, np.random.default_rng(0), alpha=1.0)
        >>> [len(set(labels[part].tolist())) for part in parts]
        [2, 2, 2, 2]
    """
    totals = np.unique(labels, return_counts=True)[1]

    def draw() -> Counts:
        holders = class_holders(len(totals), num_clients, rng, classes=classes, assignment="balanced")
        counts = np.zeros(holders.shape, dtype=np.int64)
        for k, total in enumerate(totals):
            clients = np.flatnonzero(holders[:, k])
            if len(clients):
                counts[clients, k] = counts_from_shares(rng.dirichlet(np.full(len(clients), alpha)), int(total))
        return counts

    counts = draw_until(draw, len(labels), num_clients, min_size, f"`alpha` = {alpha}")
    _warn_unheld(counts > 0)
    return deal_classes(labels, counts, rng)


def _warn_unheld(holders: npt.NDArray[np.bool_]) -> None:
    unheld = np.flatnonzero(~holders.any(axis=0))
    if len(unheld):
        warnings.warn(
            f"No client holds {len(unheld)} of {holders.shape[1]} classes, their samples are left out: use more "
            "clients or more classes for each client.",
            stacklevel=3,
        )
