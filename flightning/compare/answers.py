"""Ask a process of its own something about a cell."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flightning.compare.folders import read_json
from flightning.compare.processes import Nurseries
from flightning.compare.runner import OUTPUT, reason

__all__ = ["ask"]

_PAUSE = 0.05


def ask(nurseries: Nurseries, module: str, arguments: Sequence[str], threads: int = 0) -> tuple[dict[str, Any], str]:
    """Let a module answer; nothing is left on disk.

    Args:
        nurseries: Where the process is started.
        module: Module whose ``main`` writes the answer to the JSON file that is its first argument.
        arguments: Its other arguments.
        threads: Its threads; 0 leaves them alone.

    Returns:
        The answer; where there is none, an empty one and the reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer, output = Path(folder, "answer.json"), Path(folder, OUTPUT)
        process = nurseries.start(module, [str(answer), *arguments], output, {}, threads)
        while process.poll() is None:
            time.sleep(_PAUSE)
        found = read_json(answer)
        return found, "" if found else reason(output, process.code or 0)
