"""What a run leaves behind: pictures, a summary file and a short table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from flightning.datamodules.view import View, describe
from flightning.loggers import RoundCSVLogger, ensure_writable
from flightning.plots import learning_curve_figure, save_figure, view_figures

__all__ = ["RunReport", "format_bytes", "run_folder"]


def format_bytes(count: float) -> str:
    """A number of bytes for people.

    Example:
        >>> format_bytes(0), format_bytes(1234), format_bytes(5.6e9)
        ('0 B', '1.2 kB', '5.6 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def run_folder(trainer: Trainer) -> Path:
    """Folder for what a run leaves: that of the report or of the round log, or Lightning's own."""
    report = next((c for c in trainer.callbacks if isinstance(c, RunReport)), None)  # type: ignore[attr-defined]
    log = next((logger for logger in trainer.loggers if isinstance(logger, RoundCSVLogger)), None)
    return report.folder if report else log.folder if log else Path(trainer.log_dir or trainer.default_root_dir)


class RunReport(Callback):
    """Draw the clients when a run starts, keep ``summary.json``, and end with ``learning_curve.png`` and a table.

    ``partition.png`` shows who holds which classes, ``samples.png`` what clients see where a skew or natural ids make a
    difference.

    Args:
        folder: The run's folder.
        metric: The metric whose best round is reported.
        notice: Line that must stand on top of every report of this run, such as that its rounds were scaled down.
    """

    def __init__(self, folder: str | Path, metric: str = "val/accuracy", notice: str = "") -> None:
        self.folder, self.metric, self.notice = Path(folder), metric, notice
        self._has_trained = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a folder that cannot be written, before any work is done, and draw the clients."""
        self._has_trained = False
        if not trainer.is_global_zero:
            return
        ensure_writable(self.folder)
        data = trainer.datamodule  # type: ignore[attr-defined]
        self._view = View.of(f"{type(data).__name__}, {describe(data)}, seed {data.seed}", data)
        for name, figure in view_figures(self._view).items():
            save_figure(figure, self.folder / f"{name}.png")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the summary up to date, so that an interrupted run can be read, too."""
        self._has_trained = True
        if trainer.is_global_zero:
            self._write_summary(trainer, pl_module, finished=False)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the learning curve and print the table, also those of a run that was stopped after its last round."""
        if not trainer.is_global_zero:
            return
        rows = self._rows(trainer)
        if not self._has_trained and trainer.ckpt_path is not None:
            print(
                f"No round was trained: the checkpoint has all {trainer.max_epochs} rounds already. Raise "
                "`--trainer.max_epochs` to go on."
            )
            if max(rows, default=0) < (trainer.max_epochs or 0):  # the rounds were logged in another folder
                return
        if not rows:
            return
        summary = self._write_summary(trainer, pl_module, finished=True)
        title = f"{summary['model']} on {self._view.title}"
        save_figure(learning_curve_figure(rows, title), self.folder / "learning_curve.png")
        self._print(summary)

    def _rows(self, trainer: Trainer) -> dict[int, dict[str, Any]]:
        for logger in trainer.loggers:
            if isinstance(logger, RoundCSVLogger):
                logger.open()  # where nothing was trained, nothing was logged
                return logger.rows
        return {}

    def _write_summary(self, trainer: Trainer, module: LightningModule, finished: bool) -> dict[str, Any]:
        rows, data = self._rows(trainer), trainer.datamodule  # type: ignore[attr-defined]
        scores = {r: float(row[self.metric]) for r, row in rows.items() if self.metric in row}
        best = max(scores, key=lambda r: scores[r], default=None)
        # a step after training, such as `CCVR`, logs what it sends beside the last round
        totals = {
            key: sum(float(row.get(f"{part}/{key}", 0.0)) for row in rows.values() for part in ("round", "ccvr"))
            for key in ("bytes_up", "bytes_down", "setup_bytes", "seconds", "bad_updates")
        }
        calibrated = [float(row["ccvr/accuracy"]) for row in rows.values() if "ccvr/accuracy" in row]
        summary = {
            "model": type(module).__name__,
            "data": type(data).__name__,
            "partition": repr(data.partition),
            "skew": None if data.skew is None else repr(data.skew),
            "partition_hash": data.partition_hash,
            "heterogeneity": self._view.as_dict(),
            "num_clients": data.num_clients,
            "seed": data.seed,
            "rounds": max(rows, default=0),
            "max_rounds": trainer.max_epochs,
            "best_accuracy": None if best is None else scores[best],
            "best_round": best,
            "final_accuracy": scores[max(scores)] if scores else None,
            **({"ccvr_accuracy": calibrated[-1]} if calibrated else {}),
            **totals,
            "finished": finished,
            **({"notice": self.notice} if self.notice else {}),
        }
        temporary = self.folder / ".summary.json.tmp"
        temporary.write_text(json.dumps(summary, indent=2) + "\n")
        os.replace(temporary, self.folder / "summary.json")
        return summary

    def _print(self, summary: dict[str, Any]) -> None:
        from rich.console import Console
        from rich.table import Table

        table = Table(title=f"{summary['model']} on {summary['data']}", title_justify="left")
        best = summary["best_accuracy"]
        cells = {
            "best accuracy": "-" if best is None else f"{100 * best:.2f} %",
            "at round": str(summary["best_round"] or "-"),
            **({"after CCVR": f"{100 * summary['ccvr_accuracy']:.2f} %"} if "ccvr_accuracy" in summary else {}),
            "rounds": str(summary["rounds"]),
            "bytes up": format_bytes(summary["bytes_up"]),
            "bytes down": format_bytes(summary["bytes_down"]),
            **({"bytes once": format_bytes(summary["setup_bytes"])} if summary["setup_bytes"] else {}),
            "seconds": f"{summary['seconds']:.1f}",
        }
        for column in cells:
            table.add_column(column, justify="right")
        table.add_row(*cells.values())
        console = Console()
        console.print(table)
        if self.notice:
            console.print(self.notice)
        if summary["bad_updates"]:
            console.print(f"{summary['bad_updates']:.0f} client updates held NaN or infinity and were left out.")
        pictures = "learning_curve.png, partition.png" + ("" if self._view.strip is None else ", samples.png")
        print(f"The run lies in {self.folder} (metrics.csv, summary.json, {pictures})")
