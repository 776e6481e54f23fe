"""The report as one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from flightning.report.arrange import Comparison, changes_learning
from flightning.report.assets import CSS, JS
from flightning.report.curves import Look, Panel, frame
from flightning.report.quantities import NOTHING
from flightning.report.svg import AREA, WIDTH, chart, swatch, thin
from flightning.report.tables import Table
from flightning.version import __version__

__all__ = ["MOST_PICTURE_BYTES", "page"]

MOST_PICTURE_BYTES = 1_200_000
"""Pictures of partitions beyond this total are left out: the page stays below 3 MB."""

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(
    title: str,
    notices: Sequence[str],
    tables: Sequence[Table],
    panels: Sequence[Panel],
    look: Mapping[str, Look],
    compared: Comparison,
    notes: Sequence[str],
) -> str:
    """The whole page.

    Args:
        title: Heading.
        notices: Lines on top that no reader may miss.
        tables: The tables.
        panels: The learning curves.
        look: Look of each method, in the order of the legend.
        compared: The runs, for their partitions and configurations.
        notes: Sentences about what was skipped.
    """
    seeds = {r.seed for group in compared.runs.values() for r in group}
    count = sum(map(len, compared.runs.values()))
    about = f"{_count(count, 'run')}: {_count(len(compared.methods), 'method')}, {_count(len(seeds), 'seed')}"
    about += f", {len(compared.settings)} settings" if len(compared.settings) > 1 else ""
    results = [t for t in tables if t.key.startswith(("accuracy", "target"))]
    sections = [
        ("results", "Results", "".join(map(_table, results))),
        ("curves", "Learning curves", _curves(panels, look)),
        ("details", "Costs, fairness, differences", "".join(_table(t) for t in tables if t not in results)),
        ("partition", "Partition", _pictures(compared)),
        ("configs", "Configurations", _configs(compared)),
        ("notes", "Notes", _notes(notes)),
    ]
    sections = [s for s in sections if s[2]]
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name, _ in sections)
    body = "".join(f'<section id="{key}"><h2>{name}</h2>{content}</section>' for key, name, content in sections)
    banner = "".join(f'<p class="notice" role="note">{_prose(n)}</p>' for n in notices)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>"
        f'<header><h1>{escape(title)}</h1>{banner}<p class="soft">{about}</p><nav>{links}</nav></header>'
        f"<main>{body}</main>"
        f'<footer class="soft">flightning {__version__}</footer>'
        f'<script type="application/json" id="data">{_data(panels, look)}</script><script>{JS}</script></body></html>\n'
    )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _prose(text: str) -> str:
    """Escaped text with backticked names as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{_prose(n)}</li>" for n in notes)}</ul>' if notes else ""


def _cell(text: str) -> str:
    """Escaped text that may be broken before brackets but nowhere else."""
    parts = re.findall(r"\[[^]]*\]|\([^)]*\)|[^[(]+", text)
    return " ".join(f"<span>{escape(p.strip())}</span>" for p in parts)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(c.title)}</th>' for c in table.columns)
    rows = []
    for name, cells in table.rows:
        entries = (f"<td>{f'<strong>{_cell(c.text)}</strong>' if c.bold else _cell(c.text)}</td>" for c in cells)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{"".join(entries)}</tr>')
    return (
        f'<h3>{escape(table.title)}</h3><div class="scroll" id="table-{escape(table.key)}"><table><thead><tr>'
        f'<th scope="col">{escape(table.corner)}</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        + _notes(table.notes)
    )


def _curves(panels: Sequence[Panel], look: Mapping[str, Look]) -> str:
    if not panels:
        return ""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-method="{i}">{swatch(style)}{escape(method)}</button>'
        for i, (method, style) in enumerate(look.items())
    )
    parts = [
        '<p class="soft">Mean over seeds; the band is one standard deviation. Click a method to hide or show it, '
        "double-click to see it alone.</p>",
        f'<div class="legend">{buttons}<button type="button" id="all">show all</button></div>',
    ]
    settings = list(dict.fromkeys(p.setting for p in panels))
    for setting in settings:
        parts.append(f"<h3>{escape(setting)}</h3>" if len(settings) > 1 else "")
        charts = (
            f"<figure><figcaption>accuracy (%) over {escape(p.title)}</figcaption>{chart(p, look, i)}"
            '<div class="tip"></div></figure>'
            for i, p in enumerate(panels)
            if p.setting == setting
        )
        parts.append(f'<div class="charts">{"".join(charts)}</div>')
    return "".join(parts)


