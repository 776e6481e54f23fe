"""What a client of FedCD does: its prototypes, its rebalanced set and the four losses (Eq. 2 to 11)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flightning.algorithms.base import FederatedMixin
from flightning.algorithms.fine_classifier import FineClassifier, RebalancedSet
from flightning.algorithms.local_optimizer import step_apart
from flightning.functional import prototypes as fine
from flightning.functional.aggregation import Payload
from flightning.functional.losses import (
    decoupled_distillation,
    distillation,
    hierarchical_log_weights,
    prototype_contrast,
)
from flightning.functional.seeding import torch_generator

__all__ = ["FedCDLocalMixin"]

_START, _DRAW = 31, 33


class FedCDLocalMixin(FederatedMixin):
    """Client half of `flightning.algorithms.FedCDMixin`, which takes and documents the arguments."""

    alpha: float
    tau: float
    per_class: int
    lambda_: float
    gamma: float
    xi: float
    mu: float | None
    hpc: bool
    distillation: str
    classifier_rule: str
    rebalance: str
    missing_slots: str
    unseen: str
    counts_at: str
    temperature: float
    first_round: int
    prototype_lr: float
    uses_prototypes: bool
    classifier_layer: str
    prototypes: nn.Parameter

    @property
    def _head(self) -> FineClassifier:
        return self.get_submodule(self.classifier_layer)  # type: ignore[return-value]

    def _global_logits(self, features: Tensor) -> Tensor:
        rows, bias = (self.global_weights.get(f"{self.feature_layer}.{n}") for n in ("weight", "bias"))
        return self._head.with_rows(features, rows, bias)

    @property
    def task_weight(self) -> float:
        r"""The weight :math:`\mu_t` of the task in this round."""
        return 1 - (self.round_index + self.first_round) / self.num_rounds if self.mu is None else self.mu

    @property
    def _counts_at_start(self) -> bool:
        return self.hpc and self.counts_at == "start"

    def on_federation_start(self) -> None:
        """Let the prototypes be stepped at their own rate, without weight decay."""
        super().on_federation_start()
        if self.hpc and self.trainer.state.fn == "fit":
            optimizer = self.trainer.optimizers[0]
            if self.prototype_lr != 1 or any(g.get("weight_decay") for g in optimizer.param_groups):
                step_apart(optimizer, self.prototypes, self.prototype_lr)

    def on_client_start(self, download: Payload) -> None:
        """Start from the global prototypes, or in the first round from k-means, and count the samples of each."""
        super().on_client_start(download)
        self._rebalanced: RebalancedSet | None = None
        if not self.uses_prototypes:
            return
        if "prototypes" in download:
            reference = self._start_new_classes(download["prototypes"])
            self._scoring = fine.scoring(reference)
            self._own_counts = self._clusters()[1] if self._counts_at_start else None
            self._rebalance(download)
        else:
            reference, self._own_counts = self._start_from_clusters(*self._features())
            self._scoring = fine.scoring(reference, cosine=False)
        self._known = reference.ne(0).any(dim=-1)
        present = self._known if self.unseen == "keep" else torch.ones_like(self._known)
        self._present, self._log_weights = present.flatten(), hierarchical_log_weights(present, self.alpha)
        with torch.no_grad():
            self.prototypes.copy_(reference)

    def _rebalance(self, download: Payload) -> None:
        if self.rebalance == "none":
            return
        client, seed = self._training_client, self.federated_data.seed
        draws = torch_generator(seed, self.round_index, client.id, _DRAW) if self.rebalance == "dataset" else None
        self._rebalanced = RebalancedSet(download["prototypes"], download["counts"], client.num_samples, draws)
        self._teacher_on_prototypes = self._global_logits(self._rebalanced.points)

    def _start_from_clusters(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        generator = torch_generator(self.federated_data.seed, self._training_client.id, _START)
        classes, fill = len(self.prototypes), self.missing_slots == "duplicate"
        return fine.initial_prototypes(features, labels, classes, self.per_class, generator, fill)

    def _start_new_classes(self, prototypes: Tensor) -> Tensor:
        """Begin classes that no cohort has had so far as in the first round: from nothing they could not be learned."""
        new = fine.unset_classes(prototypes)
        if not new.any():
            return prototypes
        features, labels = self._features()
        own = new[labels]
        return torch.where(new[:, None, None], self._start_from_clusters(features[own], labels[own])[0], prototypes)

    def _features(self) -> tuple[Tensor, Tensor]:
        pairs = list(self.client_features())
        return torch.cat([z.float() for z, _ in pairs]), torch.cat([y for _, y in pairs])

    def _clusters(self) -> tuple[Tensor, Tensor]:
        """Mean feature and number of the client's samples of each fine class, with the live weights."""
        z, y = self._features()
        return fine.cluster_means(z, y, fine.assign_by(z, y, *self._scoring), self.prototypes.shape)

    def task_loss(self, loss: Tensor, batch: Any) -> Tensor:
        """Eq. 10: the samples of the batch and the global prototypes, by importance."""
        loss, extra = super().task_loss(loss, batch), self._rebalanced
        if extra is not None:
            extra.weigh(len(self.penultimate))
            self._on_prototypes = self._head.with_rows(extra.points)  # not by a call, which the hooks would keep
            losses = F.cross_entropy(self._on_prototypes, extra.labels, reduction="none")
            loss = extra.share * loss + (extra.weights * losses).sum()
        return loss if self.task_weight == 1 else self.task_weight * loss

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """Eq. 5, 7 and 9."""
        terms = super().regularization(batch)
        z, y = self.penultimate, self.split_batch(batch)[1]
        if self.hpc:
            weight = 1 - self.task_weight
            # in a round without contrast the prototypes still take part: DDP waits for every gradient
            terms["hpc"] = weight * self._contrast(z, y) if weight else 0.0 * self.prototypes.sum()
        if self.gamma:
            terms["bpr"] = self.gamma * self._regularize_batch(z, y)
        if self.lambda_:
            terms["gid"] = self.lambda_ * self._distil(z, y)
        return terms

    def _regularize_batch(self, z: Tensor, y: Tensor) -> Tensor:
        means, counts = fine.class_means(z, y, len(self.prototypes))
        classes, present = torch.arange(len(means), device=z.device), counts.clamp_max(1)
        losses = F.cross_entropy(self._global_logits(means), classes, reduction="none")
        return (present * losses).sum() / present.sum()

    def _contrast(self, z: Tensor, y: Tensor) -> Tensor:
        owners, extra = y * self.per_class + fine.assign_by(z.detach(), y, *self._scoring), self._rebalanced
        if extra is None:
            importance = self._present[owners]
        else:
            owners, importance = torch.cat([owners, extra.owners]), extra.importance(len(z))
            importance, z = importance * self._present[owners], torch.cat([z, extra.points])
        # the cosine with 0 has no slope; normalising would make one of 1e12
        prototypes = (self.prototypes * self._known[..., None]).flatten(0, 1)
        return prototype_contrast(z, owners, prototypes, self._log_weights, tau=self.tau, importance=importance)

    def _distil(self, z: Tensor, y: Tensor) -> Tensor:
        student, extra, t = self.layer_output(self.classifier_layer), self._rebalanced, self.temperature
        with torch.no_grad():
            teacher = self._global_logits(z)
        if extra is not None:
            student, y = torch.cat([student, self._on_prototypes]), torch.cat([y, extra.labels])
            teacher = torch.cat([teacher, self._teacher_on_prototypes])
        if self.distillation == "plain":
            losses = distillation(student, teacher, t)
        else:
            losses = t**2 * decoupled_distillation(student / t, teacher / t, y, self.xi)
        return losses.mean() if extra is None else (extra.importance(len(z)) * losses).sum()

    def on_client_end(self) -> Payload:
        """Send the rows of the classifier, the prototypes and their counts beside the other weights."""
        upload = super().on_client_end()
        if self.classifier_rule != "fedavg":
            weights = dict(upload["weights"])
            rows = [n for n in weights if n.startswith(self.feature_layer)]
            upload["weights.classifier"] = {n: weights.pop(n) for n in rows}
            upload["weights"] = weights
        if self.uses_prototypes:
            means, counts = (None, self._own_counts) if self._counts_at_start else self._clusters()
            upload["prototypes"] = self.prototypes.detach() if self.hpc else means
            upload["counts"] = counts
        return upload
