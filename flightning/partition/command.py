"""``flightning partition``: build only the data module, show how its clients differ."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flightning.errors import ConfigurationError, FlightningError
from flightning.packaged import find_config
from flightning.partition.startup import quick_imports

__all__ = ["Sweep", "build_data", "find_sweep", "run"]

#: What a run's configuration says about the data; the rest is not looked at.
_KEPT = ("seed_everything", "data")


@dataclass(frozen=True)
class Sweep:
    """One option that is given several values.

    Args:
        option: Such as ``--data.partition.alpha``; ``None`` where every option has one value.
        values: The values; one empty text where there is no such option.
        arguments: All other arguments.
    """

    option: str | None
    values: Sequence[str]
    arguments: Sequence[str]

    def arguments_of(self, value: str) -> list[str]:
        """All arguments with this value of the option."""
        return [*self.arguments, *([] if self.option is None else [self.option, value])]

    def label(self, value: str) -> str:
        """Heading of a value."""
        return "" if self.option is None else f"{self.option.rpartition('.')[2].lstrip('-')} = {value}"


def find_sweep(argv: Sequence[str]) -> Sweep:
    """Find the option with several values.

    Raises:
        ConfigurationError: Where there are two of them, or a value belongs to no option.

    Example:
        >>> sweep = find_sweep(["--data", "MNIST", "--data.partition.alpha", "0.1", "5"])
        >>> sweep.option, list(sweep.values), list(sweep.arguments)
        ('--data.partition.alpha', ['0.1', '5'], ['--data', 'MNIST'])
        >>> list(find_sweep(["--data.partition.alpha=0.1", "5"]).values)
        ['0.1', '5']
    """
    groups: list[list[str]] = []
    for argument in argv:
        if argument.startswith("--") or argument == "-c":
            groups.append([argument])
        elif groups:
            groups[-1].append(argument)
        else:
            raise ConfigurationError(f"`{argument}` belongs to no option: write `--config {argument}`, for instance.")
    several = [group for group in groups if len(_values(group)) > 1]
    if not several:
        return Sweep(None, [""], list(argv))
    if len(several) > 1:
        names = " and ".join(f"`{group[0].partition('=')[0]}`" for group in several)
        raise ConfigurationError(f"{names} have several values each: compare the values of one option at a time.")
    chosen = several[0]
    others = [argument for group in groups if group is not chosen for argument in group]
    return Sweep(chosen[0].partition("=")[0], _values(chosen), others)


def _values(group: Sequence[str]) -> list[str]:
    """Values of an option, of which the first may follow an equals sign."""
    _, sign, first = group[0].partition("=")
    return [*([first] if sign else []), *group[1:]]


def build_data(arguments: Sequence[str]) -> Any:
    """Make and set up the data module that a command line describes.

    Args:
        arguments: ``--config``, ``--data...`` and ``--seed_everything`` as for ``flightning fit``.

    Returns:
        A `FederatedDataModule` after `setup`.
    """
    from jsonargparse import ActionConfigFile
    from lightning.pytorch import seed_everything

    from flightning.cli import FriendlyParser, construct
    from flightning.datamodules import FederatedDataModule

    parser = FriendlyParser(prog="flightning partition", description="The options of the data module, as for `fit`.")
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="Configuration of a run.")
    parser.add_argument("--seed_everything", type=bool | int, default=0, help="Seed of the partition.")
    parser.add_lightning_class_args(FederatedDataModule, "data", subclass_mode=True, required=True)
    FriendlyParser.given = arguments
    config = parser.parse_args(_without_other_parts(arguments))
    if config.seed_everything is not False:
        seed_everything(None if config.seed_everything is True else config.seed_everything, workers=True, verbose=False)
    data = construct(parser, config).data
    data.prepare_data()
    data.setup("fit")
    return data


def _without_other_parts(arguments: Sequence[str]) -> list[str]:
    """Replace each configuration file by the text of its parts that describe the data."""
    import yaml

    kept: list[str] = []
    for argument in arguments:
        if kept and kept[-1] in ("-c", "--config"):
            argument = _data_part(argument, yaml)
        elif argument.startswith("--config="):
            argument = f"--config={_data_part(argument.removeprefix('--config='), yaml)}"
        kept.append(argument)
    return kept


def _data_part(name: str, yaml: Any) -> str:
    path = Path(find_config(name))
    if not path.is_file():
        raise ConfigurationError(f"there is no configuration file `{name}`: check the path.")
    try:
        config = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigurationError(f"`{path}` is no YAML file ({error}): correct it.") from error
    parts = {key: config[key] for key in _KEPT if key in config} if isinstance(config, dict) else {}
    return str(yaml.safe_dump(parts))


def run(argv: list[str]) -> int:
    """Entry point of ``flightning partition``.

    Args:
        argv: Arguments after the verb.

    Returns:
        0, or 2 where the configuration cannot work.
    """
    options, passed = _parser().parse_known_args(argv)
    try:
        sweep = find_sweep(passed)
        if options.save and sweep.option is not None:
            raise ConfigurationError(
                f"`--save` keeps one partition, but `{sweep.option}` has {len(sweep.values)} values: give one of them."
            )
        with quick_imports():
            from flightning.cli import quieten
            from flightning.datamodules.view import View
            from flightning.partition.show import show
        quieten()
        views = []
        for value in sweep.values:
            data = build_data(sweep.arguments_of(value))
            views.append(View.of(sweep.label(value), data))
            if options.save:
                print(f"The partition is saved in {data.save_partition(options.save)}")
        show(views, Path(options.out))
    except FlightningError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flightning partition",
        description="Show how the clients of a configuration differ, before anything is trained.",
        epilog="All options of the data module as for `flightning fit`: `--data FashionMNIST --data.num_clients 20`. "
        "Several values compare partitions: `--data.partition.alpha 0.1 0.5 5`, `--data.partition IID Shards`.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", default="partition", metavar="DIR", help="folder of the pictures and of clients.csv")
    parser.add_argument("--save", metavar="FILE.npz", help="keep the partition, for `FromFile`")
    return parser