def _data(panels: Sequence[Panel], look: Mapping[str, Look]) -> str:
    """What the script needs to read off values; ``<`` is escaped so that no name can end the script element."""
    order = {method: i for i, method in enumerate(look)}
    shown = []
    for panel in panels:
        curves: list[dict[str, Any]] = []
        for curve in panel.curves:
            keep = thin(curve)
            entry: dict[str, Any] = {"m": order[curve.method], "x": [float(f"{v:.5g}") for v in curve.x[keep]]}
            entry["y"] = [round(100 * float(v), 2) for v in curve.mean[keep]]
            entry["r"] = [int(v) for v in curve.rounds[keep]]
            if math.isfinite(float(curve.std[0])):
                entry["s"] = [round(100 * float(v), 2) for v in curve.std[keep]]
            curves.append(entry)
        shown.append({"axis": panel.axis.key, "title": panel.title, "frame": frame(panel)[:2], "curves": curves})
    methods = [{"name": m, "colour": style.colour} for m, style in look.items()]
    content = {"methods": methods, "panels": shown, "area": AREA, "width": WIDTH}
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def _pictures(compared: Comparison) -> str:
    """The partition of each setting, from its first run that has a picture."""
    figures, total = [], 0
    for setting in compared.settings:
        run = compared.pictured(setting)
        if run is None or run.picture is None:
            continue
        content, caption = run.picture.read_bytes(), escape(f"{setting}, seed {run.seed}")
        if total + len(content) > MOST_PICTURE_BYTES:
            shown = f"<p>too large for this page: <code>{escape(str(run.picture))}</code></p>"
        else:
            total += len(content)
            uri = "data:image/png;base64," + base64.b64encode(content).decode()
            shown = f'<img alt="partition: {caption}" src="{uri}">'
        figures.append(f"<figure><figcaption>{caption}</figcaption>{shown}</figure>")
    return f'<div class="pictures">{"".join(figures)}</div>' if figures else ""


def _configs(compared: Comparison) -> str:
    """Configurations side by side, one column per setting and method; values that differ are marked."""
    columns = [(s, m) for s in compared.settings for m in compared.methods if (s, m) in compared.runs]
    keys = list(dict.fromkeys(k for c in columns for r in compared.runs[c] for k in r.config))
    if not keys:
        return ""
    values: dict[str, list[list[str]]] = {}
    for key in keys:
        values[key] = [list(dict.fromkeys(r.config.get(key, NOTHING) for r in compared.runs[c])) for c in columns]
    # what differs between the seeds of every method is a seed or a folder, not a difference between methods
    differs = {k: len({tuple(v) for v in vs}) > 1 and min(map(len, vs)) == 1 for k, vs in values.items()}
    keys.sort(key=lambda k: (not differs[k], not changes_learning(k)))
    rows = [_config_row(k, values[k], differs[k]) for k in keys]
    several = len(compared.settings) > 1
    head = "".join(f'<th scope="col">{escape(m)}{f"<br>{escape(s)}" if several else ""}</th>' for s, m in columns)
    differing = sum(differs.values())
    return (
        f'<input type="checkbox" id="only"{" checked" if differing else ""}><label for="only">only the '
        f"{differing} that differ (≠)</label>"
        f'<div class="scroll config"><table><thead><tr><th scope="col">key</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _config_row(key: str, values: Sequence[Sequence[str]], differs: bool) -> str:
    texts = [", ".join(v) if len(v) <= 5 else f"{', '.join(v[:5])}, ..." for v in values]
    if not differs and len(set(texts)) == 1:
        cells = f'<td colspan="{len(texts)}">{escape(texts[0])}</td>'
    elif not differs:
        cells = "".join(f"<td>{escape(t)}</td>" for t in texts)
    else:
        cells = "".join(f"<td>{escape(t) if t == texts[0] else f'<mark>{escape(t)}</mark>'}</td>" for t in texts)
    sign, kind = ("≠ ", "diff") if differs else ("", "same")
    return f'<tr class="{kind}"><th scope="row">{sign}{escape(key)}</th>{cells}</tr>'
