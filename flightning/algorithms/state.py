"""Declared state of server and clients; keeping, checkpointing and moving it follow from the declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

__all__ = ["ClientStates", "References", "State", "is_reference", "kept_copy", "worth_keeping"]

Default = Any | Callable[[], Any]
#: What a checkpoint says about states that lie in files: their ``folder``, and the name of each client's file.
References = dict[str, Any]


class State:
    """Namespace of declared values: ``state.control`` reads, ``state.control = ...`` writes.

    A value is made from its default when it is first read. Assign new tensors; do not change them in place.

    Example:
        >>> state = State()
        >>> state.declare("control", lambda: torch.zeros(2))
        >>> state.control
        tensor([0., 0.])
        >>> state.contrl
        Traceback (most recent call last):
            ...
        AttributeError: no state `contrl` was declared; declared: ['control']
    """

    def __init__(self) -> None:
        self.__dict__["_defaults"] = {}
        self.__dict__["values"] = {}

    def declare(self, name: str, default: Default) -> None:
        """Add a name; ``default`` is a value or a function without arguments that makes one."""
        self._defaults[name] = default

    @property
    def declared(self) -> list[str]:
        """Names that were declared."""
        return list(self._defaults)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self.values:
            self._check(name)
            default = self._defaults[name]
            self.values[name] = default() if callable(default) else default
        return self.values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._check(name)
        self.values[name] = value

    def _check(self, name: str) -> None:
        if name not in self._defaults:
            raise AttributeError(f"no state `{name}` was declared; declared: {self.declared}")

    def replace(self, values: dict[str, Any]) -> None:
        """Forget all values and take these."""
        self.__dict__["values"] = dict(values)

    def to(self, device: torch.device) -> None:
        """Put all values on a device."""
        self.replace(apply_to_collection(self.values, Tensor, lambda t: t.to(device)))


class ClientStates:
    """The values of every client that has some, kept in memory on the CPU."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._kept))

    def __contains__(self, client: int) -> bool:
        return client in self._kept

    def load(self, client: int, device: torch.device) -> dict[str, Any]:
        """Values of a client on a device; empty for one that has none yet."""
        if client not in self._kept:
            return {}
        return dict(apply_to_collection(self._kept[client], Tensor, lambda t: t.to(device)))

    def save(self, client: int, values: dict[str, Any]) -> None:
        """Keep a copy of the values, so that no state shares memory with live weights."""
        if values := worth_keeping(values):
            self._kept[client] = kept_copy(values)

    def told(self, clients: Iterable[int]) -> dict[int, Any]:
        """Values of these clients for the other processes, so that each holds those of everybody."""
        return {client: self._kept[client] for client in clients if client in self._kept}

    def hear(self, told: dict[int, Any]) -> None:
        """Take in what another process tells."""
        self._kept.update(told)

    def detour(self, client: int, rank: int) -> int:
        """What it costs more to train a client on this process than where its state is, in local steps."""
        return 0

    def fetch(self, ranks: Mapping[int, int]) -> None:
        """Bring states to the processes that train their clients, where they are not there already."""

    def deliver(self, changed: Iterable[int]) -> None:
        """Bring the states that this process has changed to where they are kept, where `told` does not."""

    def check(self) -> None:
        """Refuse what cannot work before a fit starts."""

    def start(self, is_first: bool = True) -> None:
        """Begin a fit; ``is_first`` on one of its processes."""

    def end_round(self, is_first: bool = True) -> None:
        """End a round; ``is_first`` on one of the processes."""

    def state_dict(self) -> dict[Any, Any]:
        """Everything, for a checkpoint."""
        return self._kept

    def load_state_dict(self, kept: dict[Any, Any]) -> None:
        """Everything, from a checkpoint or from the files that it refers to."""
        if is_reference(kept):
            from flightning.algorithms.stored_states import read_files

            kept = read_files(kept)
        self._kept = dict(kept)


def is_reference(kept: dict[Any, Any]) -> bool:
    """Whether a checkpoint refers to files in place of holding the states itself; clients are numbers."""
    return "files" in kept


def worth_keeping(values: dict[str, Any]) -> dict[str, Any]:
    """Values without what the engine declares for every client, where the algorithm does not use it."""
    return {name: value for name, value in values.items() if name not in ("weights", "optimizer") or value}


def kept_copy(values: dict[str, Any]) -> dict[str, Any]:
    """A copy in memory that shares nothing with live weights."""
    copied: dict[str, Any] = apply_to_collection(values, Tensor, lambda t: t.detach().to("cpu", copy=True))
    return copied
