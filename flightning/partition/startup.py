"""A quicker start of a command that computes no metrics."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from unittest.mock import patch

__all__ = ["quick_imports"]

#: What torchmetrics, which Lightning imports, imports in turn for metrics of pictures and sound.
_HIDDEN = ("scipy", "torchvision")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import Lightning within, in two thirds of the time.

    Garbage is not looked for meanwhile, and torchmetrics does not find scipy and torchvision, of which it needs nothing
    here. Both can be imported as usual afterwards; only metrics that need torchvision are missing in this process.
    Where torchmetrics is imported already, nothing is hidden.
    """
    checks = importlib.import_module("lightning_utilities.core.imports")
    installed = getattr(checks, "_version", None)
    hidden = {name: None for name in _HIDDEN if name not in sys.modules}
    if "torchmetrics" in sys.modules or installed is None:
        hidden = {}

    def version(package: str) -> str:
        if package in hidden:
            raise PackageNotFoundError(package)
        return str(installed(package)) if installed is not None else ""

    collects = gc.isenabled()
    gc.disable()
    sys.modules.update(hidden)  # type: ignore[arg-type]
    try:
        with patch.object(checks, "_version", version, create=True):
            yield
    finally:
        for name in hidden:
            if sys.modules.get(name) is None:
                sys.modules.pop(name, None)
        if collects:
            gc.enable()
