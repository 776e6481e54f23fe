"""A quicker start of a command that computes no metrics."""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from types import ModuleType
from typing import Any
from unittest.mock import patch

__all__ = ["quick_imports"]

#: What torchmetrics, which Lightning imports, imports in turn for metrics of pictures and sound.
_HIDDEN = ("scipy", "torchvision")
_COMPILER = "torch._dynamo"


def _no_compiler() -> ModuleType:
    """Stand for PyTorch's compiler, of which Lightning needs these two names when it is imported."""
    module = ModuleType(_COMPILER)
    module.OptimizedModule = type("OptimizedModule", (), {})  # type: ignore[attr-defined]
    module.disable = lambda fn=None, *args, **kwargs: fn  # type: ignore[attr-defined]
    return module


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import Lightning within, in half of the time.

    Torchmetrics does not find scipy and torchvision, and Lightning does not load PyTorch's compiler, of which they need
    nothing here. All can be imported as usual afterwards; only metrics that need torchvision are missing in this
    process, and Lightning does not know compiled modules. What is imported already is not hidden. Garbage is not looked
    for meanwhile, nor afterwards among what was imported.
    """
    checks = importlib.import_module("lightning_utilities.core.imports")
    installed = getattr(checks, "_version", None)
    hidden: dict[str, Any] = {name: None for name in _HIDDEN if name not in sys.modules}
    if "torchmetrics" in sys.modules or installed is None:
        hidden = {}

    def version(package: str) -> str:
        if package in hidden:
            raise PackageNotFoundError(package)
        return str(installed(package)) if installed is not None else ""

    stands_in = {} if _COMPILER in sys.modules else {_COMPILER: _no_compiler()}
    collects = gc.isenabled()
    gc.disable()
    sys.modules.update(hidden | stands_in)
    try:
        with patch.object(checks, "_version", version, create=True):
            yield
    finally:
        for name, module in (hidden | stands_in).items():
            if sys.modules.get(name) is module:
                sys.modules.pop(name, None)
        if stands_in:
            gc.freeze()
            # a library that counts what is left at the end would complain about all of it
            atexit.register(gc.unfreeze)
        if collects:
            gc.enable()
