"""One cell in its own process: ``python -m flightning.compare.child fit ...``.

The process ends with the comparison that started it, however that ends: the comparison holds the other end of the
process's standard input, and the operating system closes it when the comparison is gone.
"""

from __future__ import annotations

import os
import signal
import threading

__all__ = ["die_with_parent", "main"]


def die_with_parent() -> None:
    """Kill this process and all that it started as soon as standard input ends."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, name="die-with-parent", daemon=True).start()


def main() -> int:
    """Run `flightning` with the arguments of the process."""
    die_with_parent()  # first: importing PyTorch takes seconds
    from flightning.cli import main as train

    return train()


if __name__ == "__main__":
    raise SystemExit(main())
