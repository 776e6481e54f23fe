"""What the argument parser refuses, in one sentence that names value, rule and remedy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

from flightning.errors import nearest

__all__ = ["explain"]

_NUMBERS = {"int": "a whole number", "float": "a number", "bool": "`true` or `false`", "str": "text"}
_LISTS = ("Sequence", "list", "tuple")

#: How jsonargparse introduces the parts of a nested error; the reason itself is the last line that is none of these.
_BOILERPLATE = (
    "Expected a <class 'NoneType'>",
    "Expected a path",
    "Does not validate",
    "Problem with given class_path",
)


#: Options that name a rule, whose own options need that name.
_RULES = {
    "partition": "flightning.datamodules.partitioners.base.Partitioner",
    "skew": "flightning.datamodules.skews.FeatureSkew",
}


def explain(
    message: str,
    options: Iterable[str] = (),
    classes: Sequence[str] = (),
    verbs: Sequence[str] = (),
    given: Sequence[str] = (),
) -> str:
    r"""Say what is wrong with an argument.

    Args:
        message: What jsonargparse says.
        options: Options that exist, with their dashes.
        classes: Names of classes that may be meant where jsonargparse does not say of which kind.
        verbs: What may come first on the command line.
        given: The arguments of the command line.

    Example:
        >>> explain("Unrecognized arguments: --trainer.presision 16", ["--trainer.precision", "--data"])
        'there is no option `--trainer.presision`. Did you mean `--trainer.precision`?'
        >>> explain("Option 'mu' is not accepted", ["--help", "--net", "--net.help", "--num_classes"])
        'there is no option `mu` here. Known names: `net`, `num_classes`.'
        >>> explain('Parser key "mu":\n  Expected a <class \'float\'>. Got value: abc')
        '`mu=abc` must be a number.'
    """
    rules: list[Callable[[], str | None]] = [
        lambda: _unnamed_rule(message, given),
        lambda: _unknown_option(message, options),
        lambda: _left_over(message, given),
        lambda: _missing(message),
        lambda: _unknown_verb(message, verbs),
        lambda: _wrong_type(message),
        lambda: _unknown_function(message),
        lambda: _unknown_class(message, classes),
    ]
    for rule in rules:
        sentence = rule()
        if sentence is not None:
            return sentence
    reasons = [r for r in re.findall(r"^ *- (.+)$", message, re.MULTILINE) if not r.startswith(_BOILERPLATE)]
    return reasons[-1] if reasons else message


def _unnamed_rule(message: str, given: Sequence[str]) -> str | None:
    """Where an option of a partition or skew is given without its class."""
    if not (found := re.search(r"Option '(\w+)' is not accepted", message)):
        return None
    for argument in given:
        parent = re.match(rf"--([\w.]+\.({'|'.join(_RULES)}))\.{found[1]}(?:=|$)", argument)
        known = _subclasses(_RULES[parent[2]]) if parent else {}
        owners = sorted(name for name, cls in known.items() if found[1] in inspect.signature(cls).parameters)
        if parent and owners:
            return (
                f"`{found[1]}` is an option of {', '.join(f'`{name}`' for name in owners)}: name the class, too, for "
                f"instance `--{parent[1]} {owners[0]}`."
            )
    return None


def _unknown_option(message: str, options: Iterable[str]) -> str | None:
    if found := re.search(r"Unrecognized arguments: (--[^\s=]+)", message):
        return f"there is no option `{found[1]}`. {nearest(found[1], options)}"
    if found := re.search(r"Option '(\w+)' is not accepted", message):
        # the parser that says so is that of the class at fault
        own = {option.strip("-+") for option in options if option.startswith("--") and "." not in option} - {"help"}
        if own:
            return f"there is no option `{found[1]}` here. {nearest(found[1], own)}"
        return (
            f"there is no option `{found[1]}` here: `flightning fit --model.help NAME`, or `--data.help NAME`, lists "
            "those of a class."
        )
    return None


def _left_over(message: str, given: Sequence[str]) -> str | None:
    """Where an option that takes one value was given several."""
    if not (found := re.search(r"Unrecognized arguments: ([^-\s]\S*)", message)) or found[1] not in given:
        return None
    before = [a for a in given[: given.index(found[1])] if a.startswith("--")]
    owner = f"`{before[-1].partition('=')[0]}` takes one value" if before else "it belongs to no option"
    return (
        f"`{found[1]}` is left over: {owner}. Write a list as `[1,2]`; several partitions are compared by `flightning "
        "partition`, or by `flightning compare` with a grid file."
    )


def _missing(message: str) -> str | None:
    if "subcommand" in message and "not provided" in message:
        return "say what to do, for instance `flightning fit --config quickstart`; `flightning --help` lists the verbs."
    if found := re.search(r"Option '([\w.]+)' is required", message):
        name = found[1].split(".")[-1]
        examples = {"model": " FedAvg", "data": " Digits"}
        if name in examples:
            return (
                f"`--{name}` is missing: name a class, for instance `--{name}{examples[name]}`, or take a whole "
                "configuration, `--config quickstart`."
            )
        return f"`{name}` is missing: it has no default, so give a value."
    if found := re.search(r"File does not exist: '?([^']+)'?", message):
        return f"there is no file `{found[1]}`: check the path, which starts in the folder where you are."
    return None


def _unknown_verb(message: str, verbs: Sequence[str]) -> str | None:
    found = re.search(r"argument subcommand: invalid choice: '([^']*)'", message)
    return f"there is no verb `{found[1]}`. {nearest(found[1], verbs)}" if found else None


def _wrong_type(message: str) -> str | None:
    key = re.search(r'Parser key "([\w.]+)"', message)
    value = re.search(r"(?:Got|Given) value: (.*)", message)
    if not key or not value:
        return None
    given = f"`{key[1]}={value[1]}`"
    if choices := re.search(r"Expected a typing\.Literal\[(.*?)\]", message):
        names = re.findall(r"'([^']*)'", choices[1])
        return f"{given} must be one of {', '.join(f'`{n}`' for n in names)}."
    types = re.findall(r"<class '(?:[\w.]*\.)?(\w+)'>", re.sub(r"Given value type.*", "", message))
    expected = list(dict.fromkeys(_NUMBERS[t] for t in types if t in _NUMBERS))
    if "a number" in expected:  # as every whole number is
        expected = [e for e in expected if e != "a whole number"]
    if expected:
        return f"{given} must be {' or '.join(expected)}."
    if any(t in _LISTS for t in types) and "dot import" not in message:
        return f"{given} must be a list, such as `[1, 2]`."
    return None


def _unknown_function(message: str) -> str | None:
    if found := re.search(r"expects a function or a callable class: (.+?)\.? Got value: ([\w.]+\.\w+)", message):
        return (
            f"`{found[2]}` cannot be imported ({found[1]}): check the spelling, and that the folder of the module is "
            "on the `PYTHONPATH`; `python -m flightning` also looks into the folder where you are."
        )
    return None


def _unknown_class(message: str, classes: Sequence[str]) -> str | None:
    if found := re.search(
        r"Problem with given class_path '([\w.]+)':\s*((?:No module|module '[\w.]+' has no).*)", message
    ):
        name = found[1].split(".")[-1]
        hint = nearest(name, classes) + " " if found[1].startswith("flightning.") else ""
        return (
            f"`{found[1]}` cannot be imported ({found[2]}). {hint}Check the spelling, and that the folder of the "
            "module is on the `PYTHONPATH`."
        )
    if not (found := re.search(r"Expected a dot import path string: ([\w-]+)\s", message + "\n")):
        return None
    bases = re.findall(r"<class '([\w.]+)'>", re.search(r"Subtypes: \[(.*)\]", message + "Subtypes: []")[1])  # type: ignore[index]
    known = [name for base in bases for name in _subclasses(base)] or classes
    return (
        f"`{found[1]}` is no class that flightning knows. {nearest(found[1], known)} A class of your own is given with "
        "its module: `my_module.MyClass`."
    )


def _subclasses(path: str) -> dict[str, type]:
    """The imported classes that descend from the class of this path and can be meant, by name."""
    module, _, name = path.rpartition(".")
    found: set[type] = set()
    waiting = [getattr(import_module(module), name)] if module else []
    while waiting:
        cls = waiting.pop()
        waiting += [c for c in type.__subclasses__(cls) if c not in found]
        found.update(type.__subclasses__(cls))
    public = [c for c in found if not c.__name__.startswith("_") and "<locals>" not in c.__qualname__]
    return {c.__name__: c for c in public if not c.__name__.endswith("Mixin") and not c.__module__.startswith("tests")}
