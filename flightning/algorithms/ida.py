r"""IDA: clients far from the mean model weigh less.

Yeganeh et al., "Inverse Distance Aggregation for Federated Learning with Non-IID Data", DCL at MICCAI 2020, Eq. 3-6.
https://arxiv.org/abs/2008.07665
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from flightning.algorithms.base import FederatedMixin, Weights
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload, average

__all__ = ["IDA", "IDAMixin"]


class IDAMixin(FederatedMixin):
    r"""Set :math:`w^{t+1} = \sum_k a_k w_k` with :math:`a_k \propto 1 / \lVert \bar w - w_k \rVert_1`.

    :math:`\bar w` is the plain mean of the cohort. Buffers go through the weighted mean of FedAvg.

    Args:
        by_samples: Whether :math:`a_k` is also multiplied by the number of samples.
        intrac: Whether :math:`a_k` is also multiplied by :math:`1 / \max(\mathrm{acc}_k, 1/m)`: clients that already
            fit their data weigh less. Their training accuracy is one more number up; it is that of the last `Linear`,
            which has to give the logits.
        cap: Largest ratio between the distances of two clients that still counts, at least 1, so that a client equal
            to the mean does not take everything. ``1`` gives uniform weights.
        **kwargs: Arguments of the module behind the mixin.
    """

    reductions: ClassVar[Mapping[str, str]] = {"weights": "stack", "train_accuracy": "stack"}
    owns = frozenset({"aggregation rule"})

    def __init__(self, by_samples: bool = False, intrac: bool = False, cap: float = 1000.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if cap < 1:
            raise ConfigurationError(f"`cap={cap}` must be at least 1: 1 gives every client the same weight.")
        self.by_samples, self.intrac, self.cap = by_samples, intrac, cap

    def on_client_end(self) -> Payload:
        """Add the training accuracy where INTRAC wants it."""
        upload = super().on_client_end()
        return {**upload, "train_accuracy": self._train_accuracy()} if self.intrac else upload

    def aggregate(self, uploads: Payload) -> None:
        """Average trained weights by inverse distance, and buffers by samples."""
        models: dict[int, Weights] = uploads["weights"]
        trained = [n for n in self.trainable() if n in next(iter(models.values()))]
        weights = self._inverse_distances([[model[n] for n in trained] for model in models.values()])
        if self.by_samples:
            weights = weights * torch.tensor([float(self.federated_data.sizes[k]) for k in models], dtype=torch.float64)
        if self.intrac:
            accuracies = torch.stack([a.double().cpu() for a in uploads["train_accuracy"].values()])
            weights = weights / accuracies.clamp(min=1 / len(models))
        buffers = {k: {n: w for n, w in model.items() if n not in trained} for k, model in models.items()}
        parameters = {k: {n: model[n] for n in trained} for k, model in models.items()}
        new = average(buffers, self.cohort_weights) | average(
            parameters, dict(zip(models, weights.tolist(), strict=True))
        )
        super().aggregate({**uploads, "weights": new})

    def _inverse_distances(self, models: list[list[Tensor]]) -> Tensor:
        means = [torch.stack([t.double() for t in tensors]).mean(0) for tensors in zip(*models, strict=True)]
        distances = torch.tensor(
            [sum(float((t - m).abs().sum()) for t, m in zip(w, means, strict=True)) for w in models],
            dtype=torch.float64,
        )
        if not distances.any():  # all models are equal
            return torch.ones_like(distances)
        return 1 / distances.clamp(min=distances.max() / self.cap)

    @torch.no_grad()
    def _train_accuracy(self) -> Tensor:
        correct, count = 0.0, 0
        head = self.get_submodule(self.feature_layer)
        for features, targets in self.client_features():
            with self.trainer.precision_plugin.forward_context():
                logits = head(features)
            correct += float((logits.argmax(-1) == targets).sum())
            count += len(targets)
        return torch.tensor(correct / max(count, 1), device=self.device)


class IDA(IDAMixin, Classifier):
    """IDA on the built-in classifier."""
