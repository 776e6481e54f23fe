"""When things happen: the round engine, progress and reports."""

from flightning.callbacks.federation import Federation

__all__ = ["Federation"]
