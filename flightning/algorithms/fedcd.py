r"""FedCD: debias the classifier with several prototypes per class that clients learn and the server pools.

Long et al., "FedCD: A Classifier Debiased Federated Learning Framework for Non-IID Data", ACM MM 2023, Eq. 1 to 15.
https://doi.org/10.1145/3581783.3611966
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from flightning.algorithms.base import Weights
from flightning.algorithms.client import at_least_float32
from flightning.algorithms.fedcd_local import FedCDLocalMixin
from flightning.algorithms.fine_classifier import refine_classifier
from flightning.classifier import ProjectedClassifier
from flightning.errors import ConfigurationError, check_choice
from flightning.functional import prototypes as fine
from flightning.functional.aggregation import Payload
from flightning.functional.seeding import torch_generator

__all__ = ["FedCD", "FedCDMixin"]

_ALIGN = 32


class FedCDMixin(FedCDLocalMixin):
    r"""Minimise :math:`\mu_t L_{dcl} + (1 - \mu_t) L_{hpc} + \gamma L_{bpr} + \lambda L_{gid}` and pool class by class.

    :math:`L_{dcl}` is the task's loss on the rebalanced set: the client's samples and the global prototypes
    :math:`P^g_{c,m}`, each as often as :math:`n_{c,m}` samples stand behind it. The last `Linear` of the module is
    replaced by one with ``M`` rows per class. The extras off (``mu=1``, ``lambda_=gamma=0``, ``hpc=False``,
    ``rebalance="none"``, ``classifier="fedavg"``, ``M=1``, ``bias=True``) it is FedAvg.

    Args:
        alpha: Weight of the other prototypes of the same class in :math:`L_{hpc}`, in [0, 1].
        tau: Temperature of :math:`L_{hpc}`, > 0.
        M: Prototypes, and rows of the classifier, per class, >= 1.
        lambda_: Weight :math:`\lambda` of the distillation :math:`L_{gid}`. ``0`` is none (ablation -dkd).
        gamma: Weight :math:`\gamma` of the batch prototype regularization :math:`L_{bpr}`. ``0`` is none (-bpr).
        xi: Weight :math:`\xi` of the other classes in the decoupled distillation.
        mu: Weight of the task in [0, 1]; ``None`` lets it fall, :math:`\mu_t = 1 - t / T`.
        hpc: Whether prototypes are learned by :math:`L_{hpc}`; ``False``: they are means of features (-hpc).
        distillation: ``decoupled``, or ``plain`` divergence of the predictions (ablation /kd).
        classifier: Rows are averaged by quality (``adaptive``), by samples of the fine class (``counts``, /cla), or
            all by samples (``fedavg``, -acla).
        rebalance: Global prototypes are added to every batch, scaled to estimate the sum over the rebalanced set
            (``append``), drawn like samples (``dataset``), or not used (``none``).
        readout: The matrix W on logits (``logit_sum``, literal; ``logit_mean``) or probabilities (``prob_sum``).
        alignment: How clusters of the first round are matched over clients: ``hungarian``, ``index`` or ``kmeans``.
        missing_slots: Clusters that a class with fewer than M samples lacks: ``mask`` or ``duplicate``.
        unseen: Prototypes without a sample in the cohort: ``keep`` (masked if never set) or ``zero``.
        counts_at: Whether :math:`n^k_{c,m}` is counted at the ``start`` or the ``end`` of the local steps; at the end
            where prototypes are means of features.
        temperature: Temperature of the distillation, > 0; the loss is multiplied by its square.
        first_round: Number :math:`t` of the first round in :math:`\mu_t`: 0, or 1, which ends without the task.
        bias: Whether the rows of the classifier have a bias.
        prototype_lr: Learning rate of the prototypes relative to the optimizer's; they never decay.
        **kwargs: Arguments of the module behind the mixin.
    """

    reductions: ClassVar[Mapping[str, str]] = {
        "prototypes": "stack",
        "counts": "stack",
        "weights.classifier": "stack",
    }

    def __init__(
        self,
        alpha: float = 0.1,
        tau: float = 1.0,
        M: int = 3,
        lambda_: float = 0.1,
        gamma: float = 0.1,
        xi: float = 0.5,
        mu: float | None = None,
        hpc: bool = True,
        distillation: Literal["decoupled", "plain"] = "decoupled",
        classifier: Literal["adaptive", "counts", "fedavg"] = "adaptive",
        rebalance: Literal["append", "dataset", "none"] = "append",
        readout: Literal["logit_sum", "logit_mean", "prob_sum"] = "logit_sum",
        alignment: Literal["hungarian", "index", "kmeans"] = "hungarian",
        missing_slots: Literal["mask", "duplicate"] = "mask",
        unseen: Literal["keep", "zero"] = "keep",
        counts_at: Literal["start", "end"] = "start",
        temperature: float = 1.0,
        first_round: Literal[0, 1] = 0,
        bias: bool = False,
        prototype_lr: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, number, low, high in (
            ("alpha", alpha, 0, 1),
            ("mu", 1.0 if mu is None else mu, 0, 1),
            ("tau", tau, 1e-6, math.inf),
            ("M", M, 1, math.inf),
            ("lambda_", lambda_, 0, math.inf),
            ("gamma", gamma, 0, math.inf),
            ("xi", xi, 0, math.inf),
            ("temperature", temperature, 1e-6, math.inf),
            ("prototype_lr", prototype_lr, 0, math.inf),
        ):
            if not low <= number <= high:
                raise ConfigurationError(
                    f"`{name}={number}` must lie between {low} and {high}: leave it out for the default."
                )
        for name, value, known in (
            ("distillation", distillation, ("decoupled", "plain")),
            ("classifier", classifier, ("adaptive", "counts", "fedavg")),
            ("rebalance", rebalance, ("append", "dataset", "none")),
            ("readout", readout, fine.READOUTS),
            ("alignment", alignment, fine.ALIGNMENTS),
            ("missing_slots", missing_slots, ("mask", "duplicate")),
            ("unseen", unseen, ("keep", "zero")),
            ("counts_at", counts_at, ("start", "end")),
            ("first_round", first_round, (0, 1)),
        ):
            check_choice(name, value, known)
        self.alpha, self.tau, self.per_class, self.xi, self.mu = alpha, tau, M, xi, mu
        self.lambda_, self.gamma, self.hpc = lambda_, gamma, hpc
        self.distillation, self.temperature = distillation, temperature
        self.classifier_rule, self.rebalance, self.readout, self.alignment = classifier, rebalance, readout, alignment
        self.missing_slots, self.unseen, self.counts_at = missing_slots, unseen, counts_at
        self.first_round, self.prototype_lr = first_round, prototype_lr
        self.uses_prototypes = hpc or rebalance != "none" or classifier != "fedavg"
        self.classifier_layer = refine_classifier(self, M, readout, bias)
        shape = self._head.fine.out_features // M, M, self._head.fine.in_features
        self.prototypes = nn.Parameter(torch.zeros(shape), requires_grad=hpc)
        self.add_server_state("prototypes", lambda: torch.zeros(shape, device=self.device))
        self.add_server_state("counts", lambda: torch.zeros(shape[:2], device=self.device))

    def is_shared(self, name: str) -> bool:
        """Prototypes travel under their own name."""
        return name != "prototypes" and super().is_shared(name)

    def is_personal(self, name: str) -> bool:
        """Prototypes start from the server's in every round."""
        return name != "prototypes" and super().is_personal(name)

    def on_federation_start(self) -> None:
        """Look at features and logits."""
        super().on_federation_start()
        if self.rebalance == "dataset" and self.federated_data.batch_shard[1] > 1:
            raise ConfigurationError(
                "`rebalance='dataset'` draws prototypes by the size of a batch, and under `ddp` every process sees a "
                "part of it: set `rebalance: append`, or `trainer.strategy` to `client_parallel`."
            )
        self.watch_layers(self.feature_layer, self.classifier_layer)

    def download(self, client: int) -> Payload:
        """Send the global prototypes and their counts, once there are any."""
        payload = super().download(client)
        if self.uses_prototypes and self.server_state.prototypes.any():
            payload.update(prototypes=self.server_state.prototypes, counts=self.server_state.counts)
        return payload

    def aggregate(self, uploads: Payload) -> None:
        """Pool prototypes (Eq. 1), then the rows of the classifier by the new ones (Eq. 12 to 15)."""
        weights = dict(uploads["weights"])
        if self.uses_prototypes:
            own, counts = (torch.stack(list(uploads[n].values())).double() for n in ("prototypes", "counts"))
            counts = self._pool(own, counts)
        if self.classifier_rule != "fedavg":
            weights |= self._pool_rows(list(uploads["weights.classifier"].values()), counts.flatten(1))
        super().aggregate({**uploads, "weights": weights})

    def _pool(self, own: Tensor, counts: Tensor) -> Tensor:
        """Pool prototypes and return the counts (K, C, M) in the order of the pooled ones."""
        previous = self.server_state.prototypes.double()
        kept = previous if self.unseen == "keep" else torch.zeros_like(previous)
        pooled, total = fine.pool_prototypes(own, counts, kept), counts.sum(dim=0)
        new = fine.unset_classes(previous)  # in the first round all of them
        if new.any():
            generator = torch_generator(self.federated_data.seed, _ALIGN)
            own, aligned = fine.align_prototypes(own[:, new], counts[:, new], self.alignment, generator)
            pooled[new], total[new] = fine.pool_prototypes(own, aligned, kept[new]), aligned.sum(dim=0)
            if self.alignment != "kmeans":  # whose clusters are those of nobody
                counts = counts.clone()
                counts[:, new] = aligned
        kind = at_least_float32(self.prototypes)
        self.server_state.prototypes, self.server_state.counts = pooled.to(kind), total.to(kind)
        return counts

    def _pool_rows(self, classifiers: list[Weights], counts: Tensor) -> Weights:
        stacks = {n: torch.stack([c[n] for c in classifiers]).double() for n in classifiers[0]}
        if self.classifier_rule == "counts":
            share = fine.count_row_weights(counts)
        else:
            points = self.server_state.prototypes.flatten(0, 1).double()
            rows, bias = (stacks.get(f"{self.feature_layer}.{n}") for n in ("weight", "bias"))
            share = fine.adaptive_row_weights(rows, points, bias)  # type: ignore[arg-type]
        return {n: torch.einsum("kj,kj...->j...", share, stack) for n, stack in stacks.items()}


class FedCD(FedCDMixin, ProjectedClassifier):
    """FedCD on the built-in classifier with MOON's projection head."""
