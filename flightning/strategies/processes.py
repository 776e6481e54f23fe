"""The processes of a run, and what they tell each other once per round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Reducer
from flightning.strategies.client_parallel import ClientParallelStrategy

__all__ = ["Processes"]

_CPU = torch.device("cpu")

Splits = Literal["nothing", "clients", "batches"]


@dataclass(frozen=True)
class _Slot:
    """Where a tensor of a tree lies in the buffer of bytes that travels beside it."""

    start: int
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class Processes:
    """This process among the others.

    Args:
        rank: Its number, from 0.
        count: How many there are.
        splits: What is split between them: ``clients``, each ``batches`` of a client, or ``nothing``.
        device: Where tensors must be for an exchange.

    Example:
        >>> Processes().gather({"loss": 1.0})
        [{'loss': 1.0}]
    """

    rank: int = 0
    count: int = 1
    splits: Splits = "nothing"
    device: torch.device = _CPU

    @classmethod
    def of(cls, strategy: Strategy) -> Processes:
        """The processes of a strategy that is connected.

        Raises:
            ConfigurationError: Where the strategy splits the model itself.
        """
        if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
            raise ConfigurationError(
                f"the strategy `{type(strategy).__name__}` splits the model over processes, but clients and server "
                "exchange whole models: use `client_parallel`, `ddp` or `auto`."
            )
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return cls()
        splits: Splits = "clients" if isinstance(strategy, ClientParallelStrategy) else "batches"
        return cls(dist.get_rank(), dist.get_world_size(), splits, strategy.root_device)

    @property
    def split_clients(self) -> bool:
        """Whether each process trains clients of its own."""
        return self.splits == "clients"

    @property
    def split_batches(self) -> bool:
        """Whether all processes train the same client, each on its part of every batch."""
        return self.splits == "batches"

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            dist.all_reduce(torch.zeros(1, device=self.device))

    def gather_objects(self, value: Any) -> list[Any]:
        """Small values of all processes, in order."""
        if self.count == 1:
            return [value]
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, value)
        return gathered

    def gather(self, tree: Any) -> list[Any]:
        """Dicts and lists with tensors of all processes, in order; tensors that arrive are on the CPU."""
        if self.count == 1:
            return [tree]
        skeleton, content = self._take_apart(tree)
        trees = []
        for rank, (theirs, size) in enumerate(self.gather_objects((skeleton, len(content)))):
            received = self._broadcast(content, rank, size)
            trees.append(tree if rank == self.rank else self._put_together(theirs, received))
        return trees

    def _take_apart(self, tree: Any) -> tuple[Any, Tensor]:
        parts: list[Tensor] = []
        end = 0

        def cut(tensor: Tensor) -> _Slot:
            nonlocal end
            flat = tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8)
            parts.append(flat)
            slot = _Slot(end, tensor.shape, tensor.dtype)
            end += len(flat)
            return slot

        skeleton = apply_to_collection(tree, Tensor, cut)
        return skeleton, torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)

    def _broadcast(self, content: Tensor, rank: int, size: int) -> Tensor:
        if not size:
            return content[:0]
        buffer = content if rank == self.rank else torch.empty(size, dtype=torch.uint8)
        buffer = buffer.to(self.device)
        dist.broadcast(buffer, rank)
        return buffer.cpu()

    def _put_together(self, skeleton: Any, content: Tensor) -> Any:
        def fill(slot: _Slot) -> Tensor:
            size = slot.shape.numel() * slot.dtype.itemsize
            # a copy: a view of bytes at an odd address is no tensor of floats
            return content[slot.start : slot.start + size].clone().view(slot.dtype).view(slot.shape)

        return apply_to_collection(skeleton, _Slot, fill)

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add tensors of double precision over all processes, in place and in one exchange."""
        if self.count == 1 or not tensors:
            return
        flat = torch.cat([t.reshape(-1) for t in tensors]).to(self.device)
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    @torch.no_grad()
    def agree_on(self, tensors: Iterable[Tensor]) -> None:
        """Where all train the same client, take these tensors from the first process, such as BatchNorm statistics."""
        if self.split_batches:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def merge(self, reducer: Reducer, told: Any = None) -> list[Any]:
        """Let a reducer hold the uploads of the clients of all processes.

        Args:
            reducer: That of this process.
            told: What else this process tells the others.

        Returns:
            What each process tells, in order.
        """
        if not self.split_clients:
            return [told]
        own = {
            "shapes": {path: tuple(total.shape) for path, total in reducer.sums.items()},
            "mass": reducer.mass,
            "maxima": reducer.maxima,
            "stacks": reducer.stacks,
            "told": told,
        }
        gathered = self.gather(own)
        self._add_sums(reducer, [tree["shapes"] for tree in gathered])
        reducer.mass = torch.stack([tree["mass"] for tree in gathered]).sum(dim=0)
        for tree in gathered[: self.rank] + gathered[self.rank + 1 :]:
            for path, theirs in tree["maxima"].items():
                theirs = theirs.to(self.device)
                known = reducer.maxima.get(path)
                reducer.maxima[path] = theirs if known is None else torch.maximum(known, theirs)
            for name, uploads in apply_to_collection(tree["stacks"], Tensor, lambda t: t.to(self.device)).items():
                reducer.stacks.setdefault(name, {}).update(uploads)
        return [tree["told"] for tree in gathered]

    def _add_sums(self, reducer: Reducer, shapes: list[dict[tuple[str, ...], tuple[int, ...]]]) -> None:
        union = {path: shape for theirs in shapes for path, shape in theirs.items()}
        zeros = {p: torch.zeros(s, dtype=torch.float64, device=self.device) for p, s in union.items()}
        reducer.sums = {path: reducer.sums.get(path, zeros[path]) for path in union}
        self.sum(list(reducer.sums.values()))
