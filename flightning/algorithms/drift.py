r"""Clients that remember how far they drift: what FedDyn, FedDC and FedPD have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from flightning.algorithms.base import FederatedMixin, Weights
from flightning.functional.aggregation import Payload
from flightning.functional.distance import squared_distance

__all__ = ["DriftMixin", "whole_model"]


class DriftMixin(FederatedMixin):
    r"""Add :math:`\frac{\alpha_k}{2} \lVert \theta - (w - d_k) \rVert^2` and sum up the drift :math:`d_k`.

    :math:`w` are the weights at which the client starts; after its round :math:`d_k \leftarrow d_k + \theta_k - w`. The
    term is :math:`\alpha_k \langle d_k, \theta \rangle + \frac{\alpha_k}{2} \lVert \theta - w \rVert^2` up to a
    constant. Being part of the loss, it is clipped with it. Means over clients are uniform, except those of buffers.
    """

    reductions: ClassVar[Mapping[str, str]] = {"weights.buffers": "mean"}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_client_state("drift", self.zeros_like_parameters)

    @property
    def relative_weight(self) -> float:
        """The client's weight relative to the mean client: 1 with `federation.weighting: uniform`."""
        return self._training_client.share * self.num_training_clients

    def drift_strength(self) -> float:
        r"""The client's :math:`\alpha_k`."""
        raise TypeError(f"`{type(self).__name__}` must define `drift_strength`.")

    def drift_start(self) -> Weights:
        """Weights at which the client starts."""
        return self.global_weights

    def on_client_start(self, download: Payload) -> None:
        """Prepare the shifted anchor, which is the same in all local steps."""
        super().on_client_start(download)
        self._live = self.shared_parameters()
        start, drift = self.drift_start(), self.client_state.drift
        self._start = {n: start[n] for n in self._live}
        self._anchors = torch._foreach_sub(list(self._start.values()), [drift[n] for n in self._live])
        self._strength = self.drift_strength()

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """The quadratic term."""
        terms = super().regularization(batch)
        distance = squared_distance(list(self._live.values()), self._anchors)
        terms["drift"] = 0.5 * self._strength * distance
        return terms

    @torch.no_grad()
    def on_client_end(self) -> Payload:
        """Add this round's movement to the drift, and send buffers apart."""
        moved = torch._foreach_sub(list(self._live.values()), list(self._start.values()))
        old = self.client_state.drift
        self.client_state.drift = {**old, **{n: old[n] + m for n, m in zip(self._live, moved, strict=True)}}
        upload = super().on_client_end()
        weights = upload.get("weights", {})
        buffers = {n: w for n, w in weights.items() if n not in self._live}
        parts = {"weights": {n: w for n, w in weights.items() if n in self._live}, "weights.buffers": buffers}
        return {**upload, **{name: part for name, part in parts.items() if part}}

    def aggregate(self, uploads: Payload) -> None:
        """Bring parameters and buffers together."""
        super().aggregate({**uploads, **({"weights": whole_model(uploads)} if "weights" in uploads else {})})

    def with_mean_drift(self, mean: Weights) -> Weights:
        """Renew the mean drift of all clients, which the server keeps as ``drift``, and add it to the cohort's mean."""
        old, share = self.server_state.drift, self.num_updates / self.num_training_clients
        drift = {n: old[n] + share * (mean[n] - self.global_weights[n]) for n in self.shared_parameters()}
        self.server_state.drift = {**old, **{n: d.to(old[n].dtype) for n, d in drift.items()}}
        return {**mean, **{n: mean[n] + d for n, d in drift.items()}}


def whole_model(uploads: Payload) -> Weights:
    """Parameters and buffers of the reduced uploads."""
    return {**uploads["weights"], **uploads.get("weights.buffers", {})}
