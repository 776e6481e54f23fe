"""Who trains in a round, how long, on which process and with which weight."""

from __future__ import annotations

import warnings

import numpy as np

from flightning.algorithms.base import Client, FederatedMixin
from flightning.algorithms.state import ClientStates
from flightning.callbacks.checks import check_batches_of_one
from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.stream import RoundPlan, Visit, shard_bounds
from flightning.functional.cohort import sample_cohort
from flightning.functional.layers import batch_norm_names
from flightning.functional.seeding import numpy_generator
from flightning.strategies.assignment import assign
from flightning.strategies.processes import Processes

__all__ = ["Planner"]

_COHORT = 11


class Planner:
    """The plan of every round: a pure function of seed and round.

    Args:
        module: The algorithm.
        data: Whose clients.
        local_epochs: Passes of a client over its samples in a round.
        local_steps: Local steps of a client in a round, in place of `local_epochs`.
        participation: Fraction or count of the clients that take part.
        sampler: How they are drawn.
        weighting: Weights of the mean over clients: ``samples`` or ``uniform``.
        seed: Seed of the cohorts.
        most_steps: Where not 0, one client trains, for at most this many steps (`fast_dev_run`).
        shards: Processes over which each batch is spread.
    """

    def __init__(
        self,
        module: FederatedMixin,
        data: FederatedDataModule,
        local_epochs: int | None,
        local_steps: int | None,
        participation: int | float,
        sampler: str,
        weighting: str,
        seed: int,
        most_steps: int = 0,
        shards: int = 1,
    ) -> None:
        self.module, self.data, self.seed, self.shards = module, data, seed, shards
        self.local_epochs, self.local_steps, self.most_steps = local_epochs, local_steps, most_steps
        self.participation = 1.0 if module.trains_everybody else participation
        self.sampler, self.weighting = sampler, weighting
        self._has_batch_norm = bool(batch_norm_names(module))
        #: The last plan, and who trains whom under it; the engine and the data ask several times per round.
        self._plan: RoundPlan | None = None
        self._ranks: tuple[RoundPlan, ClientStates, dict[int, int]] | None = None
        self.measure()

    def measure(self) -> None:
        """Count the local steps of every client."""
        self._plan = self._ranks = None
        data, sizes = self.data, self.data.sizes
        automatic = self._has_batch_norm & (sizes > data.batch_size)
        self._dropped = automatic if data.drop_last is None else np.full(len(sizes), data.drop_last)
        per_epoch = np.where(self._dropped, sizes // data.batch_size, -(-sizes // data.batch_size))
        steps = (
            per_epoch * (self.local_epochs or 0) if self.local_steps is None else np.full(len(sizes), self.local_steps)
        )
        self.steps, self.per_epoch = np.where(per_epoch > 0, steps, 0), per_epoch
        able = self.steps > 0
        self._measured = sizes.copy()
        self._able_sizes = np.where(able, sizes, 0)
        self._weights = self._able_sizes.astype(float) if self.weighting == "samples" else able.astype(float)
        self._total_weight = float(self._weights.sum())
        self.num_training_clients = int(able.sum())
        self._warn_and_check()

    def _warn_and_check(self) -> None:
        idle = int(((self.steps == 0) & (self.data.sizes > 0)).sum())
        if idle:
            warnings.warn(
                f"{idle} clients have fewer samples than `batch_size={self.data.batch_size}` and `drop_last` leaves "
                "them nothing to train on, so they are never sampled: lower `batch_size` or set `drop_last: false`.",
                stacklevel=2,
            )
        if self._has_batch_norm:
            check_batches_of_one(self._able_sizes, self.data.batch_size, self._dropped, self.shards)

    def refresh(self) -> bool:
        """Count anew where an algorithm has given samples to clients or taken them; whether it has."""
        changed = not np.array_equal(self._measured, self.data.sizes)
        if changed:
            self.measure()
        return changed

    def plan(self, round_index: int) -> RoundPlan:
        """The cohort of a round, in order."""
        if self._plan is None or self._plan.round_index != round_index:
            self._plan = self._make_plan(round_index)
        return self._plan

    def _make_plan(self, round_index: int) -> RoundPlan:
        rng = numpy_generator(self.seed, round_index, _COHORT)
        cohort = sample_cohort(self._able_sizes, self.participation, self.sampler, rng)
        visits = [Visit(c, int(self.steps[c]), bool(self._dropped[c])) for c in cohort]
        if self.most_steps:
            visits = [Visit(visits[0].client, min(self.most_steps, visits[0].steps), visits[0].drop_last)]
        return RoundPlan(round_index, tuple(visits))

    def part(self, plan: RoundPlan, processes: Processes) -> RoundPlan:
        """What this process trains of a round."""
        if not processes.split_clients:
            return plan
        ranks = self.ranks(plan, processes)
        return RoundPlan(plan.round_index, tuple(v for v in plan.visits if ranks[v.client] == processes.rank))

    def ranks(self, plan: RoundPlan, processes: Processes) -> dict[int, int]:
        """Which process trains which client: the longest clients are dealt first, and state does not travel idly."""
        states = self.module.client_states
        if self._ranks is None or self._ranks[0] is not plan or self._ranks[1] is not states:
            cohort, steps = plan.cohort, [v.steps for v in plan.visits]
            ranks = assign(steps, processes.count, lambda i, rank: states.detour(cohort[i], rank))
            self._ranks = plan, states, dict(zip(cohort, ranks, strict=True))
        return self._ranks[2]

    def client(self, client: int) -> Client:
        """A client at the start of its round."""
        weight = float(self._weights[client])
        return Client(
            client,
            num_samples=int(self.data.sizes[client]),
            weight=weight,
            steps_per_epoch=int(self.per_epoch[client]),
            share=weight / self._total_weight,
        )

    def weight(self, client: int) -> float:
        """Weight of a client in ``mean`` reductions, not normalised."""
        return float(self._weights[client])

    def loss_scale(self, client: int, step: int, processes: Processes) -> float:
        """Factor of the loss of this process's part of a batch.

        The mean over :math:`P` processes of gradients of means over :math:`n_r` of :math:`n` samples, each times
        :math:`n_r P / n`, is the gradient of the mean over all :math:`n`.
        """
        if not processes.split_batches:
            return 1.0
        first = (step % int(self.per_epoch[client])) * self.data.batch_size
        size = min(self.data.batch_size, int(self.data.sizes[client]) - first)
        start, stop = shard_bounds(size, processes.rank, processes.count)
        return (stop - start) * processes.count / size
