r"""Data sharing: hand a class-balanced set to all clients, and start from a model trained on it.

Zhao et al., "Federated Learning with Non-IID Data", 2018, section 4. https://arxiv.org/abs/1806.00582
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flightning.algorithms.base import FederatedMixin
from flightning.algorithms.server_data import ServerDataMixin, shuffled
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError
from flightning.functional.seeding import torch_generator

__all__ = ["DataSharing", "DataSharingMixin"]

_WARMUP = 23


class DataSharingMixin(ServerDataMixin):
    r"""Give each client a random fraction :math:`\alpha` of the shared set :math:`G` once; then FedAvg.

    :math:`G` is the server's, ``data.shared_fraction`` of the training samples, equal over classes. Shared samples
    count in the client's weight.

    Args:
        alpha: Fraction of :math:`G` that each client receives, in [0, 1]. ``0`` hands out nothing.
        warmup_epochs: Passes of the server over :math:`G`, with the clients' optimizer, before the first round. ``0``
            starts from the initial weights; with ``alpha=0`` that is FedAvg.
        **kwargs: Arguments of the module behind the mixin.
    """

    def __init__(self, alpha: float = 0.5, warmup_epochs: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= alpha <= 1:
            raise ConfigurationError(f"`alpha={alpha}` must lie in [0, 1]: it is the shared fraction per client.")
        if warmup_epochs < 0:
            raise ConfigurationError(f"`warmup_epochs={warmup_epochs}` must be at least 0: use 0 for no warm-up.")
        self.alpha, self.warmup_epochs = alpha, warmup_epochs

    def on_federation_start(self) -> None:
        """Hand out the shared samples."""
        super().on_federation_start()
        for client in range(self.num_clients):
            self.hand_out(client, round(self.alpha * len(self.shared)))

    def on_round_start(self) -> None:
        """Train the initial weights on the shared set, before the first round."""
        super().on_round_start()
        if self.round_index == 0 and self.warmup_epochs:
            self._warm_up()

    def _warm_up(self) -> None:
        optimizer, data = self.trainer.optimizers[0], self.federated_data
        batches = shuffled(len(self.shared), data.batch_size, self.warmup_epochs, torch_generator(data.seed, _WARMUP))
        step = super(FederatedMixin, self).training_step
        self.load_global_weights()
        for index, chosen in enumerate(batches):
            batch = self.shared_batch(self.shared[chosen.numpy()])
            with self.silence(), self.trainer.precision_plugin.forward_context():
                output = self._call_user_step("training_step", step, (batch, index))
            optimizer.zero_grad()
            (output["loss"] if isinstance(output, Mapping) else output).backward()
            optimizer.step()
        optimizer.zero_grad()
        optimizer.state.clear()
        self.set_global_weights({n: w.detach() for n, w in self.live_weights().items()})


class DataSharing(DataSharingMixin, Classifier):
    """Data sharing on the built-in classifier."""
