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
from flightning.report.arrange import PLACES

__all__ = ["Cell", "decisive", "default_folder", "fingerprint", "make_cells"]

#: Letters of a folder's name; file systems take 255 bytes, and some that encrypt names 143.
_LONGEST = 100


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
        data: Label of its data; empty where the grid names none.
        name: Name that the grid gives to the method; empty if it gives none.
    """

    model: str
    setting: str
    seed: int
    arguments: tuple[str, ...]
    settings: Mapping[str, str]
    folder: Path
    data: str = ""
    name: str = ""

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
        ConfigurationError: If two cells are the same or could not be told apart, or a class is not known.
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
                cell = _cell(grid.configs, passed, out, model, setting, seed, chosen)
                cells.append(replace(cell, data=data.label if data is not None else ""))
    _check_distinct(cells)
    return cells


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
    model: Choice,
    setting: str,
    seed: int,
    chosen: Mapping[str, str],
) -> Cell:
    # a class before its arguments
    ordered = sorted(chosen.items(), key=lambda item: item[0].count("."))
    arguments = [f"--config={path}" for path in configs]
    arguments += [f"--{key}={value}" for key, value in ordered]
    arguments += [*passed, f"--seed_everything={seed}"]
    folder = out.joinpath(*([_slug(setting)] if setting else []), _folder_name(model), f"seed_{seed}")
    settings = {f"config {i}": _content(path) for i, path in enumerate(configs)}
    settings |= {**chosen, **_words(passed), "seed": str(seed)}
    return Cell(model.label, setting, seed, tuple(arguments), decisive(settings), folder, name=model.name)


def _folder_name(model: Choice) -> str:
    """Name of a method's folder: it depends on the method alone, so that it stays when others are added."""
    return _slug(model.label) + (f"-{fingerprint(model.unsaid)[:6]}" if model.unsaid else "")


def _check_distinct(cells: Iterable[Cell]) -> None:
    """Refuse two cells that compute the same or would share a folder."""
    seen: dict[str, Cell] = {}
    folders: dict[Path, Cell] = {}
    for cell in cells:
        if seen.setdefault(fingerprint(cell.settings), cell) is not cell:
            raise ConfigurationError(f"`{cell.label}` is in the comparison twice: name each method and seed once.")
        other = folders.setdefault(cell.folder, cell)
        if other is not cell:
            raise ConfigurationError(
                f"`{other.label}` and `{cell.label}` compute different things and would share the folder "
                f"`{cell.folder}`: give one of the entries another name with `as`."
            )


def default_folder(grid: Grid, name: str) -> Path:
    """Where a comparison lies if no folder is given.

    It depends on what all cells share, not on methods and seeds, so that these can be added later.

    Args:
        grid: What is compared.
        name: Name of the configuration or grid.
    """
    shared = {**grid.shared, **{f"config {i}": _content(path) for i, path in enumerate(grid.configs)}}
    shared |= _words(grid.passed)
    return Path("runs") / "compare" / f"{_slug(name)}-{fingerprint(shared)[:8]}"


def fingerprint(settings: Mapping[str, str]) -> str:
    """Hash of what decides what is computed.

    Example:
        >>> fingerprint({"a": "1", "b": "2"}) == fingerprint({"b": "2", "a": "1.0"})
        True
    """
    return hashlib.sha256(json.dumps(decisive(settings), sort_keys=True).encode()).hexdigest()


def decisive(settings: Mapping[str, str]) -> dict[str, str]:
    """Those settings that decide what is computed, numbers written in one way.

    Example:
        >>> decisive({"--budget": "1.0", "--trainer.logger": "WandbLogger", "data.root": "/data", "model.mu": "0.10"})
        {'--budget': '1', 'model.mu': '0.1'}
    """
    return {name: _plain(value) for name, value in settings.items() if _decides(name)}


def _plain(value: str) -> str:
    try:
        number = float(value)
    except ValueError:
        return value
    return str(int(number)) if number.is_integer() else repr(number)


def _content(path: str) -> str:
    """What a configuration says, without its comments and layout."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"the configuration `{path}` cannot be read ({error}): give a YAML file.") from error
    return json.dumps(content, sort_keys=True, default=str)


def _words(passed: Sequence[str]) -> dict[str, str]:
    """Names and values of arguments such as ``--a.b 1`` or ``--a.b=1``."""
    words: dict[str, list[str]] = {}
    key = ""
    for word in passed:
        if word.startswith("--"):
            key, equals, value = word.partition("=")
            words.setdefault(key, []).extend([value] if equals else [])
        else:
            words.setdefault(key, []).append(word)
    return {name: " ".join(found) for name, found in words.items()}


def _decides(name: str) -> bool:
    parts = name.removeprefix("--").removesuffix("+").split(".")
    return parts[:2] != ["trainer", "logger"] and parts[-1] not in PLACES


def _slug(text: str) -> str:
    """Text as the name of a folder.

    Example:
        >>> _slug("FedProx(mu=0.1, net=MLP)")
        'fedprox-mu=0.1-net=mlp'
    """
    slug = re.sub(r"[^a-z0-9._=+]+", "-", text.lower()).strip("-") or "unnamed"
    if len(slug) <= _LONGEST:
        return slug
    return f"{slug[: _LONGEST - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
