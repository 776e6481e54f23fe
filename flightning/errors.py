"""Errors that name the value, the rule it breaks and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "ClientError",
    "CompositionError",
    "ConfigurationError",
    "DataNotFoundError",
    "FlightningError",
    "PartitionError",
    "check_choice",
    "nearest",
]


class FlightningError(Exception):
    """Base of every error that flightning raises on purpose."""


class ConfigurationError(FlightningError, ValueError):
    """A setting that cannot work, found before the first local step."""


class PartitionError(FlightningError, ValueError):
    """A partition that cannot be made from the given data."""


class CompositionError(FlightningError, TypeError):
    """Bases of a class that cannot work together."""


class CheckpointError(FlightningError, RuntimeError):
    """A checkpoint that cannot be read, written or resumed."""


class DataNotFoundError(FlightningError, FileNotFoundError):
    """A data set that is not on disk and cannot be fetched."""


class ClientError(FlightningError, RuntimeError):
    """A failure inside the local training of one client.

    Args:
        client: The client that failed.
        stage: What it was doing, such as ``"training_step"``.
        round_index: The round, counted from 0.
        cause: The original exception.

    Example:
        >>> print(ClientError(3, "training_step", 1, ValueError("boom")))
        client 3 failed in `training_step` of round 2: ValueError: boom
    """

    def __init__(self, client: int, stage: str, round_index: int, cause: BaseException) -> None:
        self.client, self.stage, self.round_index = client, stage, round_index
        super().__init__(
            f"client {client} failed in `{stage}` of round {round_index + 1}: {type(cause).__name__}: {cause}"
        )


def check_choice(name: str, value: object, known: Iterable[object]) -> None:
    """Refuse a value that is not among the known ones.

    Example:
        >>> check_choice("advance", "step", ["batch", "epoch"])
        Traceback (most recent call last):
            ...
        flightning.errors.ConfigurationError: `advance='step'` must be one of `batch`, `epoch`.
    """
    if value not in known:
        raise ConfigurationError(f"`{name}={value!r}` must be one of {', '.join(f'`{k}`' for k in known)}.")


def nearest(name: str, known: Iterable[str], most: int = 3) -> str:
    """Sentence that names the known names closest to a mistyped one.

    Example:
        >>> nearest("FedProxx", ["FedAvg", "FedProx", "SOLO"])
        'Did you mean `FedProx`?'
        >>> nearest("xyz", ["FedAvg", "SOLO"])
        'Known names: `FedAvg`, `SOLO`.'
    """
    names = sorted(known)
    lowered = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=most, cutoff=0.5)
    if close:
        return "Did you mean " + ", ".join(f"`{lowered[c]}`" for c in close) + "?"
    shown = ", ".join(f"`{n}`" for n in names[:10])
    return f"Known names: {shown}{', ...' if len(names) > 10 else ''}."
