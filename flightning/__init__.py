"""Federated learning on non-IID data as one PyTorch Lightning fit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flightning.version import __version__

if TYPE_CHECKING:
    from flightning.algorithms import FederatedMixin
    from flightning.callbacks import Federation
    from flightning.datamodules import FederatedDataModule

__all__ = ["FederatedDataModule", "FederatedMixin", "Federation", "__version__"]

#: Where the names are with which a script begins. Each is imported when it is asked for: PyTorch takes seconds.
_HOMES = {
    "FederatedDataModule": "flightning.datamodules",
    "FederatedMixin": "flightning.algorithms",
    "Federation": "flightning.callbacks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `flightning` has no attribute `{name}`")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
