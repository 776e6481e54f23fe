"""The loaders of a federated data module: the stream of a round, evaluation sets, the samples of one client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray

from flightning.datamodules.sources import Source
from flightning.datamodules.stream import (
    BatchList,
    RoundPlan,
    RoundStream,
    Visit,
    order_batches,
    shard,
    shard_batch,
)
from flightning.datamodules.transforms import BatchTransform
from flightning.errors import ConfigurationError
from flightning.functional.seeding import numpy_generator, seed_global_generators, torch_generator

__all__ = ["AUGMENT", "ORDER", "ClientLoaders"]

#: Keys that keep the random streams of one seed apart; `FederatedDataModule` has the others.
ORDER, AUGMENT, _READ = 2, 3, 5


class ClientLoaders(LightningDataModule):
    """Batches of samples that are dealt to clients; `FederatedDataModule` deals them."""

    batch_size: int
    eval_batch_size: int
    shuffle: bool
    seed: int
    augment: list[BatchTransform]
    train_source: Source
    test_source: Source | None
    parts: list[NDArray[np.int64]]
    sizes: NDArray[np.int64]
    validation: NDArray[np.int64]

    def __init__(self) -> None:
        super().__init__()
        #: Makes the plan of a round; set by the round engine.
        self.plan_round: Callable[[int], RoundPlan] | None = None
        #: Whether an item of the stream is a client in place of a batch; set by the round engine.
        self.stream_clients = False
        #: Rank and number of the processes that share each batch of a client; set by the round engine.
        self.batch_shard = (0, 1)
        #: Rank and number of the processes that share the batches of an evaluation; set by the round engine.
        self.evaluation_shard = (0, 1)

    def train_dataloader(self) -> RoundStream:
        """The batches of the current round."""
        if self.plan_round is None or self.trainer is None:
            raise ConfigurationError(
                f"`{type(self).__name__}` streams the batches of a round, but no round engine asks for them: add "
                "`Federation()` from `flightning.callbacks` to `Trainer(callbacks=[...])`."
            )
        return RoundStream(self.plan_round(self.trainer.current_epoch), self.visit_batches, self.stream_clients)

    def visit_batches(self, plan: RoundPlan, visits: Sequence[Visit]) -> Iterator[Iterator[Any]]:
        """The batches of each of some clients in one round, shuffled and augmented by its own generators.

        Small clients are read together. The batches of one must be read before those of the next.
        """
        if self.train_source.may_draw:
            for visit in visits:  # what it draws must not depend on the client before
                seed_global_generators(self.seed, plan.round_index, visit.client, _READ)
                yield self._finished(plan, visit, self.train_source.batches(self._order(plan, visit)))
        else:
            orders = [order for visit in visits for order in self._order(plan, visit)]
            batches = self.train_source.batches(orders)
            for visit in visits:
                yield self._finished(plan, visit, islice(batches, visit.steps))

    def _order(self, plan: RoundPlan, visit: Visit) -> list[NDArray[np.int64]]:
        rng = numpy_generator(self.seed, plan.round_index, visit.client, ORDER) if self.shuffle else None
        batches = order_batches(self.parts[visit.client], visit.steps, self.batch_size, visit.drop_last, rng)
        return batches if self.augment else [shard(b, *self.batch_shard) for b in batches]

    def _finished(self, plan: RoundPlan, visit: Visit, batches: Iterator[Any]) -> Iterator[Any]:
        if not self.augment:
            return batches
        generator = torch_generator(self.seed, plan.round_index, visit.client, AUGMENT)
        stream = self._augmented(batches, generator)
        return stream if self.batch_shard[1] == 1 else (shard_batch(b, *self.batch_shard) for b in stream)

    def _augmented(self, batches: Iterator[Any], generator: torch.Generator) -> Iterator[Any]:
        for batch in batches:
            if not isinstance(batch, list | tuple):
                raise ConfigurationError(
                    f"`augment` changes the inputs of `(inputs, targets)` batches, but a batch is a "
                    f"`{type(batch).__name__}`: leave `augment` out and transform samples in the data set."
                )
            inputs, *rest = batch
            for transform in self.augment:
                inputs = transform(inputs, generator)
            yield (inputs, *rest)

    def client_batches(self, client: int) -> Iterator[Any]:
        """All training samples of a client in stored order, in batches for evaluation."""
        return self._in_order(self.train_source, self.parts[client])()

    def val_dataloader(self) -> BatchList | list[Any]:
        """The held-out training samples, or the test set where none are held out."""
        if len(self.validation):
            return self._loader(self.train_source, self.validation)
        return self.test_dataloader()

    def test_dataloader(self) -> BatchList | list[Any]:
        """The global test set."""
        if self.test_source is None:
            return []
        return self._loader(self.test_source, np.arange(len(self.test_source)))

    def predict_dataloader(self) -> BatchList | list[Any]:
        """The global test set; every process gets all of it, since predictions are not brought together."""
        shard, self.evaluation_shard = self.evaluation_shard, (0, 1)
        try:
            return self.test_dataloader()
        finally:
            self.evaluation_shard = shard

    def _loader(self, source: Source, indices: NDArray[np.int64]) -> BatchList:
        size = self.eval_batch_size
        batches = [indices[i : i + size] for i in range(0, len(indices), size)]
        rank, count = self.evaluation_shard
        if count <= len(batches):
            batches = batches[rank::count]
        elif count <= len(indices):  # every process needs a batch, or it would miss the exchange of metrics
            batches = [np.array_split(indices, count)[rank]]
        return BatchList(len(batches), lambda: source.batches(batches), is_shared=1 < count <= len(indices))

    def _in_order(self, source: Source, indices: NDArray[np.int64]) -> Callable[[], Iterator[Any]]:
        size = self.eval_batch_size
        batches = [indices[i : i + size] for i in range(0, len(indices), size)]
        return lambda: source.batches(batches)
