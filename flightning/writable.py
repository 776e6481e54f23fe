"""Refuse a folder that cannot be written before any work is done for it."""

from __future__ import annotations

from pathlib import Path

from flightning.errors import ConfigurationError

__all__ = ["ensure_writable"]


def ensure_writable(
    folder: Path, what: str = "the run's folder", option: str = "`--run_folder` or `--trainer.default_root_dir`"
) -> None:
    """Make the folder and try to write in it.

    Args:
        folder: The folder.
        what: What it is, for the message.
        option: The option that chooses another one.

    Raises:
        ConfigurationError: Where that fails.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigurationError(
            f"{what} `{folder}` cannot be written ({error}): choose another with {option}."
        ) from error
