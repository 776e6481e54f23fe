"""The log of a run: one row per round, kept whole through crashes and resumed runs."""

from __future__ import annotations

import csv
import os
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from flightning.writable import ensure_writable

__all__ = ["RoundCSVLogger", "ensure_writable", "latest_version", "name_wandb_run", "next_version"]


def _versions(folder: Path) -> list[int]:
    found = (re.fullmatch(r"version_(\d+)", path.name) for path in folder.glob("version_*"))
    return sorted(int(match[1]) for match in found if match)


def latest_version(folder: Path) -> Path | None:
    """The newest ``version_<n>`` in a folder."""
    versions = _versions(folder)
    return folder / f"version_{versions[-1]}" if versions else None


def next_version(folder: Path) -> Path:
    """The first ``version_<n>`` that is not taken."""
    versions = _versions(folder)
    return folder / f"version_{versions[-1] + 1 if versions else 0}"


class RoundCSVLogger(Logger):
    """Write ``metrics.csv`` with one row per finished round into the run's folder.

    Metrics that carry no round (those a module logs in single steps) go to ``steps.csv``. A resumed run keeps the rows
    of the rounds before it.

    Args:
        folder: The run's folder.

    Raises:
        ConfigurationError: Where the folder cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.rows: dict[int, dict[str, Any]] = {}
        self._steps: list[dict[str, Any]] = []
        self._is_open = False

    @property
    def name(self) -> str:
        """Name of the folder above the run's."""
        return self.folder.parent.name

    @property
    def version(self) -> str:
        """Name of the run's folder."""
        return self.folder.name

    @property
    def save_dir(self) -> str:
        """Where the runs of this name lie."""
        return str(self.folder.parent.parent)

    @property
    def log_dir(self) -> str:
        """The run's folder."""
        return str(self.folder)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: ``config.yaml`` in the same folder holds the resolved configuration."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Merge metrics into the row of their round."""
        self._open()
        if "round" not in metrics:
            self._steps.append({"step": step, **metrics})
            return
        finished = int(metrics["round"])
        # later rounds are those that an interrupted run did not keep in its checkpoint
        self.rows = {r: row for r, row in self.rows.items() if r <= finished}
        row = self.rows.setdefault(finished, {})
        row.update({k: v for k, v in metrics.items() if k not in ("round", "epoch")})

    @rank_zero_only
    def save(self) -> None:
        """Write the files, each whole or not at all."""
        if self.rows:
            self._write("metrics.csv", [{"round": r, **row} for r, row in sorted(self.rows.items())])
        if self._steps:
            self._write("steps.csv", self._steps)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the files a last time."""
        self.save()

    def _open(self) -> None:
        if self._is_open:
            return
        ensure_writable(self.folder)
        path = self.folder / "metrics.csv"
        if path.exists():
            with path.open(newline="") as file:
                self.rows = {int(row.pop("round")): _parsed(row) for row in csv.DictReader(file)}
        self._is_open = True

    def _write(self, name: str, rows: list[dict[str, Any]]) -> None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        temporary = self.folder / f".{name}.tmp"
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(temporary, self.folder / name)


def name_wandb_run(logger: WandbLogger, model: str, data: str, partition: str, seed: int) -> None:
    """Give a run in W&B the names by which a comparison is grouped, where neither logger nor environment has them.

    The group is what runs have in common, data and partition; the job type is the method, over whose seeds W&B can then
    average. In a sweep, W&B names the runs itself.

    Args:
        logger: The logger, before its first use.
        model: Name of the method.
        data: Name of the data set.
        partition: How it was split.
        seed: Seed of the run.
    """
    names = {
        **({} if os.environ.get("WANDB_SWEEP_ID") else {"name": ("WANDB_NAME", f"{model}, seed {seed}")}),
        "group": ("WANDB_RUN_GROUP", f"{data}, {partition}"[:128]),
        "job_type": ("WANDB_JOB_TYPE", model),
        "tags": ("WANDB_TAGS", [model[:64], data[:64], f"seed-{seed}"]),
    }
    for argument, (variable, value) in names.items():
        if not os.environ.get(variable) and logger._wandb_init.get(argument) is None:
            logger._wandb_init[argument] = value


def _parsed(row: dict[str, str]) -> dict[str, Any]:
    def parse(text: str) -> Any:
        try:
            return float(text)
        except ValueError:
            return text

    return {key: parse(text) for key, text in row.items() if text != ""}
