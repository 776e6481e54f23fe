"""What ends a run before its last round: Ctrl-C, SIGTERM, and processes that are gone."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

from flightning.strategies.watch import Watch, has_lost_process

__all__ = ["explain_failures", "report_stop"]


def explain_failures(trainer: Trainer, watch: Callable[[], Watch | None]) -> None:
    """Find out why an exchange fails: a process is gone, or SIGTERM has ended it.

    Args:
        trainer: The Trainer whose next fit is meant.
        watch: Tells who looks after the processes.
    """
    loop = trainer.fit_loop

    def run() -> None:
        try:
            type(loop).run(loop)
        except RuntimeError as error:
            if (current := watch()) is not None:
                current.explain(error)
            if trainer.received_sigterm:
                raise SIGTERMException from error
            raise

    loop.run = run  # type: ignore[method-assign]


def report_stop(trainer: Trainer, exception: BaseException) -> None:
    """Say where a run goes on that somebody has stopped, and leave with a code that tells it.

    Nothing is said where the loss of a process was reported: whoever started the processes has then ended the others.

    Args:
        trainer: The Trainer of the run.
        exception: What has ended it.
    """
    if isinstance(exception, SIGTERMException):
        reason = "SIGTERM"
        exception.code = 128 + signal.SIGTERM  # Lightning would leave with 0, as if the run were complete
    elif isinstance(exception, KeyboardInterrupt):
        reason = "Ctrl-C"
    else:
        return
    if trainer.is_global_zero and not has_lost_process():
        print(
            f"stopped by {reason} in round {trainer.current_epoch + 1}: {_remedy(trainer)}", file=sys.stderr, flush=True
        )


def _remedy(trainer: Trainer) -> str:
    callbacks = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
    saved = [path for c in callbacks for path in (c.last_model_path, c.best_model_path) if path]
    if not saved:
        return "no round was finished and saved, so a new run begins at the first."
    last = next((path for path in saved if path.endswith("last.ckpt")), saved[0])
    return f"`{last}` holds the rounds before it; go on with `--ckpt_path last`, or `Trainer.fit(ckpt_path=...)`."
