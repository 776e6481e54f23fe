"""When things happen: the round engine, progress and reports."""

from flightning.callbacks.ccvr import CCVR
from flightning.callbacks.client_evaluation import ClientEvaluation
from flightning.callbacks.drift import Drift
from flightning.callbacks.extra_metrics import ExtraMetrics, LongTailAccuracy
from flightning.callbacks.federation import Federation
from flightning.callbacks.last_checkpoint import LastCheckpoint
from flightning.callbacks.listener import RoundListener
from flightning.callbacks.progress import RoundProgress
from flightning.callbacks.round_logging import RoundLogging
from flightning.callbacks.run_report import RunReport

__all__ = [
    "CCVR",
    "ClientEvaluation",
    "Drift",
    "ExtraMetrics",
    "Federation",
    "LastCheckpoint",
    "LongTailAccuracy",
    "RoundListener",
    "RoundLogging",
    "RoundProgress",
    "RunReport",
]
