"""FedBN: every client keeps its own BatchNorm layers.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021, Algorithm 1.
https://arxiv.org/abs/2102.07623
"""

from __future__ import annotations

import functools

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier
from flightning.functional.layers import batch_norm_names

__all__ = ["FedBN", "FedBNMixin"]


class FedBNMixin(FederatedMixin):
    """Keep weight, bias and running statistics of BatchNorm on the client, and average everything else.

    Layers count as BatchNorm by their class, never by their name; GroupNorm and LayerNorm are shared. There is no
    single global model: the accuracy is the mean over clients, each with its own BatchNorm. A client that has not
    trained yet has the initial one. Without BatchNorm this is FedAvg.
    """

    def is_shared(self, name: str) -> bool:
        """Share what belongs to no BatchNorm layer."""
        return super().is_shared(name) and name not in self._batch_norm

    @functools.cached_property
    def _batch_norm(self) -> set[str]:
        return batch_norm_names(self)


class FedBN(FedBNMixin, Classifier):
    """FedBN on the built-in classifier."""
