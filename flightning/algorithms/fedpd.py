r"""FedPD: a primal-dual method that may skip communication.

Zhang et al., "FedPD: A Federated Learning Framework with Optimal Rates and Adaptivity to Non-IID Data", IEEE
Transactions on Signal Processing 2021, Algorithm 1. https://arxiv.org/abs/2005.11418
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from flightning.algorithms.base import Weights
from flightning.algorithms.drift import DriftMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Payload
from flightning.functional.seeding import numpy_generator

__all__ = ["FedPD", "FedPDMixin"]

_COIN = 13


class FedPDMixin(DriftMixin):
    r"""Add :math:`\langle \lambda_k, x \rangle + \frac{1}{2\eta_k} \lVert x - x_{0,k} \rVert^2` to the client loss.

    Then :math:`\lambda_k \leftarrow \lambda_k + (x_k - x_{0,k}) / \eta_k` and
    :math:`x_{0,k} \leftarrow x_k + \eta_k \lambda_k`; with probability :math:`1 - p` per round the :math:`x_{0,k}` are
    averaged uniformly, else every client goes on from its own. The dual is kept as the drift :math:`\eta_k \lambda_k`.
    :math:`\eta_k` is :math:`\eta` times the client's weight relative to the mean client. All clients must take part.
    Between communications the global weights, and so what is validated, stay as they are.

    Args:
        eta: Step of the dual :math:`\eta`, above 0; FedDyn's :math:`1/\alpha`.
        p: Probability of a round without communication, in [0, 1); ``0`` is FedDyn with full participation.
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> class FedPDBoring(FedPDMixin, BoringModel): ...
        >>> FedPDBoring(p=0.5).hparams.p
        0.5
    """

    reductions: ClassVar[Mapping[str, str]] = {"weights": "uniform"}
    owns = frozenset({"drift correction", "aggregation rule"})

    def __init__(self, eta: float = 100.0, p: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if eta <= 0:
            raise ConfigurationError(f"`eta={eta}` must be above 0: it is one over FedDyn's `alpha`.")
        if not 0 <= p < 1:
            raise ConfigurationError(f"`p={p}` must lie in [0, 1): use 0 to communicate in every round.")
        self.eta, self.p = eta, p

    def _communicated(self, round_index: int) -> bool:
        """Whether weights are averaged in this round: a coin that all clients share."""
        coin = numpy_generator(self.federated_data.seed, max(round_index, 0), _COIN).random()
        return round_index < 0 or bool(coin >= self.p)

    def on_round_start(self) -> None:
        """Refuse partial participation."""
        super().on_round_start()
        if len(self.cohort) < self.num_training_clients and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            raise ConfigurationError(
                f"FedPD needs all {self.num_training_clients} clients in every round, but the cohort has "
                f"{len(self.cohort)}: set `federation.participation: 1.0`, or use FedDyn, its form for part of them."
            )

    def download(self, client: int) -> Payload:
        """Send weights only where the last round made new ones."""
        return super().download(client) if self._communicated(self.round_index - 1) else {}

    def drift_strength(self) -> float:
        r"""The client's :math:`1/\eta_k`."""
        return 1 / (self.eta * self.relative_weight)

    def drift_start(self) -> Weights:
        """What was received, or the client's own point, which is then in the module."""
        return {n: p.detach().clone() for n, p in self._live.items()}

    def on_client_start(self, download: Payload) -> None:
        """Forget the client's own point where weights were received."""
        if "weights" in download and self.client_state.weights:
            self.load_weights(download["weights"])
        super().on_client_start(download)

    def on_client_end(self) -> Payload:
        """Renew dual and starting point; send the latter if the coin says so, else keep it."""
        upload = super().on_client_end()
        start = {n: p.detach() + self.client_state.drift[n] for n, p in self._live.items()}
        communicates = self._communicated(self.round_index)
        kept = {n: w.detach() for n, w in self.live_weights().items()}
        self.client_state.weights = {} if communicates else {**kept, **start}
        return {**upload, "weights": {**upload["weights"], **start}} if communicates else {}


class FedPD(FedPDMixin, Classifier):
    """FedPD on the built-in classifier."""
