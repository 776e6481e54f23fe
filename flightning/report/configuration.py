"""Read the configuration of a run and name its parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

__all__ = ["class_name", "data_and_partition", "flatten", "load_mapping"]


def flatten(config: Any, prefix: str = "") -> dict[str, str]:
    """Flat ``{dotted key: text}`` of a configuration, without the levels ``class_path`` and ``init_args``.

    Example:
        >>> flatten({"model": {"class_path": "flightning.FedProx", "init_args": {"mu": 0.1}}, "seed_everything": 0})
        {'model': 'flightning.FedProx', 'model.mu': '0.1', 'seed_everything': '0'}
    """
    if isinstance(config, Mapping) and config:
        items: Iterable[tuple[Any, Any]] = config.items()
    elif isinstance(config, Sequence) and not isinstance(config, str) and any(isinstance(c, Mapping) for c in config):
        items = enumerate(config)
    else:
        return {prefix: config if isinstance(config, str) else json.dumps(config, default=str)}
    flat: dict[str, str] = {}
    for name, value in items:
        key = prefix if name in ("class_path", "init_args") else f"{prefix}.{name}" if prefix else str(name)
        flat.update({} if name == "init_args" and not value else flatten(value, key))
    flat.pop("", None)
    return flat


def load_mapping(path: Path, problems: list[str]) -> dict[str, Any]:
    """Content of a JSON or YAML file, or nothing with the reason in ``problems``."""
    if not path.is_file():
        return {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where libyaml is there
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=loader)
    except (ValueError, yaml.YAMLError) as error:
        problems.append(f"`{path.name}` cannot be read and was passed over ({str(error).splitlines()[0]}).")
        return {}
    return content if isinstance(content, dict) else {}


def class_name(node: Any) -> str:
    """``"FedAvg"`` from a name, a class path or a node with a ``class_path``."""
    path = node.get("class_path", "") if isinstance(node, Mapping) else node
    return path.rpartition(".")[2] if isinstance(path, str) else ""


def data_and_partition(summary: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, str]:
    """Names of the data and of what makes the clients differ, from the summary or else from the configuration.

    Example:
        >>> data_and_partition({"data": "MNIST", "partition": "IID()", "skew": "RotationSkew(groups=4)"}, {})
        ('MNIST', 'IID, RotationSkew(groups=4)')
    """
    data = config.get("data")
    inner = data.get("init_args", data) if isinstance(data, Mapping) else {}
    rules = []
    for part in ("partition", "skew"):
        node = inner.get(part) if isinstance(inner, Mapping) else None
        rules.append(str(summary.get(part) or _rule(node)).removesuffix("()"))
    return str(summary.get("data") or class_name(data) or "unknown data"), ", ".join(rule for rule in rules if rule)


def _rule(node: Any) -> str:
    name = class_name(node)
    arguments = node.get("init_args") if isinstance(node, Mapping) else None
    if name and isinstance(arguments, Mapping):
        return name + "(" + ", ".join(f"{k}={v}" for k, v in arguments.items()) + ")"
    return name
