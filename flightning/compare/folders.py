"""What a cell has left on disk: finished, interrupted, or nothing yet."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from flightning.compare.cells import Cell, decisive, fingerprint
from flightning.errors import ConfigurationError

__all__ = ["CellRecord", "Found", "find_state", "finished_cells", "prepare", "read_json"]

Found = Literal["new", "interrupted", "finished"]

_PARTIAL = ("metrics.csv", "summary.json", "steps.csv")


@dataclass(frozen=True)
class CellRecord:
    """What ``cell.json`` in a run's folder says.

    Args:
        settings: Everything that decides what is computed.
        threads: Threads of the run, which a resumed run keeps because results depend on them; 0 leaves them alone.
        wandb_id: Id of the run in W&B, so that a resumed run goes on there.
        label: Label of the method, by which a report tells methods apart that differ in nothing else.
        data: Label of the data; empty if they are those of the configuration.
        name: Name that the grid gives to the method; empty if it gives none.
    """

    settings: dict[str, str]
    threads: int
    wandb_id: str
    label: str = ""
    data: str = ""
    name: str = ""


def find_state(cell: Cell) -> Found:
    """What has become of a cell.

    Args:
        cell: The cell.

    Raises:
        ConfigurationError: If its folder holds a run with other settings.
    """
    folder, record = cell.folder, _read_record(cell.folder)
    if record is None:
        if (folder / "metrics.csv").exists():
            raise ConfigurationError(
                f"`{folder}` holds a run that is not of this comparison: choose another folder with `--out`."
            )
        return "new"
    if fingerprint(record.settings) != fingerprint(cell.settings):
        changed = _differences(decisive(record.settings), decisive(cell.settings))
        raise ConfigurationError(
            f"`{folder}` holds a run with other settings ({changed}): choose another folder with "
            "`--out`, or remove that one."
        )
    if read_json(folder / "summary.json").get("finished"):
        return "finished"
    return "interrupted" if (folder / "checkpoints" / "last.ckpt").exists() else "new"


def finished_cells(out: Path) -> dict[Path, CellRecord]:
    """Folders and records of all finished cells of a comparison, also of those that another command has run.

    Args:
        out: Folder of the comparison.
    """
    folders = sorted(path.parent for path in out.rglob("cell.json"))
    found = {f: _read_record(f) for f in folders if read_json(f / "summary.json").get("finished")}
    return {folder: record for folder, record in found.items() if record is not None}


def prepare(cell: Cell, state: Found, threads: int) -> CellRecord:
    """Make the folder ready for a run that starts or goes on.

    Args:
        cell: The cell.
        state: What has become of it.
        threads: Threads of a run that starts.
    """
    record = _read_record(cell.folder)
    if record is None or state == "new":
        wandb_id = secrets.token_hex(4) if record is None else record.wandb_id
        record = CellRecord(dict(cell.settings), threads, wandb_id, cell.model, cell.data, cell.name)
        cell.folder.mkdir(parents=True, exist_ok=True)
        temporary = cell.folder / ".cell.json.tmp"
        temporary.write_text(json.dumps(vars(record), indent=2) + "\n")
        os.replace(temporary, cell.folder / "cell.json")
    if state == "new":  # a run that was killed before its first checkpoint leaves rows that nothing goes on from
        for name in _PARTIAL:
            (cell.folder / name).unlink(missing_ok=True)
    return record


def read_json(path: Path) -> dict[str, Any]:
    """Content of a JSON file that may be missing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_record(folder: Path) -> CellRecord | None:
    content = read_json(folder / "cell.json")
    return CellRecord(**{f.name: content[f.name] for f in fields(CellRecord) if f.name in content}) if content else None


def _differences(before: dict[str, str], now: dict[str, str]) -> str:
    names = [n for n in {**before, **now} if before.get(n) != now.get(n)]
    parts = [
        f"`{n}` has changed" if n.startswith("config ") else f"`{n}`: `{before.get(n, '-')}`, now `{now.get(n, '-')}`"
        for n in names[:3]
    ]
    return ", ".join(parts) + (", ..." if len(names) > 3 else "")
