r"""FedDC: learn the drift of each client, and average what is left when it is taken out.

Gao et al., "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction", CVPR 2022,
Eqs. 3-8, with the gradient states of the authors' code. https://arxiv.org/abs/2203.11751
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from flightning.algorithms.base import Weights
from flightning.algorithms.drift import DriftMixin
from flightning.algorithms.local_optimizer import LocalOptimizer
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload
from flightning.functional.distance import flatten
from flightning.functional.linear import linear_form

__all__ = ["FedDC", "FedDCMixin"]


class FedDCMixin(DriftMixin):
    r"""Add :math:`\frac{\alpha}{2} \lVert \theta - (w - h_k) \rVert^2 + \langle \theta, g - g_k \rangle` to the loss.

    The drift :math:`h_k` sums up the movements of the client; its mean gradient
    :math:`g_k^+ = g_k - g + (w - \theta_k) / (A \eta)` has SCAFFOLD's :math:`A`. The server keeps the means :math:`g`
    and :math:`\bar h` over all clients and sets :math:`w = \bar\theta + \bar h`; the length of :math:`\bar h` is logged
    as ``round/drift``. A client of relative weight :math:`\hat w_k` (1 with `federation.weighting: uniform`) uses
    :math:`\alpha / \hat w_k` and :math:`g / \hat w_k`, and the cohort is averaged uniformly.

    Args:
        alpha: Strength :math:`\alpha`, at least 0; ``0`` leaves the linear term alone.
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> class FedDCBoring(FedDCMixin, BoringModel): ...
        >>> FedDCBoring(alpha=0.1).hparams.alpha
        0.1
    """

    reductions: ClassVar[Mapping[str, str]] = {"weights": "uniform", "gradient": "sum"}
    owns = frozenset({"drift correction", "aggregation rule"})

    def __init__(self, alpha: float = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if alpha < 0:
            raise ConfigurationError(f"`alpha={alpha}` must be at least 0: use 0 for no pull to the global weights.")
        self.alpha = alpha
        self.add_server_state("drift", self.zeros_like_parameters)
        self.add_server_state("gradient", self.zeros_like_parameters)
        self.add_client_state("gradient", self.zeros_like_parameters)

    def on_federation_start(self) -> None:
        """Refuse an optimizer whose steps do not tell the gradient."""
        super().on_federation_start()
        if self.trainer.state.fn == "fit":
            local = LocalOptimizer(self.trainer.optimizers[0], self.trainable())
            if not local.is_heavy_ball:
                raise ConfigurationError(
                    f"FedDC reads the mean gradient from the local steps, which those of `{local.name}` do not tell: "
                    "use SGD, with momentum if you like, but without `nesterov` and `maximize`."
                )

    def download(self, client: int) -> Payload:
        """Send the server's gradient state, too."""
        gradient = self.server_state.gradient
        return {**super().download(client), "gradient": {n: gradient[n] for n in self.shared_parameters()}}

    def drift_strength(self) -> float:
        r"""The client's :math:`\alpha / \hat w_k`."""
        return self.alpha / self.relative_weight

    def on_client_start(self, download: Payload) -> None:
        """Prepare the coefficients of the linear term, which are the same in all local steps."""
        super().on_client_start(download)
        if "gradient" in download:  # else it is the second exchange of a round, without training
            own = self.client_state.gradient
            self._local = LocalOptimizer(self.trainer.optimizers[0], self._live)
            self._linear = {n: download["gradient"][n] / self.relative_weight - own[n] for n in self._live}

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """Eq. 3 without the data term."""
        linear = linear_form(list(self._live.values()), list(self._linear.values()))
        return {**super().regularization(batch), "linear": linear}

    def on_client_end(self) -> Payload:
        """Renew drift and gradient state."""
        old, seen = self.client_state.gradient, self._seen(self._live)
        self.client_state.gradient = {**old, **{n: g - self._linear[n] for n, g in seen.items()}}
        return super().on_client_end()

    def _seen(self, end: Mapping[str, Tensor]) -> Weights:
        travels = self._local.travels(self._training_client.step_sizes)
        return self._local.mean_gradient(self._start, {n: end[n] for n in self._live}, travels)

    def receive(self, upload: Payload) -> Payload:
        r"""Add the change of the gradient state, :math:`(w - \theta_k) / (A \eta) - g / \hat w_k`, times the share."""
        upload, share = super().receive(upload), self._training_client.share
        seen, mean = self._seen(upload["weights"]), self.server_state.gradient
        change = {n: share * g - mean[n] / self.num_training_clients for n, g in seen.items()}
        return {**upload, "gradient": {n: change.get(n, torch.zeros_like(mean[n])) for n in self._live}}

    def aggregate(self, uploads: Payload) -> None:
        """Mean of the cohort plus mean drift of all clients."""
        old = self.server_state.gradient
        gradient = {n: (old[n] + change).to(old[n].dtype) for n, change in uploads["gradient"].items()}
        self.server_state.gradient = {**old, **gradient}
        weights = self.with_mean_drift(uploads["weights"])
        self.round_metrics["round/drift"] = float(flatten(self.server_state.drift.values()).norm())
        super().aggregate({**uploads, "weights": weights})


class FedDC(FedDCMixin, Classifier):
    """FedDC on the built-in classifier."""
