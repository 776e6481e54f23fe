r"""FedAvg: average the weights that clients reach by local SGD.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
Algorithm 1. https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier

__all__ = ["FedAvg", "FedAvgMixin"]


class FedAvgMixin(FederatedMixin):
    r"""Set :math:`w^{t+1} = \sum_{k \in S_t} p_k w_k`, with :math:`p_k = n_k / \sum_{j \in S_t} n_j`.

    This is what every federated module does; the mixin adds nothing.
    """


class FedAvg(FedAvgMixin, Classifier):
    """FedAvg on the built-in classifier."""
