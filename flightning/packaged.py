"""Find the configurations that come with the package by their bare names."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from flightning.errors import ConfigurationError, nearest

__all__ = ["find_config"]


def find_config(name: str, folder: str = "") -> str:
    """Path of a configuration.

    Args:
        name: Path of a file, or the bare name of a packaged configuration, such as ``quickstart``.
        folder: Folder of the packaged configurations that is meant, such as ``compare``.

    Returns:
        The path as given where there is such a file, else that of the packaged one. What looks like a path and is none
        is returned unchanged.

    Raises:
        ConfigurationError: If there is neither.
    """
    if Path(name).is_file():
        return name
    packaged = files("flightning") / "configs" / folder
    found = packaged / f"{name.removesuffix('.yaml')}.yaml"
    if found.is_file():
        return str(found)
    if name.isidentifier():
        names = [p.name.removesuffix(".yaml") for p in packaged.iterdir() if p.is_file()]
        raise ConfigurationError(f"there is no configuration file `{name}`. {nearest(name, names)}")
    return name
