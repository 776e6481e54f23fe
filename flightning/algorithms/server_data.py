"""Samples that the server owns: ``self.federated_data.shared``, made by ``data.shared_fraction``."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flightning.algorithms.base import FederatedMixin, Weights
from flightning.algorithms.observe import evaluating
from flightning.functional.aggregation import num_bytes
from flightning.functional.seeding import numpy_generator

__all__ = ["ServerDataMixin", "shuffled"]

_DRAW = 22


class ServerDataMixin(FederatedMixin):
    """Read the samples of the server and hand them out.

    Where ``data.shared_fraction`` is 0 the server takes `default_shared_fraction` of the training samples.
    """

    default_shared_fraction = 0.05

    def on_federation_start(self) -> None:
        """Forget the samples of an earlier fit."""
        super().on_federation_start()
        self.__dict__.pop("sample_bytes", None)

    @property
    def shared(self) -> NDArray[np.int64]:
        """Indices of the samples that the server owns."""
        indices: NDArray[np.int64] = self.federated_data.shared
        return indices

    def shared_batch(self, indices: NDArray[np.int64] | None = None) -> Any:
        """Samples of the server as one batch on the module's device; by default all of them."""
        chosen = self.shared if indices is None else indices
        batch = next(iter(self.federated_data.train_source.batches([chosen])))
        return self.trainer.strategy.batch_to_device(self.trainer.precision_plugin.convert_input(batch))

    def shared_inputs(self, indices: NDArray[np.int64] | None = None) -> Tensor:
        """Inputs of samples of the server, without their labels."""
        inputs: Tensor = self.split_batch(self.shared_batch(indices))[0]
        return inputs

    def outputs_of(self, inputs: Tensor, weights: Weights | None = None) -> Tensor:
        """Outputs of the module for these inputs in evaluation mode, in batches; loads ``weights`` if given."""
        if weights is not None:
            self.load_weights(weights)
        with evaluating(self):
            return torch.cat([self(part) for part in torch.split(inputs, self.federated_data.eval_batch_size)])

    def hand_out(self, client: int, count: int) -> None:
        """Let a client train on this many samples of the server besides its own, drawn once and for all."""
        rng = numpy_generator(self.federated_data.seed, client, _DRAW)
        self.federated_data.give(client, rng.choice(self.shared, count, replace=False))
        self.setup_bytes += count * self.sample_bytes

    @functools.cached_property
    def sample_bytes(self) -> int:
        """Bytes of one sample with its label."""
        batch = next(iter(self.federated_data.train_source.batches([self.shared[:1]])))
        return num_bytes(batch if isinstance(batch, Mapping) else {str(i): t for i, t in enumerate(batch)})

    def input_bytes(self) -> int:
        """Bytes of one sample without its label."""
        return num_bytes({"inputs": self.shared_inputs(self.shared[:1])})


def shuffled(count: int, batch_size: int, epochs: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Indices of the batches of some passes over ``count`` samples, each pass in new order.

    Example:
        >>> [len(batch) for batch in shuffled(5, 2, 2, torch.Generator().manual_seed(0))]
        [2, 2, 1, 2, 2, 1]
    """
    for _ in range(epochs):
        yield from torch.split(torch.randperm(count, generator=generator), batch_size)
