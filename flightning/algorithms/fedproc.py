r"""FedProc: learn features by contrast with the global class prototypes first, the classifier later.

Mu et al., "FedProc: Prototypical Contrastive Federated Learning on Non-IID Data", Future Generation Computer Systems
143, 2023. https://arxiv.org/abs/2109.12273
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import ProjectedClassifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload
from flightning.functional.features import class_sums
from flightning.functional.losses import prototype_cross_entropy

__all__ = ["FedProc", "FedProcMixin"]


class FedProcMixin(FederatedMixin):
    r"""Minimise :math:`a_t \mathrm{CE} + (1 - a_t) L_{gpc}` with :math:`a_t = \min(1, t / T_0)`.

    :math:`L_{gpc} = -\log \mathrm{softmax}_c(\bar z \cdot \bar P_c)[y]` contrasts the features of a sample with the
    global prototypes :math:`\bar P_c`, all on the unit sphere. The prototypes are class means of normalised features
    under the clients' trained models. The first round has no prototypes and is FedAvg.

    Args:
        T_0: Round from which on only the cross-entropy counts. ``None`` is the number of rounds; the published code has
            100. ``0`` is FedAvg.
        temperature: Divides the products of features and prototypes, above 0.
        **kwargs: Arguments of the module behind the mixin.
    """

    reductions: ClassVar[Mapping[str, str]] = {"feature_sums": "sum", "feature_counts": "sum"}

    def __init__(self, T_0: int | None = None, temperature: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if T_0 is not None and T_0 < 0:
            raise ConfigurationError(f"`T_0={T_0}` must be at least 0: use 0 for plain FedAvg.")
        if temperature <= 0:
            raise ConfigurationError(f"`temperature={temperature}` must be above 0: the paper uses 1.")
        self.T_0, self.temperature = T_0, temperature
        self.add_server_state("prototypes", dict)
        self._received: Tensor | None = None

    def on_federation_start(self) -> None:
        """Watch the features."""
        super().on_federation_start()
        self.watch_layers(self.feature_layer)

    def download(self, client: int) -> Payload:
        """Send the prototypes beside the weights."""
        return {**super().download(client), **(self.server_state.prototypes if self._share(self.round_index) else {})}

    def on_client_start(self, download: Payload) -> None:
        """Take the prototypes."""
        super().on_client_start(download)
        self._received = download.get("prototypes")

    def task_loss(self, loss: Tensor, batch: Any) -> Tensor:
        """Scale the cross-entropy by :math:`a_t`."""
        loss = super().task_loss(loss, batch)
        return loss if self._received is None else (1 - self._share(self.round_index)) * loss

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """Contrast features and prototypes; a class that nobody has sent yet takes no part."""
        terms = super().regularization(batch)
        if self._received is not None:
            _, targets = self.split_batch(batch)
            contrast = prototype_cross_entropy(self.penultimate, targets, self._received, None, self.temperature)
            terms["contrast"] = self._share(self.round_index) * contrast
        return terms

    def on_client_end(self) -> Payload:
        """Send sums of normalised features and numbers of samples by class."""
        upload = super().on_client_end()
        if not self._share(self.round_index + 1):  # nobody will need them
            return upload
        normalised = ((normalize(features.float(), dim=1), targets) for features, targets in self.client_features())
        sums, counts = class_sums(normalised, self.federated_data.num_classes)
        return {**upload, "feature_sums": sums.float(), "feature_counts": counts.float()}

    def aggregate(self, uploads: Payload) -> None:
        """Average over all samples; a class that is missing in the cohort keeps its prototype."""
        super().aggregate(uploads)
        if "feature_sums" in uploads:
            new = normalize(uploads["feature_sums"], dim=1).float()
            old = self.server_state.prototypes.get("prototypes", torch.zeros_like(new))
            self.server_state.prototypes = {"prototypes": torch.where(uploads["feature_counts"][:, None] > 0, new, old)}

    def _share(self, round_index: int) -> float:
        """The :math:`1 - a_t` of a round."""
        end = self.num_rounds if self.T_0 is None else self.T_0
        return 1 - min(1.0, round_index / end) if end else 0.0


class FedProc(FedProcMixin, ProjectedClassifier):
    """FedProc on the built-in classifier, whose net gets a projection head where it has none."""
