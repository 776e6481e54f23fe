"""Signs of life between machines, through the store with which the processes have found each other."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

__all__ = ["Heartbeat"]

#: Seconds between two beats, and seconds without one after which a process counts as lost. A process that computes
#: beats on, but one long call may keep Python from beating.
BEAT, STALE = 1.0, 15.0

_SIGTERM = "SIGTERM"


class Heartbeat(threading.Thread):
    """Beat for the processes on other machines, and listen to theirs.

    All processes must have made theirs before one of them starts it.

    Args:
        rank: Number of this process.
        others: Numbers of the processes on other machines; without any, nothing happens.
    """

    def __init__(self, rank: int, others: Iterable[int]) -> None:
        super().__init__(name="flightning-heartbeat", daemon=True)
        self._rank, self._others = rank, list(others)
        self._beats, self._word = 0, ""
        self._heard = dict.fromkeys(self._others, "")
        #: Own beats since the last one of each other process: a machine that sleeps does not count.
        self._missed = dict.fromkeys(self._others, 0)
        #: Since when the store has not answered; a machine that is gone never does.
        self._asked: float | None = None
        self._stopped = threading.Event()
        if self._others:
            self._store = _connect()
            self._beat()

    def run(self) -> None:
        """Beat and listen until the store is gone."""
        while self._others and not self._stopped.wait(BEAT):
            self._asked = time.monotonic()
            try:
                self._beat()
                self._listen()
            except RuntimeError:
                self._asked = -math.inf
                return
            self._asked = None

    def stop(self) -> None:
        """Beat no longer, once the others have heard what there is to tell."""
        if self._word and self.is_alive():
            time.sleep(2.5 * BEAT)
        self._stopped.set()

    def tell_sigterm(self) -> None:
        """Tell the others that SIGTERM has come."""
        self._word = _SIGTERM

    def hears_sigterm(self) -> bool:
        """Whether SIGTERM has come to a process on another machine."""
        return any(heard.endswith(_SIGTERM) for heard in self._heard.values())

    def silent(self) -> list[int]:
        """Processes that do not beat any more; the first one serves the store."""
        if (asked := self._asked) is not None and time.monotonic() - asked > STALE:
            return [rank for rank in self._others if rank == 0]
        return [rank for rank, missed in self._missed.items() if missed * BEAT > STALE]

    def _beat(self) -> None:
        self._beats += 1
        self._store.set(str(self._rank), f"{self._beats} {self._word}")

    def _listen(self) -> None:
        for rank, value in zip(self._others, self._store.multi_get([str(r) for r in self._others]), strict=True):
            heard = value.decode()
            self._missed[rank] = 0 if heard != self._heard[rank] else self._missed[rank] + 1
            self._heard[rank] = heard


def _connect() -> Any:
    """A connection of its own: the exchanges of the main thread wait for nothing that happens here."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        store = TCPStore(store.host, store.port, wait_for_workers=False, timeout=timedelta(seconds=STALE))
    return PrefixStore("flightning-heartbeat", store)
