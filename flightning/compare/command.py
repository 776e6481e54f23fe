"""``flightning compare``: run a grid of methods, data sets, partitions and seeds, and report on it."""

from __future__ import annotations

import argparse
import fcntl
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flightning.compare.cells import Cell, default_folder, make_cells
from flightning.compare.data import check_data
from flightning.compare.estimate import dry_run
from flightning.compare.folders import finished_cells
from flightning.compare.grid import Grid, flat, parse_choice, read_grid
from flightning.compare.processes import Nurseries
from flightning.compare.runner import OUTPUT, Runner
from flightning.compare.status import Status
from flightning.compare.view import view
from flightning.errors import ConfigurationError, FlightningError, nearest
from flightning.packaged import find_config
from flightning.report import check_options, report
from flightning.report.arrange import plain
from flightning.writable import ensure_writable

__all__ = ["choose", "compare", "make_grid", "run"]

#: Options of `fit` that the comparison itself sets, and what to give in their place.
_OWN = {
    "--model": "`--models`",
    "--seed_everything": "`--seeds`",
    "--run_folder": "`--out`",
    "--ckpt_path": "nothing: interrupted cells go on by themselves",
}


def compare(cells: Sequence[Cell], out: Path, jobs: int = 1, report_options: Mapping[str, Any] | None = None) -> int:
    """Run all cells that are not finished, and report.

    Args:
        cells: The cells, see :func:`flightning.compare.make_cells`.
        out: Folder of the comparison, to which the report goes.
        jobs: Cells that run at once.
        report_options: Arguments of :func:`flightning.report.report`.

    Returns:
        Number of cells that failed.

    Raises:
        ConfigurationError: If the folder is in use, holds other runs, or cannot be written.
        ReportError: If the arguments of the report are wrong, before anything runs, or do not suit the runs.
        DataNotFoundError: If a data set is missing; nothing has been run then.
    """
    options = dict(report_options or {})
    check_options(options)
    ensure_writable(out, "the folder of the comparison", "`--out`")
    with _locked(out):
        _check_baseline(options.get("baseline", "FedAvg"), cells, out)
        runner = Runner(cells, jobs, out.name)
        with _terminable(), Nurseries() as nurseries:
            if runner.waiting:
                print("Checking that the data can be read ...", flush=True)
                for origin in check_data(runner.waiting, nurseries, runner.threads):
                    print(origin, flush=True)
            with view(runner.statuses, jobs) as shown:
                runner.run(nurseries, shown.show)
        failed = [s for s in runner.statuses if s.state == "failed"]
        try:
            _report(runner.statuses, options, out)
        finally:
            for s in failed:
                print(f"failed: {s.cell.label}: {s.error} (see {s.cell.folder / OUTPUT})", file=sys.stderr)
    return len(failed)


def _check_baseline(baseline: Any, cells: Sequence[Cell], out: Path) -> None:
    """Refuse a baseline that neither these cells nor those that have finished before have."""
    named = [(c.settings.get("model", ""), c.model) for c in cells]
    named += [(record.settings.get("model", ""), record.label) for record in finished_cells(out).values()]
    names = dict.fromkeys(["FedAvg", *(n for model, label in named for n in (model.rpartition(".")[2], label) if n)])
    if plain(str(baseline)) not in map(plain, names):
        found = nearest(str(baseline), names)
        raise ConfigurationError(f"`baseline` is `{baseline}`, which is none of the methods. {found}")


def _report(statuses: Sequence[Status], options: Mapping[str, Any], out: Path) -> None:
    """Report on all cells of the folder that have finished, also those that are not in this comparison."""
    finished = list(dict.fromkeys([*(s.cell.folder for s in statuses if s.state == "finished"), *finished_cells(out)]))
    if not finished:
        return
    # compared on purpose: runs of different data stand side by side
    made = report(finished, **{"mixed": True, **options}, out=out / "report")
    print(made.summary)
    print(f"Learning curves, costs, configurations and the other tables: {made.files[0]}")


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another comparison is running in `{out}`: wait for it, or choose another folder with `--out`."
            ) from error
        except OSError as error:
            raise ConfigurationError(
                f"`{out}` cannot be locked against a second comparison ({error}): choose a folder on another disk with "
                "`--out`."
            ) from error
        yield


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat a request to end like Ctrl-C."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def make_grid(options: argparse.Namespace, passed: Sequence[str]) -> Grid:
    """The grid of a grid file and of the command line, which comes first where both speak.

    Args:
        options: Options of the command line.
        passed: What is passed on to every cell.

    Returns:
        The grid.

    Raises:
        ConfigurationError: If something is missing or cannot work.
    """
    content = read_grid(options.grid) if options.grid else {}
    configs = options.config or _listed(content.get("config"))
    models = options.models or _listed(content.get("models"))
    seeds = options.seeds if options.seeds is not None else _listed(content.get("seeds", [0]))
    shared = flat(content.get("with") or {})
    if not (configs or shared) or not models:
        raise ConfigurationError(
            "a comparison needs a configuration and methods: give `--config quickstart --models FedAvg FedProx`, or a "
            "grid file with `--grid`."
        )
    wrong = [s for s in seeds if not isinstance(s, int) or isinstance(s, bool) or s < 0]
    if wrong or not seeds:
        raise ConfigurationError(f"`seeds={list(seeds)}` must be whole numbers from 0 on, at least one.")
    _check_passed(passed)
    grid = Grid(
        configs=[find_config(str(c)) for c in configs],
        models=[parse_choice(entry, "model") for entry in models],
        data=[parse_choice(entry, "data") for entry in _listed(content.get("data"))],
        partitions=[parse_choice(entry, "data.partition") for entry in _listed(content.get("partitions"))],
        seeds=seeds,
        shared=shared,
        passed=list(passed),
        report=content.get("report") or {},
    )
    _check_axes(grid)
    return grid


