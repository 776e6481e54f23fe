"""SIGTERM, also while the main thread waits inside an exchange, where Python runs no handler."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

__all__ = ["SigtermListener"]

_current: SigtermListener | None = None


class SigtermListener:
    """Take SIGTERM over from Lightning, whose own handler begins an exchange and hangs inside of another one.

    Python runs handlers in the main thread and not before it comes back from an exchange; the number of the signal is
    written to a socket at once, and another thread reads it.

    Args:
        note: Called by the main thread when the signal has come.
    """

    def __init__(self, note: Callable[[], None]) -> None:
        global _current
        self._reader, self._writer = socket.socketpair()
        self._is_open = threading.current_thread() is threading.main_thread()  # others cannot set handlers
        if self._is_open:
            self._writer.setblocking(False)
            self._before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

            def handle(signum: int, frame: FrameType | None) -> None:
                note()

            signal.signal(signal.SIGTERM, handle)
            _current = self

    def wait(self, seconds: float) -> bool:
        """Wait so long for the signal, in another thread than the main one; whether it has come."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and select.select([self._reader], [], [], left)[0]:
            numbers = self._reader.recv(512)
            if signal.SIGTERM in numbers:
                return True
            if not numbers:  # closed
                break
        return False

    def close(self) -> None:
        """Listen no longer; Lightning restores the handlers after a fit."""
        global _current
        if self._is_open:
            self._is_open, _current = False, None
            signal.set_wakeup_fd(self._before)
        self._writer.close()


def _leave_to_parent() -> None:
    """A signal to a forked process, such as a worker of a pool, concerns nobody else."""
    if _current is not None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_leave_to_parent)
