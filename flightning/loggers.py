"""The log of a run: one row per round, kept whole through crashes and resumed runs."""

from __future__ import annotations

import csv
import os
import re
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from flightning.writable import ensure_writable

__all__ = [
    "RoundCSVLogger",
    "claim_version",
    "ensure_writable",
    "latest_version",
    "name_wandb_run",
    "next_version",
]


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


def claim_version(folder: Path) -> Path:
    """Make the first ``version_<n>`` that is not taken, so that no other run takes it.

    Args:
        folder: Where the runs lie.

    Raises:
        ConfigurationError: Where it cannot be made.
    """
    while True:
        found = next_version(folder)
        try:
            os.makedirs(found)
        except FileExistsError:  # by a run that was started in the same moment
            continue
        except OSError:
            ensure_writable(found)
        return found


class RoundCSVLogger(Logger):
    """Write ``metrics.csv`` with one row per finished round into the run's folder.

    Metrics that carry no round (those a module logs in single steps) go to ``steps.csv``. A resumed run keeps the rows
    of the rounds and steps before it.

    Args:
        folder: The run's folder.

    Raises:
        ConfigurationError: Where the folder cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.rows: dict[int, dict[str, Any]] = {}
        self._steps = _Steps(self.folder / "steps.csv")
        self._is_open = self._is_changed = False

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
        self.open()
        if "round" not in metrics:
            self._steps.add(step, metrics)
            return
        finished = int(metrics["round"])
        # later rounds are those that an interrupted run did not keep in its checkpoint
        self.rows = {r: row for r, row in self.rows.items() if r <= finished}
        row = self.rows.setdefault(finished, {})
        row.update({k: v for k, v in metrics.items() if k not in ("round", "epoch")})
        self._is_changed = True

    @rank_zero_only
    def save(self) -> None:
        """Write what is new: the rounds whole or not at all, the steps behind those that are there."""
        if self._is_changed:
            _write(self.folder / "metrics.csv", [{"round": r, **row} for r, row in sorted(self.rows.items())])
            self._is_changed = False
        self._steps.write()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the files a last time."""
        self.save()

    @rank_zero_only
    def open(self) -> None:
        """Read the rounds that the folder holds already, where nothing was logged yet."""
        if self._is_open:
            return
        ensure_writable(self.folder)
        path = self.folder / "metrics.csv"
        if path.exists():
            with path.open(newline="") as file:
                self.rows = {int(row.pop("round")): _parsed(row) for row in csv.DictReader(file)}
        self._is_open = True


class _Steps:
    """A file that grows by a line per step, so that the last step of a run costs what the first one did.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        self._new: list[dict[str, Any]] = []
        self._is_open = False

    def add(self, step: int | None, metrics: dict[str, Any]) -> None:
        if not self._is_open:
            self._resume(step)
        self._new.append({"step": step, **metrics})

    def write(self) -> None:
        if not self._new:
            return
        if any(key not in self._columns for row in self._new for key in row):
            self._columns = _write(self._path, [*self._kept(), *self._new])
        else:
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, self._columns).writerows(self._new)
        self._new.clear()

    def _resume(self, step: int | None) -> None:
        """Drop the steps that an interrupted run did not keep in its checkpoint, and a line that it left unfinished."""
        kept = [row for row in self._kept() if step is None or not row["step"] or int(row["step"]) < step]
        if kept:
            self._columns = _write(self._path, kept)
        else:
            self._path.unlink(missing_ok=True)
        self._is_open = True

    def _kept(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open(newline="") as file:
            return list(csv.DictReader(line for line in file if line.endswith("\n")))


def _write(path: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Write a table whole or not at all; its columns."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(temporary, path)
    return columns


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
        for kind in (int, float):  # a cohort of one client is a whole number
            with suppress(ValueError):
                return kind(text)
        return text

    return {key: parse(text) for key, text in row.items() if text != ""}
