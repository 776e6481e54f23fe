"""``flightning report``: read runs, draw their tables and curves, write them down."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flightning.errors import FlightningError, nearest
from flightning.report.arrange import Comparison, arrange
from flightning.report.curves import looks, panels
from flightning.report.figures import write_figures, write_partitions
from flightning.report.formats import latex, latex_text, markdown, runs_csv, tables_csv
from flightning.report.page import page
from flightning.report.quantities import Quantity, accuracies, costs, fairness, to_target
from flightning.report.runs import ReportError, read_runs
from flightning.report.statistics import final
from flightning.report.tables import MOST_PAIRS, Table, method_tables, pair_tables
from flightning.report.target import BASELINE_FINAL, FEDAVG_FINAL, Target, parse_target, set_target
from flightning.writable import ensure_writable

__all__ = ["Report", "analyse", "check_options", "report", "run"]


@dataclass(frozen=True)
class Report:
    """What a report says, and where it was written.

    Args:
        title: Heading.
        notices: Lines on top, such as that the rounds were scaled down.
        tables: The tables as shown.
        notes: Sentences about what was skipped.
        compared: The runs behind it.
        quantities: What is known of each run.
        pairs: The paired differences of all methods, also those that are too many to show.
        files: Everything that was written, the HTML page first.
    """

    title: str
    notices: Sequence[str]
    tables: Sequence[Table]
    notes: Sequence[str]
    compared: Comparison
    quantities: Sequence[Quantity]
    pairs: Sequence[Table]
    files: Sequence[Path] = ()

    @property
    def markdown(self) -> str:
        """The report as Markdown."""
        return self._text(self.tables)

    @property
    def summary(self) -> str:
        """Its first tables: accuracy, and what the target costs."""
        return self._text([t for t in self.tables if t.key.startswith(("accuracy", "target"))])

    def _text(self, tables: Sequence[Table]) -> str:
        parts = [f"# {self.title}\n", *(f"> **{n}**\n" for n in self.notices), *map(markdown, tables)]
        if self.notes:
            parts.append("### Notes\n\n" + "".join(f"- {n}\n" for n in self.notes))
        return "\n".join(parts)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse arguments of a report that cannot work, before there are runs to report on.

    Args:
        options: Arguments of :func:`report`, but for the runs and the folder.

    Raises:
        ReportError: If one is unknown or has a value that cannot be.
    """
    known = ("target", "mixed", "baseline", "last")
    for name in options:
        if name not in known:
            raise ReportError(f"`{name}` is no option of a report. {nearest(str(name), known)}")
    parse_target(options.get("target", FEDAVG_FINAL))
    last = options.get("last", 1)
    if not isinstance(last, int) or last < 1:
        raise ReportError(
            f"`last` is {last}, but it counts the rounds that the final accuracy is the mean of; use 1 or more."
        )


def report(
    runs: Sequence[Path | str],
    target: str | float = FEDAVG_FINAL,
    out: Path | str = Path("report"),
    mixed: bool = False,
    baseline: str = "FedAvg",
    last: int = 1,
) -> Report:
    """Compare runs and write the tables of the papers, learning curves and one self-contained page.

    Written into ``out``: ``report.html``, ``report.md``, ``report.tex``, ``report.csv`` (one line per entry of a
    table), ``runs.csv`` (one line per run), ``accuracy_over_{rounds,bytes,seconds}.{png,pdf}`` and
    ``partition.{png,pdf}``.

    Args:
        runs: See :func:`analyse`, as for the arguments after ``out``.
        target: See :func:`analyse`.
        out: Folder to write to.
        mixed: See :func:`analyse`.
        baseline: See :func:`analyse`.
        last: See :func:`analyse`.

    Returns:
        The report.

    Raises:
        ReportError: If there are no runs, they cannot be compared, or an argument is wrong.
        ConfigurationError: If the folder cannot be written.
    """
    made = analyse(runs, target, mixed, baseline, last)
    return replace(made, files=_write(made, Path(out)))


