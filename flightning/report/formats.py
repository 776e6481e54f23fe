"""Tables as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Sequence

import numpy as np

from flightning.report.arrange import Comparison
from flightning.report.quantities import MINUS, NOTHING, TIMES, Quantity
from flightning.report.tables import Cell, Table

__all__ = ["latex", "latex_text", "markdown", "runs_csv", "tables_csv"]

LATEX_SIGNS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "±": r"$\pm$",
    TIMES: r"$\times$",
    MINUS: r"$-$",
    NOTHING: "--",
}


MOST_COLUMNS = 5
"""More settings than this are the rows of a table in LaTeX."""


def latex_text(text: str) -> str:
    r"""Text with the signs that LaTeX reserves written out.

    Example:
        >>> latex_text("worst 10 %: 97.19 ± 0.12")
        'worst 10 \\%: 97.19 $\\pm$ 0.12'
    """
    return "".join(LATEX_SIGNS.get(sign, sign) for sign in text)


def markdown(table: Table) -> str:
    """A table as Markdown, with its title and notes.

    Args:
        table: The table.
    """

    def escaped(text: str) -> str:
        return text.replace("|", "\\|").replace("*", "\\*")

    def entry(cell: Cell) -> str:
        return f"**{escaped(cell.text)}**" if cell.bold else escaped(cell.text)

    rows = [[table.corner, *(escaped(c.title) for c in table.columns)]]
    rows += [[escaped(name), *map(entry, cells)] for name, cells in table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]  # padded: read as often in a terminal
    lines = []
    for row in rows:
        padded = [row[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("| " + " | ".join(padded) + " |")
    lines.insert(1, "|-" + "-" * widths[0] + "-|" + "".join("-" * w + "-:|" for w in widths[1:]))
    return "\n".join([f"### {table.title}\n", *lines, *(f"\n{note}" for note in table.notes)]) + "\n"


def latex(table: Table) -> str:
    """A table as a LaTeX ``table`` for the packages ``booktabs`` and ``graphicx``.

    A table of many settings has them as rows, and what is still wider than the page is scaled down to it.

    Args:
        table: The table.
    """

    def entry(cell: Cell) -> str:
        return rf"\textbf{{{latex_text(cell.text)}}}" if cell.bold else latex_text(cell.text)

    corner, heads, rows = _upright(table)
    head = " & ".join([corner, *map(_stacked, heads)])
    widths = [max(len(cells[i].text) for _, cells in rows) for i in range(len(heads))]
    letters = max(len(name) for name, _ in rows) + sum(max(w, 10) + 2 for w in widths)
    kind = "table*" if letters > 45 else "table"  # more than a column of a two-column paper holds
    body = [" & ".join([latex_text(name), *map(entry, cells)]) + r" \\" for name, cells in rows]
    # notes name options and keys in backticks, which LaTeX would print as opening quotes
    notes = " ".join(latex_text(note.replace("`", "")) for note in table.notes)
    lines = [
        rf"\begin{{{kind}}}",
        r"  \centering\small",
        rf"  \caption{{{latex_text(table.title)}{'. ' + notes if notes else ''}}}",
        rf"  \label{{tab:{table.key}}}",
        r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"  \begin{{tabular}}{{l{'r' * len(heads)}}}",
        r"    \toprule",
        rf"    {head} \\",
        r"    \midrule",
        *(f"    {row}" for row in body),
        r"    \bottomrule",
        r"  \end{tabular}}",
        rf"\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def _upright(table: Table) -> tuple[str, list[str], list[tuple[str, Sequence[Cell]]]]:
    """Corner, headings and rows of a table, with the settings as rows where they are many and more than the rows."""
    titles = [c.title for c in table.columns]
    settings = {c.setting for c in table.columns}
    if len(settings) < len(titles) or not MOST_COLUMNS < len(titles) > len(table.rows):
        return table.corner, titles, list(table.rows)
    turned: list[tuple[str, Sequence[Cell]]] = [
        (title, [cells[i] for _, cells in table.rows]) for i, title in enumerate(titles)
    ]
    return "setting", [name for name, _ in table.rows], turned


def _stacked(title: str) -> str:
    r"""A heading in lines as narrow as the numbers below it, words whole.

    Example:
        >>> print(_stacked("parameters per round (M)"))
        \shortstack[r]{parameters per\\round (M)}
        >>> print(_stacked("Similarity(similarity=0.1)"))
        Similarity(similarity=0.1)
    """
    lines = textwrap.wrap(title, 16, break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2:
        return latex_text(title)
    return r"\shortstack[r]{" + r"\\".join(map(latex_text, lines)) + "}"


def tables_csv(tables: Sequence[Table], notices: Sequence[str] = ()) -> str:
    """All tables as one CSV, a line per entry: plain numbers (accuracies as fractions, bytes as bytes) and the text.

    Args:
        tables: The tables.
        notices: What no reader may miss, in the last column.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["table", "setting", "row", "quantity", "mean", "std", "n", "low", "high", "ratio", "text", "notice"]
    )
    for table in tables:
        for name, cells in table.rows:
            for column, cell in zip(table.columns, cells, strict=True):
                numbers = [_number(v) for v in (cell.mean, cell.std)]
                tail = [_number(v) for v in (cell.low, cell.high, cell.ratio)]
                entry = [table.key, column.setting, name, column.quantity, *numbers, cell.n, *tail, cell.text]
                writer.writerow([*entry, " ".join(notices)])
    return out.getvalue()


def runs_csv(compared: Comparison, quantities: Sequence[Quantity]) -> str:
    """One line per run with every quantity, for statistics of one's own.

    Args:
        compared: The runs.
        quantities: The columns.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [q.key for q in quantities]
    writer.writerow(["setting", "method", "seed", "folder", "rounds", "broken_lines", *names, "notice"])
    for setting in compared.settings:
        for method in compared.methods:
            for run in compared.of(setting, method):
                values = [_number(q.value(setting, run)) for q in quantities]
                seed = "" if run.seed is None else run.seed
                about = [setting, method, seed, run.folder, int(run.rounds[-1]), run.broken]
                writer.writerow([*about, *values, run.notice])
    return out.getvalue()


def _number(value: float) -> str:
    return repr(float(np.float64(value))) if math.isfinite(value) else ""
