r"""FedDyn: a regularization term that each client renews so that local optima meet at the global one.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1.
https://arxiv.org/abs/2111.04263
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torchmetrics import Metric

from flightning.algorithms.drift import DriftMixin, whole_model
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload

__all__ = ["FedDyn", "FedDynMixin"]


class FedDynMixin(DriftMixin):
    r"""Add :math:`-\langle g_k, \theta \rangle + \frac{\alpha_k}{2} \lVert \theta - w^t \rVert^2` to the client loss.

    :math:`g_k` approaches the client's gradient at the global optimum. It is kept as the drift
    :math:`d_k = -g_k / \alpha_k`, the sum of the client's movements, and the server's :math:`h` as the mean drift
    :math:`-h / \alpha` of all clients, which is added to the mean of the cohort. :math:`\alpha_k` is :math:`\alpha`
    divided by the client's weight relative to the mean client, so that `federation.weighting` decides what is minimised
    although the parameters of the cohort are averaged uniformly.

    Args:
        alpha: Strength :math:`\alpha`, above 0. Large values freeze the clients; there is no neutral value.
        log_cohort_mean: Whether to validate the plain mean of the cohort, too, as ``val/cohort_mean_<name>``; left out
            for a module with metrics that accumulate (torchmetrics), and where clients keep weights of their own.
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> class FedDynBoring(FedDynMixin, BoringModel): ...
        >>> FedDynBoring(alpha=0.1).hparams.alpha
        0.1
    """

    reductions: ClassVar[Mapping[str, str]] = {"weights": "uniform"}
    owns = frozenset({"drift correction", "aggregation rule"})

    def __init__(self, alpha: float = 0.01, log_cohort_mean: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if alpha <= 0:
            raise ConfigurationError(f"`alpha={alpha}` must be above 0: use FedAvg for no regularization.")
        self.alpha, self.log_cohort_mean = alpha, log_cohort_mean
        self.add_server_state("drift", self.zeros_like_parameters)
        self.add_server_state("cohort_mean", dict)
        self._log_prefix = ""

    def drift_strength(self) -> float:
        r"""The client's :math:`\alpha_k`."""
        return self.alpha / self.relative_weight

    def aggregate(self, uploads: Payload) -> None:
        r"""Renew :math:`h`, with one over the number of all clients, and set :math:`w = \bar\theta - h / \alpha`."""
        kinds = self.global_weights
        self.server_state.cohort_mean = {n: m.to(kinds[n].dtype) for n, m in whole_model(uploads).items()}
        super().aggregate({**uploads, "weights": self.with_mean_drift(uploads["weights"])})

    def validation_step(self, *args: Any) -> Any:
        """Validate the global weights, then the mean of the cohort."""
        output = super().validation_step(*args)
        mean = self.server_state.cohort_mean
        if self.log_cohort_mean and mean and not self.has_personal_weights and not self._accumulates:
            self.load_weights(mean)
            self._log_prefix = "cohort_mean_"
            super().validation_step(*args)
            self._log_prefix = ""
            self.load_global_weights()
        return output

    @property
    def _accumulates(self) -> bool:
        return any(isinstance(m, Metric) for m in self.modules())

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Tell apart what belongs to the mean of the cohort."""
        stage, slash, what = name.rpartition("/")
        super().log(f"{stage}{slash}{self._log_prefix}{what}", value, *args, **kwargs)


class FedDyn(FedDynMixin, Classifier):
    """FedDyn on the built-in classifier."""
