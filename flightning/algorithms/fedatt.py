r"""FedAtt: weigh each client, layer by layer, by the distance of its weights from the global ones.

Ji et al., "Learning Private Neural Language Modeling with Attentive Aggregation", IJCNN 2019, Algorithm 1.
https://arxiv.org/abs/1812.07108
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch

from flightning.algorithms.base import FederatedMixin, Weights
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError, check_choice
from flightning.functional.aggregation import Payload, average
from flightning.functional.attention import attention, attentive_step, layer_distances
from flightning.functional.seeding import torch_generator

__all__ = ["FedAtt", "FedAttMixin"]

_NOISE = 21


class FedAttMixin(FederatedMixin):
    r"""Set :math:`g^i \leftarrow g^i - \epsilon \sum_k \alpha_k^i (g^i - \ell_k^i) + d\,N(0, I)`.

    For every parameter tensor :math:`i`: :math:`\alpha_k^i = \mathrm{softmax}_k \lVert g^i - \ell_k^i \rVert` over
    the cohort. Buffers go through the plain weighted mean.

    Args:
        epsilon: Step size, > 0. ``1`` with equal distances and ``dp=0`` is FedAvg with uniform weights.
        dp: Standard deviation of the noise added to every parameter. ``0`` adds none.
        att_temperature: Divides the distances, > 0; 1 in the paper. Raw distances grow with the size of a layer, so
            that a large layer copies its farthest client: infinity gives uniform weights.
        att_sign: ``1``: the farthest client weighs most, as in the paper. ``-1``: the nearest does.
        **kwargs: Arguments of the module behind the mixin.
    """

    reductions: ClassVar[Mapping[str, str]] = {"weights": "stack"}
    owns = frozenset({"aggregation rule"})

    def __init__(
        self,
        epsilon: float = 1.2,
        dp: float = 1e-3,
        att_temperature: float = 1.0,
        att_sign: Literal[1, -1] = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if epsilon <= 0:
            raise ConfigurationError(f"`epsilon={epsilon}` must be above 0: 1 moves to the attentive mean.")
        if dp < 0:
            raise ConfigurationError(f"`dp={dp}` must be at least 0: it is the standard deviation of the noise.")
        if att_temperature <= 0:
            raise ConfigurationError(f"`att_temperature={att_temperature}` must be above 0: use 1 for the paper's.")
        check_choice("att_sign", att_sign, (1, -1))
        self.epsilon, self.dp = epsilon, dp
        self.att_temperature, self.att_sign = att_temperature, att_sign

    def aggregate(self, uploads: Payload) -> None:
        """Take the attentive step on trained weights and the mean of buffers."""
        models: dict[int, Weights] = uploads["weights"]
        trained = [n for n in self.trainable() if n in next(iter(models.values()))]
        buffers = {k: {n: w for n, w in model.items() if n not in trained} for k, model in models.items()}
        new = average(buffers, self.cohort_weights) | self.attend(trained, list(models.values()))
        super().aggregate({**uploads, "weights": new})

    def attend(self, names: list[str], models: list[Weights]) -> Weights:
        """New global tensors of these names from the clients' models."""
        reference = [self.global_weights[n] for n in names]
        distances = layer_distances(reference, [[model[n] for n in names] for model in models])
        alpha = attention(distances, temperature=self.att_temperature, sign=self.att_sign).clients
        new = {
            n: attentive_step(g, [model[n] for model in models], alpha[:, i], self.epsilon)
            for i, (n, g) in enumerate(zip(names, reference, strict=True))
        }
        return self.add_noise(new) if self.dp else new

    def add_noise(self, weights: Weights) -> Weights:
        """The same noise on every process: it depends on seed and round alone."""
        generator = torch_generator(self.federated_data.seed, self.round_index, _NOISE)
        return {
            n: w + self.dp * torch.randn(w.shape, generator=generator, dtype=w.dtype).to(w.device)
            for n, w in weights.items()
        }


class FedAtt(FedAttMixin, Classifier):
    """FedAtt on the built-in classifier."""
