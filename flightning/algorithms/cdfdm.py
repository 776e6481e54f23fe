r"""CDFDM: warm up on shared data, then aggregate by attention and pull the global weights toward the warm-up model.

Chai et al., "Cross-Domain Federated Data Modeling on Non-IID Data", Computational Intelligence and Neuroscience 2022,
Eq. 1 to 6.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import torch

from flightning.algorithms.base import Weights
from flightning.algorithms.fedatt import FedAttMixin
from flightning.algorithms.server_data import ServerDataMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError, check_choice
from flightning.functional.attention import READINGS, attention, attentive_step, layer_distances

__all__ = ["CDFDM", "CDFDMMixin"]


class CDFDMMixin(FedAttMixin, ServerDataMixin):
    r"""Set :math:`g^i \leftarrow g^i - \lambda [\sum_k \alpha_k^i (g^i - \ell_k^i) + \mu\beta^i (g^i - M_s^i)]`.

    Each client first receives samples of the server in proportion to its own. The first rounds are plain FedAvg with
    uniform weights; the model they end with is :math:`M_s`. They are rounds of the log, with ``round/warmup`` 1.

    Args:
        lambda_: Step size :math:`\lambda`, > 0.
        mu: Strength :math:`\mu \ge 0` of the pull toward the shared model. ``0`` is FedAtt after the warm-up.
        shared_ratio: Shared samples of a client, relative to its own, in [0, 1]. ``0`` hands out none.
        warmup_rounds: Rounds that make the shared model. ``0`` takes the initial weights for it.
        beta: How the attention of the shared model is read, see :func:`flightning.functional.attention.attention`.
        stage_data: What clients train on after the warm-up: ``fused`` (own and shared samples) or ``private``.
        normalise_step: Divide :math:`\lambda` by :math:`1 + \mu\beta`, which makes ``lambda_ <= 1`` convex.
        dp: Standard deviation of noise on the new weights. ``0`` adds none.
        **kwargs: Arguments of FedAtt other than ``epsilon``, and of the module behind the mixin.
    """

    def __init__(
        self,
        lambda_: float = 1.0,
        mu: float = 0.1,
        shared_ratio: float = 0.3,
        warmup_rounds: int = 10,
        beta: Literal["separate", "joint", "layers", "one"] = "separate",
        stage_data: Literal["fused", "private"] = "fused",
        normalise_step: bool = False,
        dp: float = 0.0,
        **kwargs: Any,
    ) -> None:
        if lambda_ <= 0:
            raise ConfigurationError(f"`lambda_={lambda_}` must be above 0: 1 moves to the attentive mean.")
        if mu < 0:
            raise ConfigurationError(f"`mu={mu}` must be at least 0: use 0 for no pull toward the shared model.")
        if not 0 <= shared_ratio <= 1:
            raise ConfigurationError(f"`shared_ratio={shared_ratio}` must lie in [0, 1]: use 0.3 for the paper's.")
        if warmup_rounds < 0:
            raise ConfigurationError(f"`warmup_rounds={warmup_rounds}` must be at least 0: use 0 for no warm-up.")
        check_choice("beta", beta, READINGS)
        check_choice("stage_data", stage_data, ("fused", "private"))
        super().__init__(epsilon=lambda_, dp=dp, **kwargs)
        self.mu, self.shared_ratio, self.warmup_rounds = mu, shared_ratio, warmup_rounds
        self.beta, self.stage_data, self.normalise_step = beta, stage_data, normalise_step
        self.add_server_state("shared_model", dict)

    def on_federation_start(self) -> None:
        """Hand out shared samples by the size of each client (section 3.1)."""
        super().on_federation_start()
        if self.warmup_rounds >= self.num_rounds > 0:
            warnings.warn(
                f"all {self.num_rounds} rounds are warm-up (`warmup_rounds={self.warmup_rounds}`): raise "
                "`trainer.max_epochs`, or lower `warmup_rounds`, to see attention.",
                stacklevel=2,
            )
        if self.stage_data == "fused" or self.round_index < self.warmup_rounds:
            self._hand_out_by_size()

    def _hand_out_by_size(self) -> None:
        own = [len(part) for part in self.federated_data.own_parts]
        wanted = [round(self.shared_ratio * size) for size in own]
        if max(wanted) > len(self.shared):
            warnings.warn(
                f"a client asks for {max(wanted)} shared samples and the server owns {len(self.shared)}: it gets them "
                "all. Raise `data.shared_fraction`, or lower `shared_ratio`.",
                stacklevel=2,
            )
        for client, count in enumerate(wanted):
            self.hand_out(client, min(count, len(self.shared)))

    def on_round_start(self) -> None:
        """Keep the model at the end of the warm-up as shared model."""
        super().on_round_start()
        self.round_metrics["round/warmup"] = float(self.round_index < self.warmup_rounds)
        if self.round_index == self.warmup_rounds:
            self.server_state.shared_model = {n: self.global_weights[n].clone() for n in self.trainable()}

    def attend(self, names: list[str], models: list[Weights]) -> Weights:
        """Eq. 1 in the warm-up, Eq. 6 afterwards."""
        if self.round_index < self.warmup_rounds:
            return {n: torch.stack([model[n].double() for model in models]).mean(dim=0) for n in names}
        if self.mu == 0:
            return super().attend(names, models)
        reference, shared = (
            [weights[n] for n in names] for weights in (self.global_weights, self.server_state.shared_model)
        )
        distances = layer_distances(reference, [*([model[n] for n in names] for model in models), shared])
        alpha, beta = attention(
            distances[:-1],
            distances[-1],
            temperature=self.att_temperature,
            sign=self.att_sign,
            reading=self.beta,
        )
        new = {}
        for i, name in enumerate(names):
            pull = self.mu * beta[i], shared[i]
            layers = [model[name] for model in models]
            new[name] = attentive_step(reference[i], layers, alpha[:, i], self.epsilon, pull, self.normalise_step)
        return self.add_noise(new) if self.dp else new

    def on_train_epoch_end(self) -> None:
        """Take the shared samples back after the warm-up, where only private data is wanted."""
        super().on_train_epoch_end()
        # not in `on_round_end`: a run that resumes behind a validation ends this round again, and needs its batches
        if self.stage_data == "private" and self.round_index + 1 == self.warmup_rounds:
            for client in range(self.num_clients):
                self.federated_data.give(client, np.zeros(0, dtype=np.int64))


class CDFDM(CDFDMMixin, Classifier):
    """CDFDM on the built-in classifier."""
