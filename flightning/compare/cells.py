"""The cells of a comparison: every method on every setting with every seed, as arguments of `flightning fit`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from flightning.compare.grid import Choice, Grid, known_classes
from flightning.errors import ConfigurationError, nearest

__all__ = ["Cell", "default_folder", "fingerprint", "make_cells"]

#: Arguments that say where things are or how they are shown, never what is computed.
_PLACES = ("root", "data_dir", "num_workers", "enable_progress_bar")


@dataclass(frozen=True)
class Cell:
    """One run of a comparison.

    Args:
        model: Label of the method.
        setting: Label of data and partition; empty where the grid names none.
        seed: Its seed.
        arguments: What `flightning fit` is called with, besides its folder.
        settings: Everything that decides what is computed, by name.
        folder: The run's folder.
        data: Name that the grid gives to its data; empty if it gives none.
    """

    model: str
    setting: str
    seed: int
    arguments: tuple[str, ...]
    settings: Mapping[str, str]
    folder: Path
    data: str = ""

    @property
    def label(self) -> str:
        """Method, setting and seed."""
        return ", ".join(part for part in (self.model, self.setting, f"seed {self.seed}") if part)


def make_cells(grid: Grid, out: Path) -> list[Cell]:
    """All cells, seed by seed, so that every method is seen early.

    Args:
        grid: What is compared.
        out: Folder of the comparison.

    Returns:
        The cells.

    Raises:
        ConfigurationError: If two cells are the same, or a class is not known.
    """
    dealt = [*grid.partitions, *(partition for data in grid.data for partition in data.partitions)]
    _check_known([c.arguments["model"] for c in grid.models], "algorithms")
    _check_known([c.arguments["data"] for c in grid.data], "datamodules")
    _check_known([c.arguments["data.partition"] for c in dealt], "datamodules")
    _check_data_names(grid)
    data_sets: Sequence[Choice | None] = grid.data or [None]
    partitions: Sequence[Choice | None] = grid.partitions or [None]
    settings = [(data, partition) for data in data_sets for partition in (data and data.partitions) or partitions]
    cells = []
    for seed in grid.seeds:
        for data, partition in settings:
            setting = ", ".join(c.label for c in (data, partition) if c is not None)
            for model in grid.models:
                chosen = dict(grid.shared)
                for choice in (data, partition, model):
                    chosen.update(choice.arguments if choice is not None else {})
                for name in _names(data) if data is not None else ():
                    chosen.update(model.by_data.get(name, {}))
                passed = _without(grid.passed, data.ignores if data is not None else ())
                cell = _cell(grid.configs, passed, out, model.label, setting, seed, chosen)
                cells.append(replace(cell, data=data.name if data is not None else ""))
    return _distinct(cells)


def _names(data: Choice) -> tuple[str, ...]:
    """What a method may call a data set: its class, or the name that the grid gives to it."""
    return data.arguments["data"], data.name


def _without(passed: Sequence[str], ignored: Sequence[str]) -> list[str]:
    """Arguments but for some options and their values.

    Example:
        >>> _without(["--data.root", "/data", "--budget=0.5"], ["data.root"])
        ['--budget=0.5']
    """
    kept, keeps = [], True
    for word in passed:
        if word.startswith("--"):
            keeps = word[2:].partition("=")[0] not in ignored
        kept += [word] if keeps else []
    return kept


def _check_known(names: Iterable[str], package: str) -> None:
    known = known_classes(package)
    for name in names:
        if "." not in name and name not in known:
            raise ConfigurationError(
                f"`{name}` is no class that flightning knows. {nearest(name, known)} A class of your own is given with "
                "its module: `my_module.MyClass`."
            )


def _check_data_names(grid: Grid) -> None:
    known = [name for data in grid.data for name in _names(data) if name]
    for model in grid.models:
        for name in model.by_data:
            if name not in known:
                raise ConfigurationError(
                    f"`{model.label}` has arguments `for` the data `{name}`, which the grid does not have. "
                    f"{nearest(name, known)}"
                )


def _cell(
    configs: Sequence[str],
    passed: Sequence[str],
    out: Path,
    model: str,
    setting: str,
    seed: int,
    chosen: Mapping[str, str],
) -> Cell:
    # a class before its arguments
    ordered = sorted(chosen.items(), key=lambda item: item[0].count("."))
    arguments = [f"--config={path}" for path in configs]
    arguments += [f"--{key}={value}" for key, value in ordered]
    arguments += [*passed, f"--seed_everything={seed}"]
    folder = out.joinpath(*(_slug(part) for part in (setting, model) if part), f"seed_{seed}")
    settings = {f"config {i}": _content(path) for i, path in enumerate(configs)}
    settings |= {key: value for key, value in chosen.items() if _decides(key)} | _decisive(passed)
    return Cell(model, setting, seed, tuple(arguments), {**settings, "seed": str(seed)}, folder)


def _distinct(cells: list[Cell]) -> list[Cell]:
    """Cells with folders of their own; two that compute the same are refused."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(fingerprint(cell.settings), cell)
        if other is not cell:
            raise ConfigurationError(f"`{cell.label}` is in the comparison twice: name each method and seed once.")
    folders = [cell.folder for cell in cells]
    return [c if folders.count(c.folder) == 1 else replace(c, folder=_own_folder(c)) for c in cells]


def _own_folder(cell: Cell) -> Path:
    method = cell.folder.parent
    variant = fingerprint({k: v for k, v in cell.settings.items() if k != "seed"})[:6]
    return method.with_name(f"{method.name}-{variant}") / cell.folder.name


def default_folder(grid: Grid, name: str) -> Path:
    """Where a comparison lies if no folder is given.

    It depends on what all cells share, not on methods and seeds, so that these can be added later.

    Args:
        grid: What is compared.
        name: Name of the configuration or grid.
    """
    shared = {**grid.shared, **{f"config {i}": _content(path) for i, path in enumerate(grid.configs)}}
    shared |= _decisive(grid.passed)
    return Path("runs") / "compare" / f"{_slug(name)}-{fingerprint(shared)[:8]}"


def fingerprint(settings: Mapping[str, str]) -> str:
    """Hash of what decides what is computed.

    Example:
        >>> fingerprint({"a": "1", "b": "2"}) == fingerprint({"b": "2", "a": "1"})
        True
    """
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _content(path: str) -> str:
    """What a configuration says, without its comments and layout."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"the configuration `{path}` cannot be read ({error}): give a YAML file.") from error
    return json.dumps(content, sort_keys=True, default=str)


def _decisive(passed: Sequence[str]) -> dict[str, str]:
    """Names and values of arguments such as ``--a.b 1`` or ``--a.b=1`` that decide what is computed."""
    words: dict[str, list[str]] = {}
    key = ""
    for word in passed:
        if word.startswith("--"):
            key, equals, value = word.partition("=")
            words.setdefault(key, []).extend([value] if equals else [])
        else:
            words.setdefault(key, []).append(word)
    return {name: " ".join(found) for name, found in words.items() if _decides(name)}


def _decides(name: str) -> bool:
    return name.rpartition(".")[2] not in _PLACES


def _slug(text: str) -> str:
    """Text as the name of a folder.

    Example:
        >>> _slug("FedProx(mu=0.1, net=MLP)")
        'fedprox-mu=0.1-net=mlp'
    """
    return re.sub(r"[^a-z0-9._=+]+", "-", text.lower()).strip("-") or "unnamed"
