r"""FedNova: normalise each client's movement by its local work, so that many local steps do not weigh more.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020,
Eqs. 8-10 and Theorem 1. https://arxiv.org/abs/2007.07481
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from flightning.algorithms.fedprox import FedProxMixin
from flightning.algorithms.local_optimizer import LocalOptimizer
from flightning.algorithms.server_step import check_decay
from flightning.classifier import Classifier
from flightning.functional.aggregation import Payload

__all__ = ["FedNova", "FedNovaMixin"]


class FedNovaMixin(FedProxMixin):
    r"""Average :math:`d_k = (w^t - w_k) / (\eta \lVert a_k \rVert_1)` and move by the mean local work.

    :math:`\eta \lVert a_k \rVert_1` is how far the client's optimizer, whichever it is, moves a weight in its local
    steps under a constant gradient of 1: :math:`\eta K_k` for SGD, :math:`\eta A_k` with momentum, less with a proximal
    term. For Adam and others it is measured on a single number.

    Args:
        mu: Strength of FedProx' proximal term in the local problem, at least 0; ``0`` for none.
        gamma: Slow momentum of the server :math:`\gamma` in [0, 1); ``0`` for none.
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> class FedNovaBoring(FedNovaMixin, BoringModel): ...
        >>> FedNovaBoring().hparams.mu
        0.0
    """

    reductions: ClassVar[Mapping[str, str]] = {"work": "mean"}
    owns = frozenset({"aggregation rule"})

    def __init__(self, mu: float = 0.0, gamma: float = 0.0, **kwargs: Any) -> None:
        super().__init__(mu=mu, **kwargs)
        self.gamma = check_decay("gamma", gamma, "for no server momentum")
        self.add_server_state("momentum", self.zeros_like_parameters)

    def on_round_start(self) -> None:
        """Take the optimizer's settings before a scheduler changes them."""
        super().on_round_start()
        self._local = LocalOptimizer(self.trainer.optimizers[0], self.trainable())

    def on_client_end(self) -> Payload:
        r"""Send :math:`d_k` in place of the weights, and one number: the work without the proximal term."""
        upload = super().on_client_end()
        live, sizes = self.shared_parameters(), self._training_client.step_sizes
        moved = self._local.mean_gradient(self.global_weights, live, self._local.travels(sizes, self.mu))
        normalised = {n: moved.get(n, torch.zeros_like(p)).detach() for n, p in live.items()}
        dtype = torch.promote_types(next(iter(live.values())).dtype, torch.float32)
        work = torch.tensor(self._local.travels(sizes), dtype=dtype, device=self.device)
        return {**upload, "weights": {**upload["weights"], **normalised}, "work": work}

    def aggregate(self, uploads: Payload) -> None:
        r"""Eq. 9: :math:`w \leftarrow w - \tau_{\mathrm{eff}} \sum_k p_k d_k`, with slow momentum if asked for."""
        mean, group_of = uploads["weights"], self._local.group_of
        direction = {n: d for n, d in mean.items() if n in group_of}
        step = {n: uploads["work"][group_of[n]] * d for n, d in direction.items()}
        if self.gamma:
            kept, rates = self.server_state.momentum, [float(s["lr"]) for s in self._local.settings]
            slow = {n: self.gamma * kept[n] + s / (rates[group_of[n]] or 1.0) for n, s in step.items()}
            self.server_state.momentum = {**kept, **{n: u.to(kept[n].dtype) for n, u in slow.items()}}
            step = {n: rates[group_of[n]] * u for n, u in slow.items()}
        new = {n: self.global_weights[n] - s for n, s in step.items()}
        super().aggregate({**uploads, "weights": {**mean, **new}})


class FedNova(FedNovaMixin, Classifier):
    """FedNova on the built-in classifier."""
