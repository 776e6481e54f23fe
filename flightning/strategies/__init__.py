"""Where clients train: which process trains which client, and how processes meet."""

from flightning.strategies.client_parallel import ClientParallelStrategy

__all__ = ["ClientParallelStrategy"]
