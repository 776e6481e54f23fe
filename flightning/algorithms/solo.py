"""SOLO: every client trains alone; nothing is exchanged.

The lower bound of the papers: the mean over clients of the accuracy on the global test set, with its standard
deviation (``val/accuracy``, ``val/accuracy_std``).
"""

from __future__ import annotations

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier

__all__ = ["SOLO", "SOLOMixin"]


class SOLOMixin(FederatedMixin):
    """Keep all weights on the client; every client trains in every round, and its optimizer state lives on."""

    trains_everybody = True
    keeps_optimizer = True

    def is_shared(self, name: str) -> bool:
        """No weight is shared."""
        return False


class SOLO(SOLOMixin, Classifier):
    """SOLO on the built-in classifier."""
