r"""DS-FL: exchange predictions on an open, unlabelled set in place of weights.

Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient Collaborative
Training with Non-IID Private Data", IEEE TMC 2021, Algorithm 1. https://arxiv.org/abs/2008.06180
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from flightning.algorithms.observe import without_noise
from flightning.algorithms.server_data import ServerDataMixin, shuffled
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError, check_choice
from flightning.functional.aggregation import Payload
from flightning.functional.seeding import numpy_generator, torch_generator

__all__ = ["DSFL", "DSFLMixin"]

_OPEN, _ORDER = 24, 25


class DSFLMixin(ServerDataMixin):
    r"""Average the clients' predictions on a part of the open set, sharpen them, and let everybody imitate the result.

    The targets are :math:`\mathrm{softmax}(\frac{1}{m T} \sum_k p_k)` (ERA). Weights stay on the clients; a client
    imitates the targets of the last round before its local steps; all begin with the same initial weights, whenever
    they join. The server's own model, trained on the targets alone, is what is evaluated. The open set is the
    server's, ``data.shared_fraction`` of the training samples, without labels.

    Args:
        T: Temperature of the sharpening, > 0. Small values sharpen, infinity makes targets uniform.
        aggregation: ``era``, or ``sa``, the plain mean of predictions.
        open_size: Samples of the open set that are predicted in a round, at most all of them.
        distill_epochs: Passes over them by server and clients, at least 1.
        distill_lr: Learning rate of these passes (SGD with momentum 0.9), > 0.
        **kwargs: Arguments of the module behind the mixin.
    """

    reductions: ClassVar[Mapping[str, str]] = {"probabilities": "uniform"}
    default_shared_fraction = 0.2
    keeps_optimizer = True

    def __init__(
        self,
        T: float = 0.1,
        aggregation: Literal["era", "sa"] = "era",
        open_size: int = 1000,
        distill_epochs: int = 5,
        distill_lr: float = 0.05,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value, default in (("T", T, 0.1), ("distill_lr", distill_lr, 0.05)):
            if value <= 0:
                raise ConfigurationError(f"`{name}={value}` must be above 0: the default is {default}.")
        for name, count, default in (("open_size", open_size, 1000), ("distill_epochs", distill_epochs, 5)):
            if count < 1:
                raise ConfigurationError(f"`{name}={count}` must be at least 1: the default is {default}.")
        check_choice("aggregation", aggregation, ("era", "sa"))
        self.T, self.aggregation, self.open_size = T, aggregation, open_size
        self.distill_epochs, self.distill_lr = distill_epochs, distill_lr
        self.add_server_state("targets", dict)
        self.add_server_state("initial", dict)

    def is_shared(self, name: str) -> bool:
        """No weight is shared."""
        return False

    def is_personal(self, name: str) -> bool:
        """Clients keep all weights, but the server's model is evaluated."""
        return False

    def on_federation_start(self) -> None:
        """Send the open set to every client, once, and note the weights that all clients begin with."""
        super().on_federation_start()
        if not self.server_state.targets:  # once it has made some, the global weights are the server's own
            self.server_state.initial = {n: w.clone() for n, w in self.global_weights.items()}
        self.setup_bytes += self.num_clients * len(self.shared) * self.input_bytes()

    def open_subset(self, round_index: int) -> NDArray[np.int64]:
        """Samples that are predicted in a round; everybody knows them from the common seed."""
        rng = numpy_generator(self.federated_data.seed, round_index, _OPEN)
        return rng.choice(self.shared, min(self.open_size, len(self.shared)), replace=False)

    def download(self, client: int) -> Payload:
        """Send the targets of the last round."""
        payload, targets = super().download(client), self.server_state.targets
        if targets.get("round") == self.round_index - 1:
            payload["targets"] = targets["probabilities"]
        return payload

    def on_client_start(self, download: Payload) -> None:
        """Begin with the initial weights or its own, and imitate the targets of the last round."""
        if not self.client_state.weights:  # what the server has trained is not sent
            self.load_weights(self.server_state.initial)
        super().on_client_start(download)
        if "targets" in download:
            self._distil(self.round_index - 1, download["targets"])

    def _distil(self, round_index: int, targets: Tensor) -> None:
        """Soft-target cross-entropy of the live weights on the open subset of a round."""
        inputs, size = self.shared_inputs(self.open_subset(round_index)), self.federated_data.batch_size
        generator = torch_generator(self.federated_data.seed, round_index, _ORDER)
        optimizer = torch.optim.SGD(self.trainable().values(), lr=self.distill_lr, momentum=0.9)
        for chosen in shuffled(len(inputs), size, self.distill_epochs, generator):
            chosen = chosen.to(inputs.device)
            with without_noise(self), self.trainer.precision_plugin.forward_context():
                loss = F.cross_entropy(self(inputs[chosen]), targets[chosen].to(inputs.device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        optimizer.zero_grad()

    def on_client_end(self) -> Payload:
        """Send predictions on the open subset, keep the weights."""
        upload = super().on_client_end()
        live = self.live_weights()
        self.client_state.weights = {n: live[n].detach().clone() for n in self.global_weights}
        inputs = self.shared_inputs(self.open_subset(self.round_index))
        upload["probabilities"] = self.outputs_of(inputs).softmax(dim=1)
        return upload

    def aggregate(self, uploads: Payload) -> None:
        """Make the targets, and train the server's model on them."""
        mean: Tensor = uploads["probabilities"]
        targets = (mean if self.aggregation == "sa" else torch.softmax(mean / self.T, dim=1)).float()
        self.server_state.targets = {"round": self.round_index, "probabilities": targets}
        self.load_global_weights()
        self._distil(self.round_index, targets)
        super().aggregate({**uploads, "weights": {n: w.detach() for n, w in self.live_weights().items()}})


class DSFL(DSFLMixin, Classifier):
    """DS-FL on the built-in classifier."""
