"""The events of one round: clients begin and end, uploads are reduced, the server takes over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.optim import Optimizer

from flightning.algorithms.base import Client, FederatedMixin
from flightning.callbacks.listener import RoundListener
from flightning.callbacks.planning import Planner
from flightning.callbacks.record import RoundRecord
from flightning.datamodules.stream import RoundPlan, Visit
from flightning.errors import ClientError
from flightning.functional.aggregation import Payload, Reducer, is_finite
from flightning.functional.seeding import seed_global_generators
from flightning.strategies.processes import Processes

if TYPE_CHECKING:
    from flightning.callbacks.federation import Federation

__all__ = ["Round"]

#: Key of what the server draws; no client has this number.
_SERVER = -1


class Round:
    """One round on this process.

    Args:
        settings: The settings of the federation.
        module: The algorithm.
        planner: Makes the plans.
        processes: Between whom clients or batches are split.
        optimizer: The optimizer of all clients.
        round_index: The round, counted from 0.
    """

    def __init__(
        self,
        settings: Federation,
        module: FederatedMixin,
        planner: Planner,
        processes: Processes,
        optimizer: Optimizer,
        round_index: int,
    ) -> None:
        self.settings, self.module, self.planner, self.processes = settings, module, planner, processes
        self.optimizer = optimizer
        self.plan = planner.plan(round_index)
        self.visits = self._own_visits(self.plan)
        self.record = RoundRecord(settings.serialisation_overhead)
        self.is_finished = False
        self._reducer = Reducer(module.reductions)
        self._position = self._step_in_visit = 0
        self._listeners = [c for c in module.trainer.callbacks if isinstance(c, RoundListener)]  # type: ignore[attr-defined]
        self._changed: list[int] = []  # clients whose state this process has changed
        self._counted_steps = self._steps_taken.completed
        module.hold_layers()
        module.cohort = self.plan.cohort
        module.cohort_weights = {c: planner.weight(c) for c in self.plan.cohort}
        module.num_training_clients = planner.num_training_clients
        self._seed_server()
        module.on_round_start()

    def _own_visits(self, plan: RoundPlan) -> tuple[Visit, ...]:
        """What this process trains of a round; the states of these clients are brought here."""
        if self.processes.split_clients:
            self.module.client_states.fetch(self.planner.ranks(plan, self.processes))
        return self.planner.part(plan, self.processes).visits

    def _seed_server(self) -> None:
        """What the server draws is the same on every process, whichever clients it has trained."""
        seed_global_generators(self.settings.seed, self.plan.round_index, _SERVER)

    # --- the stream of Lightning --------------------------------------------------------------------------------

    def before_batch(self) -> None:
        """A batch comes next."""
        if self._step_in_visit == 0:
            self._begin_client(self.visits[self._position].client)
        self.before_step()

    def before_step(self) -> None:
        """A local step of the current client comes next."""
        client = self.visits[self._position].client
        self.module.loss_scale = self.planner.loss_scale(client, self._step_in_visit, self.processes)
        self._step_in_visit += 1

    def after_batch(self) -> None:
        """A batch has been trained on."""
        if self._step_in_visit == self.visits[self._position].steps:
            self._end_client()
            self._position, self._step_in_visit = self._position + 1, 0

    @contextmanager
    def client(self, client: int) -> Iterator[None]:
        """Train a client inside this block."""
        self._begin_client(client)
        yield
        self._end_client()
        self._position, self._step_in_visit = self._position + 1, 0

    def end_if_done(self, is_last: bool) -> None:
        """End the round after the last client of this process; ``is_last`` in the last round of all."""
        if self._position == len(self.visits):
            self.processes.wait()  # what others still train is no aggregation
            with self.record.timing("aggregation"):
                self._end(is_last)
            self.is_finished = True

    # --- clients ------------------------------------------------------------------------------------------------

    def _begin_client(self, client: int) -> None:
        module, keys = self.module, (self.settings.seed, self.plan.round_index, client)
        seed_global_generators(*keys)
        download = module.download(client)
        self._count("down", download)
        module.load_client(self.planner.client(client), download)
        if self.processes.split_batches and self.processes.rank:
            # what the client begins with is the same on all processes; dropout on different samples is not
            seed_global_generators(*keys, self.processes.rank)
        self.optimizer.state.clear()
        if self.settings.keeps_optimizer:
            _restore_optimizer(self.optimizer, module.client_state.optimizer)

    def _end_client(self) -> None:
        module, client = self.module, self.module._training_client
        self.processes.agree_on(module.buffers())
        upload = module.finish_client()
        with self.record.timing("aggregation"):
            self.record.add_client(client)
            self._count("up", upload)
            if not is_finite({**upload, "kept": module.client_state.weights}):
                self._handle_bad_update(client, "local training", self.record)
                return
            if self.settings.keeps_optimizer:
                module.client_state.optimizer = _optimizer_state(self.optimizer)
            self._reducer.add(client.id, client.weight, module.receive(upload))
            for listener in self._listeners:
                listener.on_client_trained(module, client)
            self._save_client(client.id)

    def _save_client(self, client: int) -> None:
        self.module.save_client()
        self._changed.append(client)

    def _handle_bad_update(self, client: Client, stage: str, record: RoundRecord) -> None:
        cause = FloatingPointError("its update holds NaN or infinity; lower the learning rate or clip gradients")
        if self.settings.on_bad_update == "raise":
            raise ClientError(client.id, stage, self.plan.round_index, cause) from cause
        record.bad_updates += 1

    # --- server -------------------------------------------------------------------------------------------------

    def _end(self, is_last: bool) -> None:
        module = self.module
        self._merge(self._reducer, self.record)
        for listener in self._listeners:
            listener.on_cohort_trained(module, self.processes)
        self._seed_server()
        if self._reducer.num_clients:  # a round without one good update leaves everything as it was
            module.num_updates = self._reducer.num_clients
            module.aggregate(self._reducer.result())
        module.load_global_weights()
        if not is_last and type(module).after_aggregation is not FederatedMixin.after_aggregation:
            self._second_exchange()
        module.on_round_end()
        module.client = None
        module.release_layers()
        self.planner.refresh()

    def _second_exchange(self) -> None:
        module = self.module
        reducer, record = Reducer(module.reductions), RoundRecord(self.settings.serialisation_overhead)
        for visit in self._own_visits(self.planner.plan(self.plan.round_index + 1)):
            # the global weights that this client receives here replace its next download
            client = self.planner.client(visit.client)
            module.load_client(client, {})
            with module.client_stage("after_aggregation"):
                upload = module.after_aggregation()
            self._count("up", upload, record)
            if not is_finite(upload):
                self._handle_bad_update(client, "after_aggregation", record)
                continue
            reducer.add(client.id, client.weight, upload)
            self._save_client(client.id)
        self._merge(reducer, record)
        for direction, number in record.bytes.items():
            self.record.bytes[direction] += number
        self.record.bad_updates += record.bad_updates
        self._seed_server()
        if reducer.num_clients:
            module.collect(reducer.result())
        module.load_global_weights()

    def _merge(self, reducer: Reducer, record: RoundRecord) -> None:
        """Bring together what the processes have done since they last met."""
        trainer, states = self.module.trainer, self.module.client_states
        if self.processes.split_batches:
            everybody = self.processes.gather({"losses": record.losses, "stop": trainer.should_stop})
            record.average([theirs["losses"] for theirs in everybody])
            trainer.should_stop = any(theirs["stop"] for theirs in everybody)
        precision = trainer.precision_plugin
        told = {
            "record": record.told(),
            "states": states.told(self._changed),
            "precision": precision.state_dict(),
            "logs": self.module.take_logs(),
            "steps": self._steps_taken.completed - self._counted_steps,
            "stop": trainer.should_stop,
        }
        gathered = self.processes.merge(reducer, told)
        self.module.hear_logs([theirs["logs"] for theirs in gathered])
        # where one process alone was asked to stop, the others would wait for it in the next round
        trainer.should_stop = any(theirs["stop"] for theirs in gathered)
        self._count_steps_of_all(sum(theirs["steps"] for theirs in gathered) - told["steps"])
        for rank, theirs in enumerate(gathered):
            if rank != self.processes.rank and self.processes.split_clients:
                record.add(theirs["record"])
                states.hear(theirs["states"])
        states.deliver(self._changed)
        if self.processes.split_clients and told["precision"]:
            # gradient scalers have lived apart: all go on with the most careful one, as a resumed run does
            precision.load_state_dict(min((theirs["precision"] for theirs in gathered), key=lambda s: s["scale"]))
        record.sort(self.plan.cohort)
        self._changed.clear()

    @property
    def _steps_taken(self) -> Any:
        return self.module.trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total

    def _count_steps_of_all(self, others: int) -> None:
        """Let Lightning count the steps of other processes, too.

        `trainer.global_step` is then the same on all processes and in one process. A checkpoint callback saves nothing
        where it stands still, and the others would wait for a process that was idle in this round.
        """
        self._steps_taken.ready += others
        self._steps_taken.completed += others
        self._counted_steps = self._steps_taken.completed

    def _count(self, direction: str, payload: Payload, record: RoundRecord | None = None) -> None:
        if not self.module.pools_data:  # pooled data and model are in one place: nothing crosses a network
            (record or self.record).count(direction, payload)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _optimizer_state(optimizer: Optimizer) -> dict[int, Any]:
    return {i: optimizer.state[p] for i, p in enumerate(_parameters(optimizer)) if p in optimizer.state}


def _restore_optimizer(optimizer: Optimizer, kept: dict[int, Any]) -> None:
    # a step count on a GPU would be waited for in every step, unless the optimizer counts there
    counts_there = [bool(g.get("capturable") or g.get("fused")) for g in optimizer.param_groups for _ in g["params"]]
    for i, parameter in enumerate(_parameters(optimizer)):
        if i in kept:
            state = apply_to_collection(kept[i], Tensor, lambda t, place: t.to(place, copy=True), parameter.device)
            if isinstance(count := kept[i].get("step"), Tensor) and not counts_there[i]:
                state["step"] = count.to("cpu", copy=True)
            optimizer.state[parameter] = state
