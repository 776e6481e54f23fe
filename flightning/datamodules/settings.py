"""What small classes with keyword settings share: refusals and a representation for tables and run names."""

from __future__ import annotations

import inspect
from typing import ClassVar

from flightning.errors import ConfigurationError

__all__ = ["Settings", "require"]


def require(condition: bool, name: str, value: object, rule: str, remedy: str) -> None:
    """Refuse a setting with its value, the rule it breaks and the remedy.

    Raises:
        ConfigurationError: When ``condition`` is false.

    Example:
        >>> require(False, "alpha", -1, "must be > 0", "use 100 for nearly IID clients")
        Traceback (most recent call last):
        flightning.errors.ConfigurationError: `alpha` must be > 0, got -1: use 100 for nearly IID clients.
    """
    if not condition:
        raise ConfigurationError(f"`{name}` {rule}, got {value!r}: {remedy}.")


class Settings:
    """Object that stores its constructor arguments under their names and shows those that matter.

    Example:
        >>> class Point(Settings):
        ...     shown = ("x",)
        ...     def __init__(self, x=0, y=0):
        ...         self.x, self.y = x, y
        >>> Point(), Point(y=2)
        (Point(x=0), Point(x=0, y=2))
    """

    shown: ClassVar[tuple[str, ...]] = ()
    """Arguments that the representation shows even at their default."""

    def __repr__(self) -> str:
        arguments = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            if name in self.shown or value != parameter.default:
                arguments.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(arguments)})"
