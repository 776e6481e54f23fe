r"""FedProto: exchange class prototypes in place of weights.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022, Eq. 4-6.
https://arxiv.org/abs/2105.00243
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload
from flightning.functional.prototypes import class_means

__all__ = ["FedProto", "FedProtoMixin"]


class FedProtoMixin(FederatedMixin):
    r"""Add :math:`\lambda \, \mathrm{MSE}(z_i, P_{y_i})`, and average only the prototypes :math:`P_c`.

    A client's prototype is the mean feature of its samples of a class under its trained model; the server takes the
    plain mean over the clients that have the class and keeps the old one of a class that nobody sent. Weights stay
    with the client. ``val/accuracy`` is that of the local heads, ``val/prototype_accuracy`` that of the nearest
    prototype; both are means over clients.

    Args:
        lam: Strength :math:`\lambda`, at least 0. ``0`` is SOLO.
        **kwargs: Arguments of the module behind the mixin.
    """

    reductions: ClassVar[Mapping[str, str]] = {"prototypes": "stack"}
    owns = frozenset({"aggregation rule"})
    keeps_optimizer = True

    def __init__(self, lam: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if lam < 0:
            raise ConfigurationError(f"`lam={lam}` must be at least 0: use 0 to train every client alone.")
        self.lam = lam
        self.add_server_state("prototypes", dict)

    def is_shared(self, name: str) -> bool:
        """No weight is shared."""
        return False

    def on_federation_start(self) -> None:
        """Look at the features."""
        super().on_federation_start()
        self.watch_layers(self.feature_layer)

    def download(self, client: int) -> Payload:
        """Send the prototypes that there are."""
        prototypes = self.server_state.prototypes
        return {**super().download(client), **({"prototypes": prototypes} if prototypes else {})}

    def on_client_start(self, download: Payload) -> None:
        """Take the received prototypes as one table."""
        super().on_client_start(download)
        received = download.get("prototypes", {})
        self._table, self._known = self._as_table(received)
        self._strength = self.lam if received else 0.0

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """Eq. 6 without the data term; a sample whose class has no prototype is its own target and adds 0."""
        terms = super().regularization(batch)
        if self._strength:
            features, (_, targets) = self.penultimate, self.split_batch(batch)
            own = features.detach()
            goals = torch.where(self._known[targets, None], self._table[targets].to(own.dtype), own)
            terms["prototype"] = self._strength * functional.mse_loss(features, goals)
        return terms

    def on_client_end(self) -> Payload:
        """Send the mean feature of each class that the client has (Eq. 4)."""
        features, targets = (torch.cat(parts) for parts in zip(*self.client_features(), strict=True))
        means, counts = class_means(features.float(), targets, self.federated_data.num_classes)
        return {**super().on_client_end(), "prototypes": {str(c): means[c] for c in counts.nonzero()[:, 0].tolist()}}

    def aggregate(self, uploads: Payload) -> None:
        """Average each class over its owners (Eq. 5)."""
        super().aggregate(uploads)
        sent = uploads["prototypes"].values()
        owned = {c: torch.stack([p[c] for p in sent if c in p]).mean(0) for c in sorted({c for p in sent for c in p})}
        self.server_state.prototypes = {**self.server_state.prototypes, **owned}

    def evaluate_batch(self, stage: str, batch: Any) -> None:
        """Log the accuracy of the nearest prototype."""
        super().evaluate_batch(stage, batch)
        table, known = self._as_table(self.server_state.prototypes)
        if bool(known.any()):
            _, targets = self.split_batch(batch)
            distances = torch.cdist(self.penultimate.float(), table).masked_fill(~known, torch.inf)
            accuracy = (distances.argmin(dim=1) == targets).float().mean()
            self.log(f"{stage}/prototype_accuracy", accuracy, batch_size=len(targets), sync_dist=True)

    def _as_table(self, prototypes: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        shape = self.federated_data.num_classes, self.feature_size
        table = torch.zeros(shape, dtype=torch.float32, device=self.device)
        known = torch.zeros(len(table), dtype=torch.bool, device=self.device)
        for c, prototype in prototypes.items():
            table[int(c)], known[int(c)] = prototype, True
        return table, known


class FedProto(FedProtoMixin, Classifier):
    """FedProto on the built-in classifier."""
