"""Centralized: train on the pooled data of all clients, the upper bound."""

from __future__ import annotations

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier

__all__ = ["Centralized", "CentralizedMixin"]


class CentralizedMixin(FederatedMixin):
    """Pool the data into one client whose optimizer state lives on; nothing crosses a network, so nothing is counted.

    A round is `local_epochs` passes over all the data.
    """

    pools_data = True
    keeps_optimizer = True
    trains_everybody = True


class Centralized(CentralizedMixin, Classifier):
    """Pooled training of the built-in classifier."""
