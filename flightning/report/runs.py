"""Find run folders and read what they logged, whatever state they were left in."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flightning.errors import FlightningError
from flightning.report.configuration import class_name, data_and_partition, flatten, load_mapping

__all__ = ["FloatArray", "ReportError", "Run", "find_runs", "read_run", "read_runs"]

FloatArray = npt.NDArray[np.float64]

KEYS = frozenset(
    ["val/accuracy", "val/accuracy_std"]
    + [f"round/{name}" for name in ("clients", "bytes_up", "bytes_down", "setup_bytes", "seconds", "seconds_training")]
    + [f"{part}_{way}" for part in ("round/extra_bytes", "ccvr/bytes") for way in ("up", "down")]
    + [f"clients/{name}" for name in ("accuracy_mean", "accuracy_std", "accuracy_worst10", "accuracy_best10", "jain")]
)
"""The logged keys that a report uses; every other column is passed over unread."""


class ReportError(FlightningError, ValueError):
    """Runs that cannot be put into one report."""


@dataclass(frozen=True)
class Run:
    """What one run logged.

    Args:
        folder: Where it was found.
        model: Name of the method, such as ``"FedAvg"``.
        data: Name of the data set.
        partition: How the data were split, such as ``"Dirichlet(alpha=0.5)"``; empty if unknown.
        partition_hash: Fingerprint of the split; empty if unknown.
        seed: Seed of the run, or None if it was not logged.
        clients: Number of clients as text; empty if unknown.
        config: Flat configuration, see :func:`flightning.report.configuration.flatten`.
        rounds: Numbers of the logged rounds, ascending, counted from 1.
        metrics: One value per logged round for each key of ``KEYS`` that was logged; NaN where it was not.
        finished: False for a run that says it was interrupted.
        notice: A line that must stand on top of every report of this run.
        label: Its name in the comparison that made the run; empty if none did.
        name: The name that the grid of this comparison gives to its method; empty if it gives none.
        picture: Picture of the partition, if there is one.
        broken: Number of unreadable log lines that were skipped.
        problems: Sentences about files that could not be read.
    """

    folder: Path
    model: str
    data: str
    partition: str
    partition_hash: str
    seed: int | None
    clients: str
    config: Mapping[str, str]
    rounds: npt.NDArray[np.int64]
    metrics: Mapping[str, FloatArray]
    finished: bool = True
    notice: str = ""
    label: str = ""
    name: str = ""
    picture: Path | None = None
    broken: int = 0
    problems: tuple[str, ...] = ()

    def logged(self, key: str) -> FloatArray:
        """Values of a key, NaN for every round in which it was not logged."""
        return self.metrics.get(key, np.full(len(self.rounds), np.nan))


def find_runs(paths: Iterable[Path | str]) -> list[Path]:
    """Run folders and offline W&B logs at or below the given folders, each once.

    A folder with a ``metrics.csv`` is a run, and nothing below it is another one, so a run that was logged twice counts
    once.

    Args:
        paths: Run folders, or folders that contain run folders at any depth.

    Returns:
        Folders of CSV runs and ``run-*.wandb`` files, in the order of the arguments and of their names.

    Raises:
        ReportError: If a path does not exist or no run is found.
    """
    given = [Path(p) for p in paths]
    found: dict[Path, Path] = {}
    for path in given:
        if not path.is_dir():
            raise ReportError(
                f"`{path}` is not a folder, but RUN_DIR must be one; give a run folder or one that holds runs."
            )
        for folder, below, files in os.walk(path):
            below.sort(key=_natural)
            if "metrics.csv" in files:
                below.clear()
                found.setdefault(Path(folder).resolve(), Path(folder))
                continue
            for name in sorted(files):
                if name.startswith("run-") and name.endswith(".wandb"):
                    found.setdefault(Path(folder, name).resolve(), Path(folder, name))
    if not found:
        shown = ", ".join(f"`{p}`" for p in given)
        raise ReportError(
            f"no run in {shown}: a run is a folder with a `metrics.csv` or an offline W&B log (`run-*.wandb`); "
            "check the path, or make runs with `flightning fit` or `flightning compare`."
        )
    return list(found.values())


def read_runs(paths: Iterable[Path | str]) -> tuple[list[Run], list[str]]:
    """Read every run at or below the given folders.

    Args:
        paths: See :func:`find_runs`.

    Returns:
        The runs that logged an accuracy, and notes about what was skipped.

    Raises:
        ReportError: If no run logged an accuracy.
        FlightningError: If none can be read.
    """
    notes: list[str] = []
    runs: list[Run] = []
    unreadable: list[FlightningError] = []
    # runs of W&B last: those that were also logged as CSV are known then
    for path, *more in sorted(_whole(find_runs(paths)), key=lambda parts: not parts[0].is_dir()):
        try:
            run = read_run(path, *more)
        except FlightningError as error:
            unreadable.append(error)
            notes.append(f"`{path}` is left out: {error}")
            continue
        if not path.is_dir() and any(_same(run, other) for other in runs):
            notes.append(f"`{path}` is left out: it is the W&B log of a run whose `metrics.csv` is here, too.")
            continue
        notes += [f"`{path}`: {problem}" for problem in run.problems]
        if run.broken:
            plural = "line was" if run.broken == 1 else "lines were"
            notes.append(
                f"`{path}`: {run.broken} broken log {plural} skipped; sums of bytes and seconds lack these rounds."
            )
        if np.isfinite(run.logged("val/accuracy")).any():
            runs.append(run)
        else:
            notes.append(f"`{path}` is left out: it logged no `val/accuracy` in any round.")
    if not runs and len(unreadable) == len(notes):
        raise unreadable[0]
    if not runs:
        raise ReportError(
            f"none of the {len(notes)} runs logged `val/accuracy`, and every table needs it ({notes[0]}); "
            "let the runs finish a round, or log the accuracy under this name."
        )
    return _seeded(runs), notes


def _whole(found: Iterable[Path]) -> list[list[Path]]:
    """The runs, each with the parts in which W&B logged it: one that goes on has a new file with the same name."""
    runs: dict[Path, list[Path]] = {}
    for path in found:
        # wandb/offline-run-<time>-<id>/run-<id>.wandb
        runs.setdefault(path if path.is_dir() else path.parent.parent.resolve() / path.name, []).append(path)
    return [sorted(parts) for parts in runs.values()]


def _same(run: Run, other: Run) -> bool:
    """Whether a run is a log, possibly of fewer rounds, of another."""
    if any(getattr(run, name) != getattr(other, name) for name in ("model", "data", "partition_hash", "seed")):
        return False
    here = {int(r): a for r, a in zip(other.rounds, other.logged("val/accuracy"), strict=True)}
    known = np.array([here.get(int(r), np.nan) for r in run.rounds])
    return bool(np.allclose(run.logged("val/accuracy"), known, atol=1e-6, equal_nan=True))


def _seeded(runs: list[Run]) -> list[Run]:
    """The runs, told apart by ``seed_everything`` where the seed of the data was held fixed."""
    everything = [r.config.get("seed_everything", "") for r in runs]
    if all(text.isdigit() for text in everything) and len(set(everything)) > len({r.seed for r in runs}):
        return [replace(r, seed=int(text)) for r, text in zip(runs, everything, strict=True)]
    return runs


def read_run(path: Path, *more: Path) -> Run:
    """Read one run.

    Args:
        path: A folder with a ``metrics.csv``, or a ``run-*.wandb`` file.
        *more: Further files of a W&B run that was interrupted and went on.
    """
    problems: list[str] = []
    if path.is_dir():
        table, broken = read_csv(path / "metrics.csv")
        summary, folder = load_mapping(path / "summary.json", problems), path
        config = load_mapping(path / "config.yaml", problems) or load_mapping(path / "hparams.yaml", problems)
        picture: Path | None = path / "partition.png"
    else:
        from flightning.report.wandb_log import read_wandb

        table, config, summary, broken = read_wandb([path, *more])
        folder = path.parent
        picture = next(iter(sorted(folder.rglob("*partition*.png"))), None)
    rounds = np.array(sorted(table), dtype=np.int64)
    keys = sorted({key for row in table.values() for key in row})
    flat = flatten(config)
    data, partition = data_and_partition(summary, config)
    cell = load_mapping(folder / "cell.json", problems)
    return Run(
        folder=folder,
        model=str(summary.get("model") or class_name(config.get("model", config.get("_class_path"))) or folder.name),
        data=str(cell.get("data") or data),
        partition=partition,
        partition_hash=str(summary.get("partition_hash") or ""),
        seed=_seed(summary.get("seed", config.get("seed_everything"))),
        clients=str(summary.get("num_clients") or flat.get("data.num_clients", "")),
        config=flat,
        rounds=rounds,
        metrics={k: np.array([table[int(r)].get(k, np.nan) for r in rounds], dtype=np.float64) for k in keys},
        finished=summary.get("finished") is not False,
        notice=str(summary.get("notice") or ""),
        label=str(cell.get("label") or ""),
        name=str(cell.get("name") or ""),
        picture=picture if picture is not None and picture.is_file() else None,
        broken=broken,
        problems=tuple(problems),
    )


def read_csv(path: Path) -> tuple[dict[int, dict[str, float]], int]:
    """Read a ``metrics.csv`` and skip what a crash left half-written.

    Args:
        path: The file; without a ``round`` column, ``epoch`` (counted from 0) takes its place.

    Returns:
        ``{round: {key: value}}`` and the number of broken lines. A round that was logged again after a resume keeps
        the last values.
    """
    text = path.read_bytes().decode("utf-8", errors="replace")
    lines = text.splitlines(keepends=True)
    header: list[str] = []
    table: dict[int, dict[str, float]] = {}
    broken = 0
    for line in lines:
        if not line.strip():
            continue
        # an unterminated last line was cut by a crash: its last number may lack digits
        cells = (
            []
            if "\0" in line or "\ufffd" in line or line[-1] not in "\r\n"
            else next(csv.reader(io.StringIO(line)), [])
        )
        if "round" in cells or "epoch" in cells:
            header = cells
        elif not cells or len(cells) != len(header) or not add_row(table, dict(zip(header, cells, strict=True))):
            broken += 1
    return table, broken


def add_row(table: dict[int, dict[str, float]], row: Mapping[str, Any]) -> bool:
    """Merge one logged row into a table by its round; False if the row cannot be read.

    Example:
        >>> table: dict[int, dict[str, float]] = {}
        >>> add_row(table, {"round": "1", "val/accuracy": "0.5", "round/seconds": ""})
        True
        >>> add_row(table, {"round": "2", "val/accuracy": "0.#"})
        False
        >>> table
        {1: {'val/accuracy': 0.5}}
    """
    try:
        number = float(row["round"]) if row.get("round") not in (None, "") else float(row["epoch"]) + 1
        values = {k: float(v) for k, v in row.items() if k in KEYS and v not in (None, "")}
    except (KeyError, TypeError, ValueError):
        return False
    if not math.isfinite(number) or number < 1 or number != int(number):
        return False
    table.setdefault(int(number), {}).update({k: v for k, v in values.items() if math.isfinite(v)})
    return True


def _natural(name: str) -> list[tuple[int, str]]:
    """Key that sorts ``seed-10`` after ``seed-2``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _seed(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
