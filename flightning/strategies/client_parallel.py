"""Each process trains its own clients, and all meet once per round."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.overrides.distributed import _sync_module_states
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from torch import Tensor
from torch.distributed import ReduceOp

from flightning.errors import ConfigurationError

__all__ = ["ClientParallelStrategy"]


class ClientParallelStrategy(DDPStrategy):
    """Spread the clients of a round over processes: ``Trainer(strategy="client_parallel", devices=4)``.

    It starts its processes as Lightning's `ddp` does (its own launcher, torchrun, SLURM; gloo on CPUs, nccl on GPUs),
    but no gradient leaves a process: the module is not wrapped, and processes may take different numbers of steps.
    The round engine brings together what they have trained. Takes the arguments of `DDPStrategy`.
    """

    strategy_name = "client_parallel"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_set_up = False

    @property
    def world_size(self) -> int:
        """1 once everything is set up; `num_workers` is the true number.

        With more than one, Lightning exchanges a flag in every training step, which hangs where one process takes more
        steps than another.
        """
        return 1 if self._is_set_up else self.num_workers

    @property
    def num_workers(self) -> int:
        """How many processes there are."""
        return super().world_size

    def setup(self, trainer: Trainer) -> None:
        """Set up as `ddp` does, and begin to look like one process.

        Raises:
            ConfigurationError: Where BatchNorm is to be synchronised.
        """
        if self._layer_sync is not None:
            raise ConfigurationError(
                "`sync_batchnorm=True` would exchange statistics in every forward pass, but under `client_parallel` "
                "processes train different clients, with different numbers of steps: remove it, or use "
                "`strategy: ddp`."
            )
        super().setup(trainer)
        self._is_set_up = True

    def configure_ddp(self) -> None:
        """Leave the module as it is, with the weights of the first process."""
        if self.model is not None:
            _sync_module_states(self.model)

    def teardown(self) -> None:
        """Look like many processes again."""
        self._is_set_up = False
        super().teardown()

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all processes, or any, have decided for something."""
        votes = torch.tensor(int(decision), device=self.root_device)
        dist.all_reduce(votes)
        return int(votes) == self.num_workers if all else bool(votes)

    def reduce(
        self, tensor: Tensor | Any, group: Any | None = None, reduce_op: ReduceOp | str | None = "mean"
    ) -> Tensor | Any:
        """Reduce over processes; a mean of integers is no integer."""
        if isinstance(tensor, Tensor) and reduce_op == "mean" and not tensor.is_floating_point():
            tensor = tensor.double()
        return super().reduce(tensor, group, reduce_op)


if ClientParallelStrategy.strategy_name not in StrategyRegistry.available_strategies():
    StrategyRegistry.register(
        ClientParallelStrategy.strategy_name,
        ClientParallelStrategy,
        description="Each process trains its own clients",
    )
