"""Which process trains which client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["assign"]


def assign(steps: Sequence[int], processes: int, detour: Callable[[int, int], int] | None = None) -> list[int]:
    """Deal clients to processes so that these finish together: the longest first, each to where it ends first.

    Args:
        steps: Local steps of each client.
        processes: How many processes.
        detour: Steps that client ``i`` costs more on process ``r`` than elsewhere; ``None`` for nothing.

    Returns:
        Process of each client.

    Example:
        >>> assign([3, 9, 4, 2], 2)
        [1, 0, 1, 1]
        >>> assign([5], 3)
        [0]
        >>> assign([5, 5], 2, lambda client, process: client != process)
        [0, 1]
    """
    loads = [0] * processes
    ranks = [0] * len(steps)
    for client in sorted(range(len(steps)), key=lambda i: -steps[i]):  # stable: equal clients stay in order
        costs = [steps[client] + (detour(client, rank) if detour else 0) for rank in range(processes)]
        ranks[client] = min(range(processes), key=lambda rank: (loads[rank] + costs[rank], costs[rank]))
        loads[ranks[client]] += costs[ranks[client]]
    return ranks
