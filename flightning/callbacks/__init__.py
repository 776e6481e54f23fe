"""When things happen: the round engine, progress and reports."""

from flightning.callbacks.drift import Drift
from flightning.callbacks.federation import Federation
from flightning.callbacks.last_checkpoint import LastCheckpoint
from flightning.callbacks.listener import RoundListener
from flightning.callbacks.progress import RoundProgress
from flightning.callbacks.round_logging import RoundLogging
from flightning.callbacks.run_report import RunReport

__all__ = ["Drift", "Federation", "LastCheckpoint", "RoundListener", "RoundLogging", "RoundProgress", "RunReport"]
