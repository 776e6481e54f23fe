"""What Lightning's loggers get beside numbers: the cohort, the partition, and the round as x axis."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from flightning.callbacks.federation import Federation
from flightning.callbacks.logged_numbers import log_numbers
from flightning.callbacks.run_report import RunReport
from flightning.datamodules.view import View
from flightning.loggers import RoundCSVLogger
from flightning.plots import view_figures

__all__ = ["RoundLogging"]


class RoundLogging(Callback):
    """Log the cohort of each round as text, and at the start what ``flightning partition`` shows.

    These are the numbers, the picture and the table of the partition, and where there is a skew how far it shifts the
    inputs, the share of labels that it changes and samples as the clients see them.

    ``total/bytes`` (up, down and what is sent once) and ``total/seconds`` of all rounds so far are logged beside every
    accuracy, so that a chart can have them as x axis in place of the round. In W&B every chart begins with the round,
    and the summary shows the best accuracy, its round and the totals.
    """

    def __init__(self) -> None:
        self._best: tuple[float, int] | None = None
        self._totals = {"total/bytes": 0.0, "total/seconds": 0.0}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the partition."""
        if not trainer.is_global_zero:
            return
        # `RunReport` writes numbers and pictures into the folder of the CSV log
        loggers = [logger for logger in trainer.loggers if not isinstance(logger, RoundCSVLogger)]
        if not loggers:
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        view = View.of("", data)
        numbers = {f"partition/{name}": float(value) for name, value in view.as_dict().items()}
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                _define_axes(logger)
                _log_partition_to_wandb(logger, view)
                _log_names_to_wandb(logger, trainer, data)
                logger.experiment.summary.update(numbers)
            else:
                logger.log_metrics(numbers, step=0)
            if isinstance(logger, TensorBoardLogger):
                for name, figure in view_figures(view).items():
                    logger.experiment.add_figure(name, figure, 0)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the totals into the row of the accuracy."""
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            federation = _federation(trainer)
            so_far = {**federation.record.metrics(), "round/setup_bytes": federation.setup_bytes}
            log_numbers(pl_module, self._totals_with(so_far))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the cohort, and keep W&B's summary up to date."""
        finished = trainer.current_epoch + 1
        metrics = _federation(trainer).finished_metrics()
        self._totals = self._totals_with(metrics)
        log_numbers(pl_module, self._totals)
        if not trainer.is_global_zero:
            return
        cohort = " ".join(str(c) for c in sorted(pl_module.cohort))  # type: ignore[arg-type]
        for logger in trainer.loggers:
            _log_text(logger, "round/cohort", cohort, finished)
            if isinstance(logger, RoundCSVLogger):
                # before the round's checkpoint is written: a kill between the two must not lose the row
                logger.log_metrics({"round": finished, **metrics, **self._totals})
                logger.save()
        self._update_summary(trainer, finished)

    def state_dict(self) -> dict[str, Any]:
        """Best accuracy and totals so far."""
        return {"best": self._best, "totals": self._totals}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._best, self._totals = state_dict["best"], state_dict["totals"]

    def _totals_with(self, metrics: dict[str, float]) -> dict[str, float]:
        sent = sum(metrics[f"round/{part}"] for part in ("bytes_up", "bytes_down", "setup_bytes"))
        return {
            "total/bytes": self._totals["total/bytes"] + sent,
            "total/seconds": self._totals["total/seconds"] + metrics["round/seconds"],
        }

    def _update_summary(self, trainer: Trainer, finished: int) -> None:
        metrics = trainer.callback_metrics
        accuracy = metrics.get("val/accuracy")
        if accuracy is not None and (self._best is None or float(accuracy) > self._best[0]):
            self._best = float(accuracy), finished
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                summary = logger.experiment.summary
                summary["total_bytes"] = self._totals["total/bytes"]
                summary["total_seconds"] = self._totals["total/seconds"]
                if self._best is not None:
                    summary["best_accuracy"], summary["best_round"] = self._best


def _federation(trainer: Trainer) -> Federation:
    return next(c for c in trainer.callbacks if isinstance(c, Federation))  # type: ignore[attr-defined]


def _log_text(logger: Logger, key: str, text: str, finished: int) -> None:
    if isinstance(logger, RoundCSVLogger | WandbLogger):
        logger.log_metrics({"round": finished, key: text}, step=finished)  # type: ignore[dict-item]
    elif isinstance(logger, TensorBoardLogger):
        logger.experiment.add_text(key, text, finished)


def _define_axes(logger: WandbLogger) -> None:
    run = logger.experiment
    for axis in ("round", "total/bytes", "total/seconds"):
        run.define_metric(axis)
    for pattern in ("val/*", "test/*", "round/*", "clients/*", "drift/*"):
        run.define_metric(pattern, step_metric="round")
    run.define_metric("val/accuracy", step_metric="round", summary="max")
    run.define_metric("val/loss", step_metric="round", summary="min")


def _log_names_to_wandb(logger: WandbLogger, trainer: Trainer, data: Any) -> None:
    """What a report reads from ``summary.json`` where there is one."""
    names = {key: getattr(data, key) for key in ("partition_hash", "num_clients", "seed")}
    names["partition"] = repr(data.partition)
    report = next((c for c in trainer.callbacks if isinstance(c, RunReport)), None)  # type: ignore[attr-defined]
    names |= {"notice": report.notice} if report is not None and report.notice else {}
    logger.experiment.config.update(names, allow_val_change=True)


def _log_partition_to_wandb(logger: WandbLogger, view: View) -> None:
    import wandb
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    counts = view.numbers.counts
    names = list(view.class_names or range(counts.shape[1]))
    figures = view_figures(view)
    for figure in figures.values():
        FigureCanvasAgg(figure).draw()
    table = wandb.Table(
        columns=["client", "samples", *[str(n) for n in names]],
        data=[[client, int(row.sum()), *row.tolist()] for client, row in enumerate(counts)],
    )
    pictures = {name: wandb.Image(figure) for name, figure in figures.items()}
    logger.experiment.log({**pictures, "partition_table": table, "round": 0})
