"""Make sure that the data of all cells are there before the first of them trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flightning.compare.answers import ask
from flightning.compare.cells import Cell
from flightning.compare.processes import Nurseries
from flightning.errors import DataNotFoundError

__all__ = ["check_data", "data_arguments"]


def data_arguments(arguments: Iterable[str]) -> list[str]:
    """Those arguments of a fit that say what data it reads.

    Example:
        >>> data_arguments(["--config=a.yaml", "--model=FedAvg", "--data.root", "/data", "--data=MNIST"])
        ['--config=a.yaml', '--data.root', '/data', '--data=MNIST']
    """
    kept, keeps = [], False
    for word in arguments:
        if word.startswith("--"):
            name = word.partition("=")[0]
            keeps = name in ("--config", "--seed_everything") or name.split(".")[0] == "--data"
        kept += [word] if keeps else []
    return kept


def check_data(cells: Sequence[Cell], nurseries: Nurseries, threads: int) -> list[str]:
    """Read every data set of the cells once; what is missing is fetched then, and by one process.

    Errors of another kind are left to the cells, which fail one by one.

    Args:
        cells: The cells that shall run.
        nurseries: Where processes are started.
        threads: Threads of a process.

    Returns:
        A sentence for each data set that is read from elsewhere than its name says.

    Raises:
        DataNotFoundError: If a data set is missing.
    """
    first: dict[tuple[str, ...], Cell] = {}
    for cell in cells:
        first.setdefault(tuple(_without_partition_and_seed(data_arguments(cell.arguments))), cell)
    programs = [data_arguments(cell.arguments) for cell in first.values()]
    found = [ask(nurseries, "flightning.compare.check_data", arguments, threads)[0] for arguments in programs]
    missing = {said["missing"]: cell for said, cell in zip(found, first.values(), strict=True) if "missing" in said}
    if missing:
        # a word of the cell's name, without the arguments that a shell would take apart
        given = (cell.data or cell.settings.get("data", "") for cell in missing.values())
        names = dict.fromkeys(name.partition("(")[0].strip() for name in given)
        is_part = any("missing" not in said for said in found)
        rest = f" Or leave these cells out with `--without {' '.join(names)}`." if is_part else ""
        raise DataNotFoundError(f"nothing was started. {' '.join(missing)}{rest}")
    return [said["origin"] for said in found if said.get("origin")]


def _without_partition_and_seed(arguments: Iterable[str]) -> Iterator[str]:
    return (a for a in arguments if not a.startswith(("--data.partition", "--seed_everything")))
