"""For callbacks that look at single clients."""

from __future__ import annotations

from lightning.pytorch import Callback

from flightning.algorithms.base import Client, FederatedMixin
from flightning.strategies.processes import Processes

__all__ = ["RoundListener"]


class RoundListener(Callback):
    """A callback that the round engine calls for every client whose update is used."""

    def on_client_trained(self, module: FederatedMixin, client: Client) -> None:
        """A client has finished: its weights are in the module, those it received in ``module.global_weights``."""

    def on_cohort_trained(self, module: FederatedMixin, processes: Processes) -> None:
        """All clients of the round have finished; the global weights are still those that they received."""