def analyse(
    runs: Sequence[Path | str],
    target: str | float = FEDAVG_FINAL,
    mixed: bool = False,
    baseline: str = "FedAvg",
    last: int = 1,
) -> Report:
    """Compare runs without writing anything.

    Args:
        runs: Run folders, or folders that contain run folders at any depth.
        target: Accuracy in (0, 1] that "rounds to target" speaks of; ``"fedavg-final"`` or ``"baseline-final"`` for
            the final accuracy of FedAvg or of the baseline with the same seed.
        mixed: Whether runs of different data or partitions may stand side by side, one column each.
        baseline: Method that speed-ups and multiples refer to.
        last: Number of evaluated rounds that the final accuracy is the mean of (paper S5: 5).

    Returns:
        The report, without files.

    Raises:
        ReportError: If there are no runs, they cannot be compared, or an argument is wrong.
    """
    check_options({"target": target, "last": last})
    found, notes = read_runs(runs)
    compared = arrange(found, mixed=mixed, baseline=baseline)
    last = _capped(last, compared)
    goal = set_target(target, compared, last)
    pairs = pair_tables(compared, last)
    tables = [*_tables(compared, goal, last), *(_fewer_pairs(p, compared) for p in pairs)]
    several = len(compared.methods) > 1
    title = f"Comparison of {len(compared.methods)} methods" if several else compared.methods[0]
    title += f" on {compared.common}" if compared.common else ""
    quantities = [*accuracies(last), *(to_target(goal) if goal else []), *costs(), *fairness()]
    return Report(title, _notices(compared), tables, notes, compared, quantities, pairs)


def _capped(last: int, compared: Comparison) -> int:
    """At most the evaluated rounds of a run, with a note where these are fewer than asked for."""
    counts = [len(final(r, last)) for group in compared.runs.values() for r in group]
    if max(counts) < last:
        compared.notes.append(f"No run was evaluated {last} times: the final accuracy is of {max(counts)} instead.")
    elif min(counts) < last:
        compared.notes.append(
            f"{sum(c < last for c in counts)} of {len(counts)} runs were evaluated less than {last} times: their final "
            "accuracy is the mean of the evaluations that there are."
        )
    return min(last, max(counts))


def _write(made: Report, folder: Path) -> list[Path]:
    """Write every format; the files."""
    ensure_writable(folder, "the folder of the report", "`--out`")
    look, drawn = looks(made.compared.methods), panels(made.compared)
    shown = [t for t in made.tables if t.corner == "method"]
    texts = {
        "report.html": page(made.title, made.notices, made.tables, drawn, look, made.compared, made.notes),
        "report.md": made.markdown,
        "report.tex": "".join(f"\\noindent\\textbf{{{latex_text(n)}}}\n\n" for n in made.notices)
        + "\n".join(map(latex, made.tables)),
        "report.csv": tables_csv([*shown, *made.pairs], made.notices),
        "runs.csv": runs_csv(made.compared, made.quantities),
    }
    for name, content in texts.items():
        (folder / name).write_text(content, encoding="utf-8")
    pictures = write_figures(drawn, look, folder, made.notices) + write_partitions(made.compared, folder)
    return [folder / name for name in texts] + pictures


def _notices(compared: Comparison) -> list[str]:
    """What must stand on top, each with the methods or settings that it concerns if these are not all."""
    concerned: dict[str, set[tuple[str, str]]] = {}
    for place, runs in compared.runs.items():
        for run in runs:
            if run.notice:
                concerned.setdefault(run.notice, set()).add(place)
    return [_whose(places, compared) + notice for notice, places in concerned.items()]


def _whose(places: set[tuple[str, str]], compared: Comparison) -> str:
    everything = set(compared.runs)
    if places == everything:
        return ""
    for axis, names in enumerate((compared.settings, compared.methods)):
        own = [name for name in names if any(place[axis] == name for place in places)]
        if places == {place for place in everything if place[axis] in own}:
            return f"{', '.join(own)}: "
    named = [
        f"{method} on {setting}"
        for setting in compared.settings
        for method in compared.methods
        if (setting, method) in places
    ]
    return f"{', '.join(named)}: "


