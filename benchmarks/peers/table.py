"""Measurements as records, one line of JSON each, and as a Markdown table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.plain import WORKLOADS

#: Times are divided by those of this contestant.
BASE = "hand-written, 1 process x 2 threads"

COLUMNS = ("seconds per round", "ratio", "start-up, s", "peak PSS, GiB", "accuracy")

Record = dict[str, Any]


def append(path: Path, record: Record) -> None:
    """Add a measurement to a file."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def read_records(path: Path) -> list[Record]:
    """All measurements of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def medians(records: Sequence[Record], workload: str) -> dict[str, dict[str, float]]:
    """Median of each figure over the turns of each contestant, in order of their first turn."""
    own = [r for r in records if r["workload"] == workload]
    names = list(dict.fromkeys(r["contestant"] for r in own))
    keys = ("seconds", "start-up", "PSS GiB", "accuracy")
    return {n: {k: statistics.median(r[k] for r in own if r["contestant"] == n) for k in keys} for n in names}


def rows(records: Sequence[Record], workload: str) -> list[list[str]]:
    """Cells of the table of one workload; without a ratio where the base was not measured."""
    figures = medians(records, workload)
    base = figures[BASE]["seconds"] if BASE in figures else float("nan")
    return [
        [
            name,
            f"{f['seconds']:.3g}",
            f"{f['seconds'] / base:.2f}",
            f"{f['start-up']:.1f}",
            f"{f['PSS GiB']:.2f}",
            f"{f['accuracy']:.3f}",
        ]
        for name, f in figures.items()
    ]


def markdown(records: Sequence[Record]) -> str:
    """One table per workload, with columns of equal width."""
    parts = []
    for name in dict.fromkeys(r["workload"] for r in records):
        cells = [["contestant", *COLUMNS], *rows(records, name)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
        lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
        parts.append(f"({name}) {WORKLOADS[name].title}:\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"
