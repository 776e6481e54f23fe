"""What a checkpoint keeps of a round, and what a resumed run must agree with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer

from flightning.algorithms.base import FederatedMixin
from flightning.callbacks.plateau import step_plateau_schedulers, waited_for
from flightning.callbacks.record import RoundRecord
from flightning.callbacks.rounds import Round
from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.stream import RoundPlan
from flightning.errors import CheckpointError

__all__ = ["RoundCheckpoints"]


class RoundCheckpoints(Callback):
    """The part of the round engine that saves and resumes."""

    _module: FederatedMixin
    _data: FederatedDataModule

    if TYPE_CHECKING:  # defined by the round engine

        def plan(self, round_index: int) -> RoundPlan: ...  # noqa: D102
        @property
        def record(self) -> RoundRecord: ...  # noqa: D102

    def __init__(self) -> None:
        self._round: Round | None = None
        self._identity: dict[str, Any] = {}
        self._finished: dict[str, float] | None = None
        self._restored: dict[str, Any] | None = None

    @property
    def _current(self) -> Round:
        if self._round is None:  # pragma: no cover
            raise RuntimeError("a batch came outside of a round")
        return self._round

    @property
    def setup_bytes(self) -> float:
        """What the algorithm sends once, as part of the first round."""
        is_first = self._round is not None and self._round.plan.round_index == 0
        return float(self._module.setup_bytes) if is_first else 0.0

    def finished_metrics(self) -> dict[str, float]:
        """What is logged for the round that has just ended; its clocks stop at the first call."""
        if self._finished is None:
            own = self._module.round_metrics
            self._finished = {**self.record.metrics(), "round/setup_bytes": self.setup_bytes, **own}
            own.clear()
        return self._finished

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep what Lightning does with a round only after its checkpoint is written."""
        if self._round is not None:
            checkpoint["flightning_round"] = {
                "index": self._round.plan.round_index,
                "is_complete": self._round.is_finished,
                "metrics": self.finished_metrics() if self._round.is_finished else {},
                "waited_for": waited_for(trainer),
            }

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint from inside a round: half of its cohort would be missing."""
        kept = checkpoint.get("flightning_round")
        if kept is not None and not kept["is_complete"] and trainer.state.fn == "fit":
            raise CheckpointError(
                f"the checkpoint was saved inside round {kept['index'] + 1}, before its clients had finished: resume "
                "from one that was saved after a round, such as `last.ckpt` in the run's folder."
            )
        self._restored = kept

    def _end_restored_round(self, trainer: Trainer) -> None:
        kept, self._restored = self._restored, None
        if kept is None:
            return
        # where a checkpoint was saved after validation, Lightning runs the end of that round again
        self._finished = kept["metrics"]
        self._module.cohort = self.plan(kept["index"]).cohort
        step_plateau_schedulers(trainer, kept["index"], kept["waited_for"])

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must agree with."""
        if not self._identity:
            return {}
        return {**self._identity, "partition rule": f"{self._data.partition!r} of {self._data.num_clients} clients"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse to go on with another algorithm, seed or partition."""
        for what, now in self._identity.items():
            before = state_dict.get(what)
            if before != now:
                if what == "partition":
                    before, now = (
                        f"{s.get('partition rule')} ({s.get(what)})" for s in (state_dict, self.state_dict())
                    )
                raise CheckpointError(
                    f"the checkpoint was written with {what} `{before}`, but this run has {what} `{now}`: resume with "
                    "the same settings, or start anew without `ckpt_path`."
                )