def _tables(compared: Comparison, target: Target | None, last: int) -> list[Table]:
    """Every table of methods that the logs allow."""
    seeds = max(map(len, compared.runs.values()))
    over = f"mean ± standard deviation over up to {seeds} seeds" if seeds > 1 else "one seed"
    lengths = sorted({int(r.rounds[-1]) for group in compared.runs.values() for r in group})
    rounds = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    rounds += " round" if lengths[-1] == 1 else " rounds"
    about = [f"Accuracy on the test set (`val/accuracy`), {over}, {rounds}; bold: highest mean."]
    if last > 1:
        alone = " (with one seed the deviation is over these rounds)" if seeds == 1 else ""
        about.append(f"The final accuracy is the mean of the last {last} evaluated rounds{alone}.")
    tables = method_tables("accuracy", "Accuracy", accuracies(last), compared, [*about, *compared.notes])
    if target is not None:
        notes = [
            f"Target: {target.text}. First round that reaches it, and what was sent up and down by all clients until "
            "then; / means not reached, [k of n] that k of n seeds reached it (the mean is over these).",
            *target.notes,
        ]
        tables += method_tables("target", "Reaching the target", to_target(target), compared, notes)
    cost_notes = ["Sent up and down by all clients of a round; a parameter is a 32-bit number, M is a million."]
    tables += method_tables("cost", "Cost of a round", costs(), compared, cost_notes)
    return tables + method_tables("fairness", "Fairness", fairness(), compared, [_about_fairness(compared)])


def _about_fairness(compared: Comparison) -> str:
    runs = [r for group in compared.runs.values() for r in group]
    parts = []
    if any("clients/accuracy_std" in r.metrics for r in runs):
        parts.append("Accuracy (%) of the clients one by one, each on its local test set, in the last round measured.")
    if any("val/accuracy_std" in r.metrics for r in runs):
        parts.append("Deviation over own models: accuracy (%) of the clients' own models, each on the whole test set.")
    return " ".join(parts)


def _fewer_pairs(pairs: Table, compared: Comparison) -> Table:
    """The pairs with the baseline alone, if there are too many to read."""
    if len(pairs.rows) <= MOST_PAIRS:
        return pairs
    rows = pairs.rows[: len(compared.methods) - 1]  # the first method is the baseline, and its pairs come first
    note = f"The other {len(pairs.rows) - len(rows)} pairs are in `report.csv`."
    return replace(pairs, rows=rows, notes=(*pairs.notes, note))


def run(argv: list[str]) -> int:
    """Entry point of ``flightning report``.

    Args:
        argv: Arguments after the verb.

    Returns:
        0, or 2 if the runs cannot be reported.
    """
    options = _parser().parse_args(argv)
    try:
        made = report(options.runs, options.target, options.out, options.mixed, options.baseline, options.last)
    except FlightningError as error:
        print(f"flightning report: {error}", file=sys.stderr)
        return 2
    print(made.markdown)
    print(f"Written to {options.out}: " + ", ".join(file.name for file in made.files))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flightning report", description="Tables and learning curves of finished runs."
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN_DIR", help="a run folder, or a folder with run folders at any depth"
    )
    parser.add_argument(
        "--target",
        default=FEDAVG_FINAL,
        help=f"an accuracy such as 0.9, `{FEDAVG_FINAL}` or `{BASELINE_FINAL}` (%(default)s)",
    )
    parser.add_argument("--out", default="report", metavar="DIR", help="folder to write to (%(default)s)")
    parser.add_argument("--mixed", action="store_true", help="allow different data or partitions, one column each")
    parser.add_argument(
        "--baseline", default="FedAvg", metavar="METHOD", help="what speed-ups and multiples refer to (%(default)s)"
    )
    parser.add_argument(
        "--last", type=int, default=1, metavar="N", help="final accuracy is the mean of the last N rounds (%(default)s)"
    )
    return parser
