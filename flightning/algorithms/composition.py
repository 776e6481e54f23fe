"""What may stand together in one class is decided when the class is made."""

from __future__ import annotations

import inspect

from lightning.pytorch import LightningModule

from flightning.errors import CompositionError
from flightning.functional.aggregation import REDUCTIONS

__all__ = ["ATTRIBUTES", "check_bases", "check_module_behind", "check_names", "check_whole_models", "merged_reductions"]

#: What the constructor of the mixin sets; a module behind it must not use these names.
ATTRIBUTES = (
    "buffer_policy", "client", "client_state", "client_states", "cohort", "cohort_weights", "global_weights",
    "num_clients", "num_training_clients", "num_updates", "round_metrics", "server_state", "setup_bytes",
)  # fmt: skip


def check_bases(cls: type, root: type) -> None:
    """Refuse bases in the wrong order, and mixins that want the same power or the same argument.

    Args:
        cls: The new class.
        root: The mixin that all algorithms descend from.
    """
    _check_order(cls, root)
    _check_ownership(cls, root)
    _check_aggregation_order(cls, root)
    _check_arguments(cls, root)


def check_names(module: LightningModule, root: type) -> None:
    """Refuse a layer or attribute that one of the mixins would hide or overwrite."""
    layers = {**module._modules, **module._parameters, **module._buffers}
    hidden = [name for name in layers if hasattr(root, name) and not hasattr(LightningModule, name)]
    for name in [*hidden, *(name for name in ATTRIBUTES if name in layers or name in vars(module))]:
        raise CompositionError(
            f"`{type(module).__name__}` has a layer or attribute called `{name}`, a name that the algorithms use: "
            f"rename it, for instance to `own_{name}`."
        )


def _mixins(cls: type, root: type) -> list[type]:
    return [c for c in cls.__mro__ if issubclass(c, root)]


def _check_order(cls: type, root: type) -> None:
    last_mixin = cls.__mro__.index(root) if root in cls.__mro__ else 0
    for base in cls.__mro__[:last_mixin]:
        if issubclass(base, LightningModule) and not issubclass(base, root):
            mixin = next(c for c in cls.__mro__[cls.__mro__.index(base) :] if issubclass(c, root))
            raise CompositionError(
                f"`{cls.__name__}` puts `{base.__name__}` before the mixin `{mixin.__name__}`, so the algorithm would "
                f"be ignored: write the mixins first, `class {cls.__name__}({mixin.__name__}, {base.__name__})`."
            )


def check_module_behind(cls: type, root: type) -> None:
    """Refuse an instance without a module whose steps could be taken."""
    behind = cls.__mro__[cls.__mro__.index(root) + 1 :]
    framework = (LightningModule, *(c for c in root.__mro__ if c is not root))
    if any("training_step" in vars(c) for c in behind if issubclass(c, LightningModule) and c not in framework):
        return
    mixin = next(c for c in _mixins(cls, root) if c.__module__ != cls.__module__ or c is root)
    raise CompositionError(
        f"`{cls.__name__}` has no module with a `training_step` behind `{mixin.__name__}`, so the algorithm would be "
        f"skipped: write the module as a class of its own, `class Model(LightningModule)`, and put the mixin in front "
        f"of it, `class {cls.__name__}({mixin.__name__}, Model)`."
    )


def _check_ownership(cls: type, root: type) -> None:
    owners: dict[str, str] = {}
    for mixin in _mixins(cls, root):
        for power in vars(mixin).get("owns", ()):
            if power in owners:
                raise CompositionError(
                    f"`{cls.__name__}` cannot combine `{owners[power]}` and `{mixin.__name__}`: both own the "
                    f"{power}. Keep one of them."
                )
            owners[power] = mixin.__name__


def _check_aggregation_order(cls: type, root: type) -> None:
    mixins = _mixins(cls, root)
    for owner in [m for m in mixins if "aggregation rule" in vars(m).get("owns", ())]:
        for mixin in mixins[: mixins.index(owner)]:
            if "aggregate" in vars(mixin) and not issubclass(mixin, owner):
                given = next(m for m in mixins if issubclass(m, mixin) and not issubclass(m, owner))
                raise CompositionError(
                    f"`{cls.__name__}` puts `{given.__name__}` before `{owner.__name__}`, which alone knows how to "
                    f"turn its uploads into weights: write `{owner.__name__}` first."
                )


def _check_arguments(cls: type, root: type) -> None:
    """Refuse an argument of two mixins unless a class in front of both takes it, which says that they share it."""
    first: dict[str, type] = {}
    for mixin in _mixins(cls, root):
        for name in _own_arguments(mixin):
            taker = first.setdefault(name, mixin)
            if not issubclass(taker, mixin):
                raise CompositionError(
                    f"`{cls.__name__}` combines `{taker.__name__}` and `{mixin.__name__}`, which both have an argument "
                    f"`{name}`: one value would serve both. If that is meant, let `{cls.__name__}` take it, `def "
                    f"__init__(self, {name}, **kwargs): super().__init__({name}={name}, **kwargs)`; otherwise keep one "
                    "of them, or give the argument of your own mixin another name."
                )


def _own_arguments(mixin: type) -> list[str]:
    given = inspect.signature(vars(mixin)["__init__"]).parameters if "__init__" in vars(mixin) else {}
    return [name for name, p in list(given.items())[1:] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def merged_reductions(cls: type, root: type) -> dict[str, str]:
    """The reduction of every upload name that the mixins of a class declare; different rules are refused."""
    merged: dict[str, str] = {}
    declared: dict[str, tuple[str, str]] = {}
    for mixin in reversed(_mixins(cls, root)):
        for name, rule in dict(vars(mixin).get("reductions", {})).items():
            if rule not in REDUCTIONS:
                raise CompositionError(
                    f"`{mixin.__name__}` reduces `{name}` by `{rule}`: choose one of {', '.join(REDUCTIONS)}."
                )
            owner, other = declared.get(name, ("", rule))
            if other != rule and not issubclass(mixin, _class_named(cls, owner)):
                raise CompositionError(
                    f"`{cls.__name__}` cannot combine `{mixin.__name__}` and `{owner}`: they reduce the upload "
                    f"`{name}` by different rules (`{rule}`, `{other}`). Keep one of them."
                )
            if mixin is not root and rule != merged.get(name):
                declared[name] = mixin.__name__, rule
            merged[name] = rule
    return merged


def check_whole_models(cls: type, mixin: str) -> None:
    """Refuse mixins that upload a part of the weights apart, where a rule needs the clients' models as they are.

    Args:
        cls: The new class.
        mixin: Name of the mixin with the rule.
    """
    apart = [name for name in cls.reductions if name.startswith("weights.")]  # type: ignore[attr-defined]
    if apart:
        owner = [c.__name__ for c in cls.__mro__ if apart[0] in vars(c).get("reductions", {})][-1]
        raise CompositionError(
            f"`{cls.__name__}` cannot combine `{mixin}` and `{owner}`: the first needs the clients' whole models, and "
            f"the second uploads a part of them apart (`{apart[0]}`). Keep one of them."
        )


def _class_named(cls: type, name: str) -> type:
    return next(c for c in cls.__mro__ if c.__name__ == name)
