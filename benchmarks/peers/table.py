"""Measurements as records, one line of JSON each, and as a Markdown table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.plain import WORKLOADS

#: Times are divided by those of this contestant in the same turn.
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


def turns(records: Sequence[Record], workload: str) -> dict[str, list[Record]]:
    """The measurements of each contestant, turn after turn, in order of their first turn."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record["workload"] == workload:
            found.setdefault(record["contestant"], []).append(record)
    return found


def medians(records: Sequence[Record], workload: str) -> dict[str, dict[str, float]]:
    """Median of each figure over the turns of each contestant."""
    keys = ("seconds", "start-up", "PSS GiB", "accuracy")
    measured = turns(records, workload).items()
    return {name: {k: statistics.median(r[k] for r in own) for k in keys} for name, own in measured}


def ratio(records: Sequence[Record], workload: str, contestant: str) -> str:
    """Median over the turns of the ratio to the base in the same turn, with the smallest and the largest one."""
    measured = turns(records, workload)
    pairs = zip(measured[contestant], measured.get(BASE, []), strict=False)
    found = sorted(own["seconds"] / base["seconds"] for own, base in pairs)
    if not found:
        return "-"
    spread = f" ({found[0]:.2f} to {found[-1]:.2f})" if len(found) > 1 and contestant != BASE else ""
    return f"{statistics.median(found):.2f}{spread}"


def rows(records: Sequence[Record], workload: str) -> list[list[str]]:
    """Cells of the table of one workload; without a ratio where the base was not measured."""
    return [
        [
            name,
            f"{f['seconds']:.3g}",
            ratio(records, workload, name),
            f"{f['start-up']:.1f}",
            f"{f['PSS GiB']:.2f}",
            f"{f['accuracy']:.3f}",
        ]
        for name, f in medians(records, workload).items()
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
