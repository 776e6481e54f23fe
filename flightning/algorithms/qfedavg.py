r"""q-FedAvg: give clients with a high loss more weight, for fairer accuracy over clients.

Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithm 2. https://arxiv.org/abs/1905.10497
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload
from flightning.functional.distance import squared_distance

__all__ = ["QFedAvg", "QFedAvgMixin"]


class QFedAvgMixin(FederatedMixin):
    r"""Minimise :math:`\sum_k F_k^{q+1} / (q+1)`: set :math:`w \leftarrow w - \sum_k \Delta_k / \sum_k h_k`.

    With :math:`\Delta w_k = L (w^t - w_k)`, :math:`\Delta_k = F_k^q \Delta w_k` and
    :math:`h_k = q F_k^{q-1} \lVert \Delta w_k \rVert^2 + L F_k^q`. The clients of a cohort count equally.

    Args:
        q: Fairness, at least 0; ``0`` is FedAvg with uniform weights.
        L: Estimate of the Lipschitz constant, above 0; ``None`` is one over the learning rate of the round.
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> class QFedAvgBoring(QFedAvgMixin, BoringModel): ...
        >>> QFedAvgBoring(q=0.1).hparams.q
        0.1
    """

    reductions: ClassVar[Mapping[str, str]] = {"weights": "uniform", "h": "uniform"}
    owns = frozenset({"aggregation rule"})

    def __init__(self, q: float = 1.0, L: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if q < 0:
            raise ConfigurationError(f"`q={q}` must be at least 0: use 0 for FedAvg with uniform weights.")
        if L is not None and L <= 0:
            raise ConfigurationError(f"`L={L}` must be above 0: leave it out for one over the learning rate.")
        self.q, self.L = q, L

    def on_client_start(self, download: Payload) -> None:
        """Find the loss of the received model over all samples of the client."""
        super().on_client_start(download)
        self._loss = 1.0
        if self.q and download:
            with torch.no_grad():
                total = sum(float(loss) * size for loss, size in self.task_losses())
            self._loss = total / self._training_client.num_samples + 1e-10

    def on_client_end(self) -> Payload:
        r"""Send :math:`\Delta_k` in place of the weights, and one number, :math:`h_k`."""
        upload = super().on_client_end()
        live, sizes = self.shared_parameters(), self._training_client.step_sizes
        lipschitz = self.L or (1 / sizes[-1] if any(sizes) else 0.0)
        received = [self.global_weights[n] for n in live]
        squared = lipschitz**2 * squared_distance([p.detach() for p in live.values()], received)
        weight = self._loss**self.q
        moved = torch._foreach_sub(received, [p.detach() for p in live.values()])
        deltas = torch._foreach_mul(moved, lipschitz * weight)
        h = self.q * self._loss ** (self.q - 1) * squared + lipschitz * weight
        return {**upload, "weights": {**upload["weights"], **dict(zip(live, deltas, strict=True))}, "h": h}

    def aggregate(self, uploads: Payload) -> None:
        """Algorithm 2, the last line; means in place of sums cancel."""
        mean, h = uploads["weights"], uploads["h"]
        step = {n: mean[n] / h if h > 0 else 0.0 for n in self.shared_parameters()}
        super().aggregate({**uploads, "weights": {**mean, **{n: self.global_weights[n] - s for n, s in step.items()}}})


class QFedAvg(QFedAvgMixin, Classifier):
    """q-FedAvg on the built-in classifier."""