def choose(cells: Sequence[Cell], only: Sequence[str], without: Sequence[str]) -> list[Cell]:
    """The cells whose name has all of some words and none of others; words are whole, in small or capital letters.

    Args:
        cells: All cells.
        only: Words that a name must have.
        without: Words that a name must not have.

    Raises:
        ConfigurationError: If none is left.
    """

    def has(cell: Cell, word: str) -> bool:
        return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", cell.label, re.IGNORECASE) is not None

    chosen = [c for c in cells if all(has(c, w) for w in only) and not any(has(c, w) for w in without)]
    if not chosen:
        given = [f"{option} {' '.join(words)}" for option, words in (("--only", only), ("--without", without)) if words]
        raise ConfigurationError(
            f"`{' '.join(given)}` leaves no cell: give whole words of names such as `{cells[0].label}`."
        )
    return chosen


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _check_passed(passed: Sequence[str]) -> None:
    if passed and not passed[0].startswith("--"):
        raise ConfigurationError(
            f"`{passed[0]}` stands alone: options of `fit` that are passed on look like `--trainer.max_epochs 4`."
        )
    for word in passed:
        name = word.partition("=")[0]
        if name in _OWN:
            raise ConfigurationError(f"`{name}` is set by the comparison for each cell: give {_OWN[name]} instead.")


def _check_axes(grid: Grid) -> None:
    """Refuse options that would put one thing in place of all that an axis of the grid lists."""
    axes = {"--data": "data"} if grid.data else {}
    axes |= {"--data.partition": "partitions"} if grid.partitions or any(d.partitions for d in grid.data) else {}
    for word in grid.passed:
        name = word.partition("=")[0]
        axis = axes.get("--data.partition" if name.startswith("--data.partition.") else name)
        if axis:
            raise ConfigurationError(
                f"`{name}` would replace all `{axis}` of the grid, whose names would then be wrong: change them in a "
                "grid file of your own, or choose among the cells with `--only`."
            )


def run(argv: list[str]) -> int:
    """Entry point of ``flightning compare``.

    Args:
        argv: Arguments after the verb.

    Returns:
        0; 1 if a cell failed; 2 if the comparison cannot work; 130 if it was interrupted.
    """
    parser = _parser()
    options, passed = parser.parse_known_args(argv)
    try:
        if options.jobs < 1:
            raise ConfigurationError(f"`--jobs {options.jobs}` must be at least 1.")
        grid = make_grid(options, passed)
        name = Path(options.grid or grid.configs[0]).stem
        out = Path(options.out) if options.out else default_folder(grid, name)
        cells = choose(make_cells(grid, out), options.only, options.without)
        if options.dry_run:
            return int(dry_run(cells, options.jobs) > 0)
        return int(compare(cells, out, options.jobs, {**grid.report, **_report_options(options)}) > 0)
    except FlightningError as error:
        print(f"flightning compare: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted: the same command goes on where it stopped.", file=sys.stderr)
        return 130


def _report_options(options: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in ("target", "baseline", "last")}
    return {name: value for name, value in given.items() if value is not None}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flightning compare",
        description="Run methods, data sets, partitions and seeds against each other, and report.",
        epilog="Every other option of `flightning fit`, such as --trainer.max_epochs 4, is passed on to every run. The "
        "same command again goes on where it stopped.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-c", "--config", action="append", help="a YAML file, or the name of a packaged configuration; may be repeated"
    )
    parser.add_argument(
        "--models", nargs="+", metavar="MODEL", help="methods, with arguments if need be: FedAvg FedProx:mu=0.1 SOLO"
    )
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="seeds (0)")
    parser.add_argument("--grid", metavar="FILE", help="a YAML file with models, data, partitions and seeds")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WORD",
        help="run only the cells whose name (method, data, partition, seed) has all of these words",
    )
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="WORD", help="leave out the cells whose name has one of these words"
    )
    parser.add_argument("--out", metavar="DIR", help="folder of the comparison (runs/compare/<name>-<hash>)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at once (%(default)s)")
    parser.add_argument("--target", metavar="A", help="of the report: an accuracy, fedavg-final or baseline-final")
    parser.add_argument("--baseline", metavar="METHOD", help="of the report: what speed-ups and multiples refer to")
    parser.add_argument("--last", type=int, metavar="N", help="of the report: rounds of the final accuracy")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the runs and an estimate of the time from a few measured steps"
    )
    return parser
