r"""FedCurv: stay near the other clients' models where they are sure.

Shoham et al., "Overcoming Forgetting in Federated Learning on Non-IID Data", FL-NeurIPS 2019, Eq. 5-6.
https://arxiv.org/abs/1910.07796
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from flightning.algorithms.base import FederatedMixin, Weights
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload
from flightning.functional.fisher import diagonal_fisher

__all__ = ["FedCurv", "FedCurvMixin"]


class FedCurvMixin(FederatedMixin):
    r"""Add :math:`\lambda \sum_{j \ne k} (w - w_j)^\top \mathrm{diag}(I_j) (w - w_j)`, up to a constant.

    Each client sends its Fisher diagonal :math:`u_j = \mathrm{diag}\,I_j` and :math:`v_j = u_j \odot w_j`.
    With the sums :math:`U, V` of all clients the term is
    :math:`\lambda \sum [(U - u_k) w^2 - 2 (V - v_k) w]`. A client that is not sampled keeps its last contribution.
    The Fisher diagonal is the mean over samples of squared gradients of :math:`\log p(y \mid x)`, so this is for
    modules whose output is logits. Weights that stay with the client have no part in it.

    Args:
        lam: Strength :math:`\lambda`, at least 0. ``0`` is FedAvg, without the extra traffic.
        chunk_size: Samples whose gradients are held at once; memory against speed.
        **kwargs: Arguments of the module behind the mixin.
    """

    reductions: ClassVar[Mapping[str, str]] = {"fisher": "sum", "fisher_weights": "sum"}

    def __init__(self, lam: float = 0.01, chunk_size: int = 16, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if lam < 0:
            raise ConfigurationError(f"`lam={lam}` must be at least 0: use 0 for plain FedAvg.")
        if chunk_size < 1:
            raise ConfigurationError(f"`chunk_size={chunk_size}` must be at least 1: it is a number of samples.")
        self.lam, self.chunk_size = lam, chunk_size
        for declare in (self.add_server_state, self.add_client_state):
            declare("fisher", self.zeros_like_parameters)
            declare("fisher_weights", self.zeros_like_parameters)

    def download(self, client: int) -> Payload:
        """Send :math:`U` and :math:`V`."""
        kept, names = self.server_state, self._curved()
        sums = {
            "fisher": {n: kept.fisher[n] for n in names},
            "fisher_weights": {n: kept.fisher_weights[n] for n in names},
        }
        return {**super().download(client), **(sums if names else {})}

    def on_client_start(self, download: Payload) -> None:
        """Take the own part out of the sums."""
        super().on_client_start(download)
        live, own = self.shared_parameters(), self.client_state
        self._others = [
            (live[n], total - own.fisher[n], download["fisher_weights"][n] - own.fisher_weights[n])
            for n, total in download.get("fisher", {}).items()
        ]
        self._has_others = any(bool(u.any()) for _, u, _ in self._others)

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """Eq. 6; without another client's curvature there is no term, as in the first round."""
        terms = super().regularization(batch)
        if self._has_others:
            parts = [(u * w.square() - 2 * v * w).sum() for w, u, v in self._others]
            terms["curvature"] = self.lam * torch.stack(parts).sum()
        return terms

    def on_client_end(self) -> Payload:
        """Send how the own curvature has changed since the last time, so that the server can keep sums."""
        upload, live = super().on_client_end(), self._curved()
        if not live:
            return upload
        fisher = self._fisher(live)
        weighted = {n: u * live[n].detach() for n, u in fisher.items()}
        change = {n: u - self.client_state.fisher[n] for n, u in fisher.items()}
        weighted_change = {n: v - self.client_state.fisher_weights[n] for n, v in weighted.items()}
        self.client_state.fisher, self.client_state.fisher_weights = fisher, weighted
        return {**upload, "fisher": change, "fisher_weights": weighted_change}

    def aggregate(self, uploads: Payload) -> None:
        """Bring the sums up to date."""
        super().aggregate(uploads)
        for name in ("fisher", "fisher_weights"):
            old: Weights = getattr(self.server_state, name)
            new = {n: (old[n] + change).to(old[n].dtype) for n, change in uploads.get(name, {}).items()}
            setattr(self.server_state, name, {**old, **new})

    def _curved(self) -> Weights:
        """Live weights that have a part in the penalty."""
        return self.shared_parameters() if self.lam else {}

    def _fisher(self, live: Weights) -> Weights:
        prefix = self.forward_root_prefix
        names = {n[len(prefix) :]: n for n in live if n.startswith(prefix)}
        batches = (self.split_batch(batch) for batch in self.client_batches())
        found = diagonal_fisher(self.forward_root, list(names), batches, self.chunk_size)
        fisher = {**self.zeros_like_parameters(), **{names[n]: u for n, u in found.items()}}
        return {n: fisher[n] for n in live}


class FedCurv(FedCurvMixin, Classifier):
    """FedCurv on the built-in classifier."""
