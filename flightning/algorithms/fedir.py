r"""FedIR: importance weights make every client's loss speak for the label distribution of all.

Hsu, Qi and Brown, "Federated Visual Classification with Real-World Data Distribution", ECCV 2020, Eq. 2-3.
https://arxiv.org/abs/2003.08082
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError

__all__ = ["FedIR", "FedIRMixin"]


class FedIRMixin(FederatedMixin):
    r"""Replace the loss by :math:`\sum_i u_{y_i} \ell_i / \sum_i u_{y_i}`, :math:`u_y = p(y) / q_k(y)`.

    :math:`p` is the label distribution of all clients together, :math:`q_k` that of the client. Each client sends its
    label counts once and receives :math:`p` once. For modules whose last `Linear` gives the logits of a cross-entropy.

    Args:
        cap: Largest importance weight, > 0: a class of which a client has almost nothing would drown the others.
        **kwargs: Arguments of the module behind the mixin.
    """

    def __init__(self, cap: float = 100.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if cap <= 0:
            raise ConfigurationError(f"`cap={cap}` must be above 0: it is the largest importance weight.")
        self.cap = cap

    def on_federation_start(self) -> None:
        """Collect the label counts and send back their sum."""
        super().on_federation_start()
        self._counts = np.asarray(self.federated_data.label_counts(), dtype=np.float64)
        # float32 counts up and the distribution down, for each client with data
        self.setup_bytes += 2 * 4 * self._counts.shape[1] * int((self._counts.sum(1) > 0).sum())
        self.watch_layers(self.feature_layer)

    def on_client_start(self, download: Any) -> None:
        """Make the importance weights of the client's classes."""
        super().on_client_start(download)
        counts = self._counts[self._training_client.id]
        p, q = self._counts.sum(0) / self._counts.sum(), counts / counts.sum()
        ratio = np.divide(p, q, out=np.zeros_like(p), where=q > 0)  # a class that is absent has no samples to weigh
        ratio = np.minimum(ratio, self.cap)
        self._agrees = bool((ratio[q > 0] == ratio[q > 0][0]).all())
        self._importance = torch.tensor(ratio, dtype=torch.float32, device=self.device)

    def task_loss(self, loss: Tensor, batch: Any) -> Tensor:
        """Weigh the cross-entropy of each sample; a client whose classes all weigh the same keeps its loss."""
        if self._agrees:
            return super().task_loss(loss, batch)
        _, targets = self.split_batch(batch)
        importance = self._importance[targets]
        losses = functional.cross_entropy(self.layer_output(self.feature_layer), targets, reduction="none")
        return super().task_loss((importance * losses).sum() / importance.sum(), batch)


class FedIR(FedIRMixin, Classifier):
    """FedIR on the built-in classifier."""
