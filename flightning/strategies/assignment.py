"""Which process trains which client."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

__all__ = ["assign"]


def assign(steps: Sequence[int], processes: int) -> list[int]:
    """Deal clients to processes so that these finish together: the longest first, each to the least busy process.

    Args:
        steps: Local steps of each client.
        processes: How many processes.

    Returns:
        Process of each client.

    Example:
        >>> assign([3, 9, 4, 2], 2)
        [1, 0, 1, 1]
        >>> assign([5], 3)
        [0]
    """
    loads = [(0, rank) for rank in range(processes)]
    ranks = [0] * len(steps)
    for client in sorted(range(len(steps)), key=lambda i: -steps[i]):  # stable: equal clients stay in order
        load, rank = loads[0]
        ranks[client] = rank
        heapq.heapreplace(loads, (load + steps[client], rank))
    return ranks
