"""The tables of the papers, as data: rows of methods, columns of quantities or of settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import numpy as np

from flightning.report.arrange import Comparison
from flightning.report.quantities import MINUS, NOTHING, TIMES, Quantity, byte_unit, shown
from flightning.report.runs import Run
from flightning.report.statistics import best, estimate, final, paired_difference

__all__ = ["MOST_PAIRS", "Cell", "Column", "Table", "method_tables", "pair_tables"]

MOST_PAIRS = 21
"""More pairs than this (7 methods) are left to the CSV; the pages keep those with the baseline."""

PAIR_NOTE = (
    "Mean of the differences between runs with the same seed, 95 % interval of Student's t, number of pairs; bold "
    "where the interval of three pairs or more leaves out zero. Intervals are not corrected for the number of "
    "comparisons."
)


@dataclass(frozen=True)
class Cell:
    """One entry of a table: its text, and the numbers behind it for the CSV."""

    text: str
    mean: float = math.nan
    std: float = math.nan
    n: int = 0
    low: float = math.nan
    high: float = math.nan
    ratio: float = math.nan
    complete: bool = True
    bold: bool = False


@dataclass(frozen=True)
class Column:
    """Heading of a column, and what it shows."""

    title: str
    setting: str
    quantity: str


@dataclass(frozen=True)
class Table:
    """One table.

    Args:
        key: Short name, for files and labels.
        title: Caption.
        columns: Headings.
        rows: Name and cells of each row.
        notes: Sentences below the table.
        corner: Heading of the first column.
    """

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    notes: Sequence[str] = field(default_factory=tuple)
    corner: str = "method"


def method_tables(
    key: str, title: str, quantities: Sequence[Quantity], compared: Comparison, notes: Sequence[str] = ()
) -> list[Table]:
    """Tables of methods: with one setting a single table of all quantities, with several one table per quantity.

    Args:
        key: Short name.
        title: Caption.
        quantities: What to show; quantities that no run logged are left out.
        compared: The runs.
        notes: Sentences below the tables.
    """
    several = len(compared.settings) > 1
    tables: list[Table] = []
    for part in [[q] for q in quantities] if several else [quantities]:
        columns: list[Column] = []
        cells: list[list[Cell]] = []
        for quantity, setting in product(part, compared.settings):
            entries = _entries(quantity, setting, compared)
            if entries is not None:
                # byte units suit their column; every other unit is that of the whole table
                unit = f" ({entries[0]})" if entries[0] and (not several or quantity.unit == "bytes") else ""
                columns.append(Column((setting if several else quantity.title) + unit, setting, quantity.key))
                cells.append(entries[1])
        if columns:
            first = part[0]
            unit = f" ({first.unit})" if first.unit and first.unit != "bytes" else ""
            name = f"{key}-{first.key}" if several else key
            caption = first.title[:1].upper() + first.title[1:] + unit if several else title
            rows = [(m, [column[i] for column in cells]) for i, m in enumerate(compared.methods)]
            tables.append(Table(name, caption, columns, rows, () if tables else tuple(notes)))
    return tables


def _entries(quantity: Quantity, setting: str, compared: Comparison) -> tuple[str, list[Cell]] | None:
    """Unit and cells of one column; None if no run logged the quantity."""
    groups = [compared.of(setting, m) for m in compared.methods]
    if not any(quantity.known(setting, r) for runs in groups for r in runs):
        return None
    found = [estimate([quantity.value(setting, r) for r in runs]) for runs in groups]
    # one seed in the whole report: the deviation may be over rounds instead
    if quantity.spread is not None and max(map(len, compared.runs.values())) == 1:
        found = [replace(e, std=quantity.spread(runs[0])) if runs else e for e, runs in zip(found, groups, strict=True)]
    unit, scale = quantity.unit, quantity.scale
    if unit == "bytes":
        unit, scale = byte_unit([e.mean for e in found])
        unit = unit if any(e.n for e in found) else ""
    whole = [e.n == len(runs) > 0 for e, runs in zip(found, groups, strict=True)]
    # the baseline is the first method
    base = found[0].mean if compared.baseline is not None and whole[0] else math.nan
    cells = []
    for e, runs, complete in zip(found, groups, whole, strict=True):
        text = shown(e.mean * scale, e.std * scale, quantity.digits) if e.n else quantity.absent if runs else NOTHING
        ratio = math.nan
        if quantity.absent == "/" and 0 < e.n < len(runs):
            text += f" [{e.n} of {len(runs)}]"
        if quantity.relative and complete and e.mean:
            ratio = (e.mean / base) ** quantity.relative if base else math.nan
            text += f" ({ratio:.2f}{TIMES})" if math.isfinite(ratio) else ""
        cells.append(Cell(text, e.mean, e.std, e.n, ratio=ratio, complete=complete))
    return unit, _mark_best(cells, quantity.better)


def _mark_best(cells: list[Cell], better: int) -> list[Cell]:
    """The column with its best entries bold, if there is something to choose."""
    known = [c for c in cells if c.complete and c.n]
    if not better or not known or len({c.text for c in cells} - {NOTHING}) < 2:
        return cells
    top = max(known, key=lambda c: better * c.mean)
    return [replace(c, bold=c.complete and c.text == top.text) for c in cells]


def pair_tables(compared: Comparison, last: int = 1) -> list[Table]:
    """Differences between methods over paired seeds, in percentage points, with 95 % intervals; none for one method.

    Args:
        compared: The runs.
        last: Number of evaluated rounds that the final accuracy is the mean of.
    """
    measures: list[tuple[str, Callable[[Run], float]]] = [
        ("best", best),
        ("final", lambda r: float(np.mean(final(r, last)))),
    ]
    pairs = [(b, a) for a, b in combinations(compared.methods, 2)]  # the baseline comes first and is subtracted
    several = len(compared.settings) > 1
    tables: list[Table] = []
    for part in ([[m] for m in measures] if several else [measures]) if pairs else []:
        columns = [
            Column(s if several else f"{name} accuracy", s, f"{name}_difference")
            for s, (name, _) in product(compared.settings, part)
        ]
        rows = [
            (f"{a} {MINUS} {b}", [_difference(compared, s, a, b, v) for s, (_, v) in product(compared.settings, part)])
            for a, b in pairs
        ]
        what = f" in {part[0][0]} accuracy" if several else ""
        tables.append(
            Table(
                f"pairs-{part[0][0]}" if several else "pairs",
                f"Paired differences{what} over seeds (percentage points)",
                columns,
                rows,
                () if tables else (PAIR_NOTE,),
                corner="difference",
            )
        )
    return tables


def _difference(compared: Comparison, setting: str, a: str, b: str, value: Callable[[Run], float]) -> Cell:
    left, right = (
        {r.seed: value(r) for r in compared.of(setting, m) if (setting, r.seed) not in compared.unpaired}
        for m in (a, b)
    )
    d = paired_difference(left, right)
    if not d.n:
        return Cell(NOTHING)
    text = f"{100 * d.mean:+.2f}"
    text += f" [{100 * d.low:+.2f}, {100 * d.high:+.2f}]" if d.n > 1 else ""
    return Cell(
        f"{text} (n={d.n})".replace("-", MINUS), d.mean, n=d.n, low=d.low, high=d.high, bold=d.clear and d.n > 2
    )
