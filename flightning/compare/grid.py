"""What is compared: methods, data sets, partitions and seeds, from a grid file or the command line."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from flightning.errors import ConfigurationError, nearest
from flightning.packaged import find_config

__all__ = ["Choice", "Grid", "flat", "known_classes", "parse_choice", "read_grid"]

KEYS = ("config", "with", "models", "data", "partitions", "seeds", "report")
"""What a grid file may say."""

BESIDE = {
    "model": ("with", "for", "as"),
    "data": ("with", "as", "partitions", "ignores"),
    "data.partition": ("with", "as"),
}
"""What may stand beside the name of an entry, by where its class stands in the configuration."""


@dataclass(frozen=True)
class Choice:
    """One entry of an axis of the grid.

    Args:
        label: What people see, such as ``FedProx(mu=0.1)``.
        arguments: Arguments of `flightning fit`, by their dotted names.
        by_data: More of them for single data sets, by the name of the data set.
        partitions: The partitions of a data set in place of those of the grid.
        ignores: Options that are passed on to every cell but those of this data set, such as ``data.root``.
        name: The label, if it was given.
        unsaid: Arguments that the label does not show.
    """

    label: str
    arguments: Mapping[str, str]
    by_data: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    partitions: Sequence[Choice] = ()
    ignores: Sequence[str] = ()
    name: str = ""
    unsaid: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """What is compared.

    Args:
        configs: Paths of the configurations that all cells share.
        models: The methods.
        data: The data sets; empty keeps that of the configuration.
        partitions: The partitions; empty keeps that of the configuration.
        seeds: The seeds.
        shared: Arguments of `flightning fit` for all cells, by their dotted names; methods and data come before them.
        passed: Arguments of `flightning fit` that are passed on to every cell, as given.
        report: Arguments of the report at the end.
    """

    configs: Sequence[str]
    models: Sequence[Choice]
    data: Sequence[Choice] = ()
    partitions: Sequence[Choice] = ()
    seeds: Sequence[int] = (0,)
    shared: Mapping[str, str] = field(default_factory=dict)
    passed: Sequence[str] = ()
    report: Mapping[str, Any] = field(default_factory=dict)


def known_classes(package: str) -> list[str]:
    """Public classes of a sub-package, read without importing it (and PyTorch with it).

    Example:
        >>> "FedProx" in known_classes("algorithms"), "FedProxMixin" in known_classes("algorithms")
        (True, False)
    """
    source = (files("flightning") / package / "__init__.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]:
            return [name for name in ast.literal_eval(node.value) if not name.endswith("Mixin")]
    return []


def parse_choice(entry: Any, place: str) -> Choice:
    """Read one entry of an axis.

    Args:
        entry: A class name; ``{name: arguments}``; or a class name with arguments in one word (``FedProx:mu=0.1``).
            Beside the name, ``with`` gives other parts of the configuration and ``as`` a label; a method may have
            other arguments ``for`` single data sets; data may have their own ``partitions``, and name options of the
            command line that they ``ignores``.
        place: Where the class stands in the configuration, such as ``model`` or ``data.partition``.

    Returns:
        The choice.

    Raises:
        ConfigurationError: If the entry is none of these.

    Example:
        >>> choice = parse_choice({"FedProx": {"mu": 0.1}, "with": {"trainer": {"max_epochs": 5}}}, "model")
        >>> choice.label, dict(choice.arguments)
        ('FedProx(mu=0.1)', {'model': 'FedProx', 'model.mu': '0.1', 'trainer.max_epochs': '5'})
        >>> parse_choice("FedProx:mu=0.1,net=MLP", "model").label
        'FedProx(mu=0.1, net=MLP)'
        >>> parse_choice({"FedAvg": {}, "with": {"trainer": {"callbacks": [{"class_path": "CCVR"}]}}}, "model").label
        'FedAvg + CCVR'
        >>> parse_choice({"FedProx": {"mu": 1.0}, "for": {"Sent140": {"mu": 0.01}}}, "model").label
        'FedProx'
    """
    if isinstance(entry, str):
        name, _, rest = entry.partition(":")
        entry = {name: dict(_assignment(part, entry) for part in rest.split(",")) if rest else {}}
    named = [key for key in entry if key not in BESIDE[place]] if isinstance(entry, Mapping) else []
    parts = [entry[key] or {} for key in (*named, "with", "for") if key in entry] if len(named) == 1 else []
    parts += [p for part in parts[-1:] if isinstance(part, Mapping) and "for" in entry for p in part.values()]
    if not parts or not all(isinstance(part, Mapping) for part in parts):
        raise ConfigurationError(
            f"`{json.dumps(entry, default=str)}` is no entry for `{place}`: give a class name, or one name with its "
            "arguments such as `FedProx: {mu: 0.1}`, and other parts of the configuration under `with`."
        )
    name = str(named[0])
    own, beside = flat(entry[named[0]] or {}, place), entry.get("with") or {}
    by_data = {data: flat(arguments, place) for data, arguments in (entry.get("for") or {}).items()}
    # what differs between data sets would be wrong for some of them
    varying = {key for arguments in by_data.values() for key in arguments}
    text = ", ".join(f"{key.removeprefix(place + '.')}={value}" for key, value in own.items() if key not in varying)
    short, given = name.rpartition(".")[2], str(entry.get("as") or "")
    return Choice(
        given or (f"{short}({text})" if text else short) + "".join(f" + {c}" for c in _callbacks(beside)),
        {place: name, **own, **flat(beside)},
        by_data,
        tuple(parse_choice(part, "data.partition") for part in entry.get("partitions") or ()),
        tuple(entry.get("ignores") or ()),
        given,
        {} if given else _unsaid(beside),
    )


def _callbacks(parts: Mapping[str, Any]) -> list[str]:
    """Names of callbacks beside a method: they may be the only difference to another entry."""
    callbacks = (parts.get("trainer") or {}).get("callbacks") or []
    names = [c.get("class_path", "") if isinstance(c, Mapping) else str(c) for c in callbacks]
    return [name.rpartition(".")[2] for name in names]


def _unsaid(parts: Mapping[str, Any]) -> dict[str, str]:
    """What stands beside a method, but for callbacks of which the names say all."""
    callbacks = (parts.get("trainer") or {}).get("callbacks") or []
    says_all = all(not isinstance(c, Mapping) or set(c) == {"class_path"} for c in callbacks)
    return {key: value for key, value in flat(parts).items() if not (says_all and key == "trainer.callbacks")}


def _assignment(text: str, entry: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigurationError(
            f"`{entry}` must give arguments as `name=value`, separated by commas, such as `FedProx:mu=0.1`."
        )
    return key, value


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Arguments of the command line for a part of a configuration.

    Example:
        >>> flat({"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}})
        {'optimizer': 'torch.optim.SGD', 'optimizer.lr': '0.1'}
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        name = prefix if key in ("class_path", "init_args") else f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            found.update(flat(value, name))
        elif not (isinstance(value, Mapping) and key == "init_args"):
            found[name] = value if isinstance(value, str) else json.dumps(value)
    return found


def read_grid(path: str) -> dict[str, Any]:
    """Read a grid file.

    Args:
        path: The file, or the bare name of a packaged grid, such as ``fedrl``.

    Returns:
        Its content.

    Raises:
        ConfigurationError: If it cannot be read or says something unknown.
    """
    found = Path(find_config(path, "compare"))
    try:
        content = yaml.safe_load(found.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"the grid `{path}` cannot be read ({error}): give a YAML file.") from error
    if not isinstance(content, dict) or not content.get("models"):
        raise ConfigurationError(f"the grid `{path}` must list `models`, such as `models: [FedAvg, FedProx]`.")
    if not isinstance(content.get("with") or {}, dict) or not isinstance(content.get("report") or {}, dict):
        raise ConfigurationError(f"`with` and `report` of the grid `{path}` must be mappings such as `last: 5`.")
    for key in content:
        if key not in KEYS:
            raise ConfigurationError(f"the grid `{path}` has a key `{key}`, which means nothing. {nearest(key, KEYS)}")
    return content
