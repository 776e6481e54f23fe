"""Each process trains its own clients."""

from __future__ import annotations

from lightning.pytorch.strategies import DDPStrategy

__all__ = ["ClientParallelStrategy"]


class ClientParallelStrategy(DDPStrategy):
    """Processes that meet once per round."""
