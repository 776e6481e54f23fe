"""The processes of a run, and what they tell each other once per round."""

from __future__ import annotations

import io
import pickle
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

#: Numbers of a model up to which its sums travel with everything else: an exchange of their own takes 2 ms.
_SMALL = 2**16

Splits = Literal["nothing", "clients", "batches"]


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
            dist.all_reduce(flag := torch.zeros(1, device=self.device))
            flag.item()  # on a GPU, the exchange alone holds up what comes after it there and not this process

    def gather(self, tree: Any) -> list[Any]:
        """Values of all processes, in order, such as dicts and lists with tensors; these arrive on the CPU."""
        if self.count == 1:
            return [tree]
        packed = _pack(tree)
        sizes = self._all_gather(torch.tensor([len(packed)]))
        longest = int(max(sizes))
        received = self._all_gather(torch.cat([packed, packed.new_empty(longest - len(packed))]))
        return [tree if rank == self.rank else _unpack(theirs) for rank, theirs in enumerate(received)]

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        own = tensor.to(self.device)
        gathered = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(gathered, own)
        return [t.cpu() for t in gathered]

    def exchange(self, trees: Sequence[Any]) -> list[Any]:
        """Send one value to each process, in order, and return what each has sent to this one, as `gather` does."""
        parcels = [_pack(tree) for tree in trees]
        sizes = [int(theirs[self.rank]) for theirs in self._all_gather(torch.tensor([len(p) for p in parcels]))]
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        dist.all_to_all_single(received, torch.cat(parcels).to(self.device), sizes, [len(p) for p in parcels])
        return [_unpack(theirs) for theirs in torch.split(received.cpu(), sizes)]

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add tensors of double precision over all processes, in place and in one exchange."""
        if self.count == 1 or not tensors:
            return
        flat = torch.cat([t.reshape(-1).to(self.device) for t in tensors])
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    @torch.no_grad()
    def agree_on(self, tensors: Iterable[Tensor]) -> None:
        """Where all train the same client, take these tensors from the first process, such as BatchNorm statistics."""
        if not self.split_batches:
            return
        alike: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            alike.setdefault(tensor.dtype, []).append(tensor)
        for group in alike.values():  # in one exchange: a small one takes as long as a large one
            flat = torch.cat([t.reshape(-1) for t in group])
            dist.broadcast(flat, 0)
            for tensor, part in zip(group, torch.split(flat, [t.numel() for t in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

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
        is_small = sum(t.numel() for t in reducer.sums.values()) <= _SMALL
        own = {
            "shapes": {path: tuple(total.shape) for path, total in reducer.sums.items()},
            "sums": reducer.sums if is_small else None,
            "mass": reducer.mass,
            "maxima": reducer.maxima,
            "stacks": reducer.stacks,
            "told": told,
        }
        gathered = self.gather(own)
        if all(tree["sums"] is not None for tree in gathered):
            self._add_small_sums(reducer, [tree["sums"] for tree in gathered])
        else:
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

    def _add_small_sums(self, reducer: Reducer, sums: list[dict[tuple[str, ...], Tensor]]) -> None:
        totals: dict[tuple[str, ...], Tensor] = {}
        for theirs in sums:  # in the order of the processes: all end with the same bits
            for path, total in theirs.items():
                totals[path] = totals[path] + total.to(self.device) if path in totals else total.to(self.device)
        reducer.sums = totals

    def _add_sums(self, reducer: Reducer, shapes: list[dict[tuple[str, ...], tuple[int, ...]]]) -> None:
        """Of large models: in one more exchange, in which no process holds the sums of all others."""
        union = {path: shape for theirs in shapes for path, shape in theirs.items()}
        zeros = {p: torch.zeros(s, dtype=torch.float64, device=self.device) for p, s in union.items()}
        reducer.sums = {path: reducer.sums.get(path, zeros[path]) for path in union}
        self.sum(list(reducer.sums.values()))


# --- values as bytes: pickled, with the numbers of tensors behind ----------------------------------------------------


class _Pickler(pickle.Pickler):
    """Leaves tensors out and keeps their bytes."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.parts: list[Tensor] = []
        self._end = 0

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        start = self._end
        self.parts.append(obj.detach().to("cpu").contiguous().view(-1).view(torch.uint8))
        self._end += len(self.parts[-1])
        return start, self._end, obj.shape, obj.dtype


class _Unpickler(pickle.Unpickler):
    """Makes tensors from the bytes behind what is pickled."""

    def __init__(self, file: io.BytesIO, content: Tensor) -> None:
        super().__init__(file)
        self._content = content

    def persistent_load(self, pid: Any) -> Tensor:
        start, end, shape, dtype = pid
        # a copy: a view of bytes at an odd address is no tensor of floats
        return self._content[start:end].clone().view(dtype).view(shape)


def _pack(tree: Any) -> Tensor:
    pickler = _Pickler(file := io.BytesIO())
    pickler.dump(tree)
    head = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    return torch.cat([torch.tensor([len(head)]).view(torch.uint8), head, *pickler.parts])


def _unpack(packed: Tensor) -> Any:
    end = 8 + int(packed[:8].clone().view(torch.int64))
    return _Unpickler(io.BytesIO(packed[8:end].numpy().tobytes()), packed[end:]).load()
