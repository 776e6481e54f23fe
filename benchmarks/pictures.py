"""The pictures and the table of docs/algorithms, from the runs of `flightning compare --grid fashion`.

python -m benchmarks.pictures RUNS                     # writes docs/algorithms/img/<method>.png and prints the table
python -m benchmarks.pictures RUNS --together FILE.png  # all runs in one picture
"""

from __future__ import annotations

import argparse
import csv
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import flightning.algorithms
from flightning.plots import save_figure
from flightning.report.curves import looks
from flightning.report.runs import Run, read_runs

IMAGES = Path(__file__).parents[1] / "docs" / "algorithms" / "img"
NET = ("model.net", "model.net.projection", "model.net.batch_norm")
#: Arguments of the built-in classifier, which are no arguments of a method.
CLASSIFIER = ("model.net", "model.input_shape", "model.num_classes")


def net(run: Run) -> tuple[str | None, ...]:
    """What the network of a run is."""
    return tuple(run.config.get(key) for key in NET)


def arguments(run: Run, runs: Sequence[Run]) -> str:
    """Arguments in which a run differs from the others of its method on the same net."""
    others = [r for r in runs if r.model == run.model and net(r) == net(run)]
    keys = [k for k in run.config if k.startswith("model.") and not k.startswith(CLASSIFIER)]
    differing = [k for k in keys if len({r.config.get(k) for r in others}) > 1]
    return ", ".join(f"{k.removeprefix('model.')}={run.config[k]}" for k in differing)


def label(run: Run, runs: Sequence[Run]) -> str:
    """Method and, where there are several runs of it, arguments."""
    own = arguments(run, runs)
    return f"{run.model} ({own})" if own else run.model


def picture(curves: dict[str, Run]) -> Any:
    """Accuracy of a few runs over the rounds; FedAvg in grey."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 2.7), layout="constrained")
    axes = figure.subplots()
    look = looks(list(curves))
    for name, run in curves.items():
        reference = name == "FedAvg" and len(curves) > 1
        colour = "#777777" if reference else look[name].colour
        style = {"color": colour, "linestyle": "--" if reference else "-", "marker": look[name].marker}
        axes.plot(run.rounds, 100 * run.logged("val/accuracy"), label=name, markersize=3, linewidth=1.2, **style)
    axes.set_xlabel("round", fontsize=8)
    axes.set_ylabel("accuracy on the test set, %", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=True, alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="best")
    return figure


def write_pictures(runs: Sequence[Run], folder: Path) -> None:
    """One picture per method: its runs, with FedAvg on the same net."""
    folder.mkdir(parents=True, exist_ok=True)
    for method in dict.fromkeys(run.model for run in runs):
        own = [run for run in runs if run.model == method]
        if method == "FedAvg":
            own = [own[0], *(run for run in runs if run.model in ("SOLO", "Centralized"))]
        reference = [r for r in runs if r.model == "FedAvg" and net(r) == net(own[0])]
        curves = {label(run, runs): run for run in [*reference[:1], *own]}
        stem = Path(inspect.getfile(getattr(flightning.algorithms, method))).stem
        save_figure(picture(curves), folder / f"{stem}.png", dpi=110)
    for run in runs:
        calibrated = calibrated_accuracy(run)
        if calibrated is not None:
            figure = picture({run.model: run})
            axes = figure.axes[0]
            axes.plot(run.rounds[-1], 100 * calibrated, marker="*", markersize=9, linestyle="", label="after CCVR")
            axes.legend(frameon=False, fontsize=8, loc="best")
            save_figure(figure, folder / "ccvr.png", dpi=110)


def calibrated_accuracy(run: Run) -> float | None:
    """What `CCVR` logged with the last round, if it was there."""
    rows = list(csv.DictReader((run.folder / "metrics.csv").read_text().splitlines()))
    values = [row["ccvr/accuracy"] for row in rows if row.get("ccvr/accuracy")]
    return float(values[-1]) if values else None


def print_table(runs: Sequence[Run]) -> None:
    """Accuracy after the last round, and the median of the seconds of a round."""
    print("| method | arguments | net | accuracy, % | seconds per round |")
    print("|---|---|---|---|---|")
    for run in runs:
        head, norm = run.config.get(NET[1]), run.config.get(NET[2])
        what = "projection" if head not in (None, "null", "None") else "BatchNorm" if norm in ("true", "True") else ""
        accuracy, seconds = 100 * run.logged("val/accuracy")[-1], np.median(run.logged("round/seconds"))
        print(f"| `{run.model}` | {arguments(run, runs)} | {what} | {accuracy:.1f} | {seconds:.1f} |")


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders with runs")
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--together", type=Path, help="draw all runs into this one file")
    options = parser.parse_args()
    runs, notes = read_runs(options.runs)
    for note in notes:
        print(note)
    if options.together:
        save_figure(picture({label(run, runs): run for run in runs}), options.together, dpi=110)
    else:
        write_pictures(runs, options.out)
    print_table(runs)


if __name__ == "__main__":
    main()
