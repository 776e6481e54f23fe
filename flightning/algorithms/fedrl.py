r"""FedRL: review the layers of the global model one after the other, from the shallowest to the deepest.

Wang, Wang and Pei, "FedRL: Federated Learning with Non-IID Data via Review Learning", ICMLC 2024, Eq. 2-3 and
Algorithm 1. https://doi.org/10.1145/3651671.3651704
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import Tensor

from flightning.algorithms.base import FederatedMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError, check_choice
from flightning.functional.aggregation import Payload
from flightning.functional.layers import block_names
from flightning.functional.losses import representation_distance

__all__ = ["FedRL", "FedRLMixin"]

Blocks = Literal["param_blocks", "modules"]
Origin = Literal["inclusive", "exclusive"]
Advance = Literal["batch", "epoch", "round"]
Power = Literal[1, 2]
Reduction = Literal["batch_fro", "sample_mean", "sample_sum", "mse"]
Teacher = Literal["eval", "train_frozen_stats"]


class FedRLMixin(FederatedMixin):
    r"""Add :math:`\frac{\mu}{2}\lVert kr_m(w^t) - kr_m(w) \rVert`, the layer :math:`m` moving on with every batch.

    :math:`kr_m` is what block :math:`m` of :math:`M` gives for the batch; the frozen global model runs no further than
    that block. How often each block was visited is logged as ``round/visits_<block>``.

    Args:
        mu: Strength :math:`\mu`, at least 0. ``0`` is FedAvg. The paper tunes it in [0.0001, 0.01].
        blocks: What counts as a layer: ``param_blocks`` (each layer with its activation and pooling: the net's
            ``blocks``), ``modules`` (poolings count separately, activations not at all), or a list of names of layers
            in the network, in order.
        origin: ``inclusive``: :math:`m = 0` is the first block and the last one are the logits. ``exclusive``:
            :math:`m = 0` is the input, where both models agree.
        advance: When :math:`m` moves on: every ``batch`` (from 0 in each round), every local ``epoch``, or every
            ``round``.
        p: ``1`` for the norm as printed, ``2`` for its square.
        reduction: ``batch_fro`` (one norm over the batch), ``sample_mean``, ``sample_sum``, or ``mse`` (``p=2`` only).
        teacher: Mode of the global model's BatchNorm and dropout: ``eval``, or ``train_frozen_stats`` (training mode,
            running statistics left alone).
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> FedRL(input_shape=(1, 8, 8), advance="round").hparams.mu
        0.005
    """

    def __init__(
        self,
        mu: float = 0.005,
        blocks: Blocks | list[str] = "param_blocks",
        origin: Origin = "inclusive",
        advance: Advance = "batch",
        p: Power = 1,
        reduction: Reduction = "batch_fro",
        teacher: Teacher = "eval",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if mu < 0:
            raise ConfigurationError(f"`mu={mu}` must be at least 0: use 0 for plain FedAvg.")
        choices: dict[str, tuple[object, object]] = {
            "origin": (origin, Origin),
            "advance": (advance, Advance),
            "p": (p, Power),
            "reduction": (reduction, Reduction),
            "teacher": (teacher, Teacher),
        }
        if not isinstance(blocks, list):
            choices["blocks"] = blocks, Blocks
        for name, (value, literal) in choices.items():
            check_choice(name, value, get_args(literal))
        if reduction == "mse" and p == 1:
            raise ConfigurationError("`reduction='mse'` is a mean of squares, but `p=1` asks for a norm: set `p: 2`.")
        self.mu, self.advance, self.p, self.reduction = mu, advance, p, reduction
        self._blocks, self._from_input, self._teacher_trains = blocks, origin == "exclusive", teacher != "eval"

    def on_federation_start(self) -> None:
        """Find the layers to review."""
        super().on_federation_start()
        names = block_names(self.forward_root, self._blocks)
        self._targets = ["input", *names[:-1]] if self._from_input else names
        prefix = self.forward_root_prefix
        self.watch_layers(prefix.rstrip("."), *(prefix + name for name in names))

    def on_client_start(self, download: Payload) -> None:
        """Begin to count visits; small clients may never reach the deepest layers."""
        super().on_client_start(download)
        if self.mu:
            self._training_client.counts.update({f"visits_{name}": 0 for name in self._targets})

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """Eq. 3 without the data term; Algorithm 1 moves on after the loss, so the first target is number 0."""
        terms = super().regularization(batch)
        if self.mu:
            m = self._position % len(self._targets)
            self._training_client.counts[f"visits_{self._targets[m]}"] += 1
            if m or not self._from_input:  # at the input there is nothing to compare
                layer = self.forward_root_prefix + self._targets[m]
                theirs = self.frozen_forward(until=layer, training=self._teacher_trains)
                distance = representation_distance(self.layer_output(layer), theirs, self.p, self.reduction)
                terms["review"] = 0.5 * self.mu * distance
        return terms

    @property
    def _position(self) -> int:
        client = self._training_client
        if self.advance == "round":
            return self.round_index
        return client.steps if self.advance == "batch" else client.steps // client.steps_per_epoch


class FedRL(FedRLMixin, Classifier):
    """FedRL on the built-in classifier."""
