"""Federated learning on non-IID data as one PyTorch Lightning fit."""

from flightning.version import __version__

__all__ = ["__version__"]
