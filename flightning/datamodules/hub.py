"""Tables of the Hugging Face Hub or of local files, read column by column with the package `datasets`."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flightning.errors import ConfigurationError, DataNotFoundError

__all__ = ["DataFiles", "Table", "find_column", "read_ids", "read_labels", "read_pictures", "read_texts"]

DataFiles = str | list[str] | dict[str, str | list[str]]

#: Pictures are decoded in runs of this many, so that memory does not follow the size of the data set.
_RUN = 1000


@dataclass(frozen=True)
class Table:
    """Where a data set lies, in the words of ``datasets.load_dataset``.

    Args:
        path: Name on the Hub, local folder, or file format (``parquet``, ``csv``, ``json``, ``imagefolder``).
        name: Configuration of a data set that has several.
        data_files: Files, by split where there are several.
        revision: Version on the Hub.
    """

    path: str
    name: str | None = None
    data_files: DataFiles | None = None
    revision: str | None = None

    def settings(self) -> dict[str, Any]:
        """All that decides about the content: for local files also their sizes and times."""
        files = sorted(self._local_files())
        return {
            "table": [self.path, self.name, self.data_files, self.revision],
            "files": [(str(f), (stat := f.stat()).st_size, stat.st_mtime_ns) for f in files],
        }

    def open(self, split: str) -> Any:
        """One split as a `datasets.Dataset` with at least one row.

        Raises:
            ConfigurationError: Where the split is unknown, empty or unreadable.
            DataNotFoundError: Where there is no such file or the Hub cannot be reached.
        """
        try:
            import datasets
        except ImportError as error:
            raise ConfigurationError(
                f"`{self.path}` needs the package `datasets`, which cannot be imported ({error}): run `pip install -e "
                "'.[huggingface]'` in the clone, or `pip install datasets pillow`."
            ) from error
        for file in self._local_files():
            if file.stat().st_size == 0:
                raise ConfigurationError(f"`{file}` is empty (0 bytes): write or fetch the file again.")
        files = dict(self.data_files) if isinstance(self.data_files, Mapping) else self.data_files
        try:
            table = datasets.load_dataset(self.path, self.name, data_files=files, split=split, revision=self.revision)
        except (ValueError, datasets.exceptions.DatasetsError) as error:
            reason = error.__cause__ or error
            raise ConfigurationError(
                f"split `{split}` of `{self}` cannot be read ({reason}): check that the split exists, and that the "
                "files are whole, hold samples and have that format."
            ) from error
        except OSError as error:
            raise DataNotFoundError(
                f"`{self}` cannot be found ({error}): check `path` and `data_files`, or the network connection."
            ) from error
        if not len(table):
            raise ConfigurationError(f"split `{split}` of `{self}` holds no samples: choose another split or file.")
        return table

    def _local_files(self) -> Iterator[Path]:
        given = self.data_files or []
        lists = given.values() if isinstance(given, Mapping) else [given]
        for patterns in lists:
            for pattern in [patterns] if isinstance(patterns, str) else patterns:
                yield from (Path(f) for f in glob(pattern, recursive=True) if Path(f).is_file())
        if not given and Path(self.path).is_dir():
            yield from (f for f in Path(self.path).rglob("*") if f.is_file())

    def __str__(self) -> str:
        return self.path if self.data_files is None else f"{self.path} {self.data_files}"


def find_column(table: Any, option: str, given: str | None, fitting: Sequence[str]) -> str:
    """The column that was asked for, or the only one that fits.

    Args:
        table: The data set.
        option: Name of the option that chooses the column.
        given: Its value; ``None`` takes the only fitting column.
        fitting: Columns that can be meant.

    Raises:
        ConfigurationError: Where there is no such column, or none or several fit.
    """
    columns = ", ".join(f"`{name}`" for name in table.column_names)
    if given is not None:
        if given not in table.column_names:
            raise ConfigurationError(f"there is no column `{option}={given!r}`: the columns are {columns}.")
        return given
    if len(fitting) != 1:
        found = f"{len(fitting)} columns fit ({', '.join(fitting)})" if fitting else "no column fits"
        raise ConfigurationError(f"`{option}` is not given and {found}: set it to one of {columns}.")
    return fitting[0]


def read_labels(table: Any, column: str) -> tuple[NDArray[np.int64], list[str] | None]:
    """Labels as they are stored, and the names of the classes where the column is a `ClassLabel`.

    Raises:
        ConfigurationError: Where labels are no integers, or some are missing.
    """
    feature = table.features[column]
    names = list(feature.names) if hasattr(feature, "names") else None
    values = _arrow(table, column)
    kind = str(values.type).removeprefix("large_")
    if not kind.startswith(("int", "uint", "bool")):
        example = next((v for v in values[:100].to_pylist() if v is not None), None)
        raise ConfigurationError(
            f"`label_column={column!r}` holds {kind} such as {example!r}, but labels are integers or a `ClassLabel`: "
            f"encode them first, `dataset.class_encode_column({column!r})`, or choose another column."
        )
    unlabelled = values.null_count
    labels = values.fill_null(-1).to_numpy().astype(np.int64) if unlabelled else values.to_numpy().astype(np.int64)
    if names is not None:
        unlabelled = int((labels < 0).sum())
    if unlabelled:
        raise ConfigurationError(
            f"{unlabelled} of {len(labels)} samples have no label in `{column}`: choose another split, or leave these "
            "samples out of the files."
        )
    return labels, names


def read_ids(table: Any, column: str) -> NDArray[Any]:
    """Name of the natural client of each sample; a number where the column holds integers.

    Raises:
        ConfigurationError: Where some are missing.
    """
    values = _arrow(table, column)
    missing = int(values.is_null(nan_is_null=True).to_numpy().sum())
    if missing:
        raise ConfigurationError(
            f"{missing} of {len(values)} samples have no client in `{column}`: leave these samples out of the files, "
            "or choose another `client_column`."
        )
    if str(values.type).startswith(("int", "uint")):
        return np.asarray(values.to_numpy(), dtype=np.int64)
    return np.array([str(value) for value in values.to_pylist()])


def read_texts(table: Any, column: str) -> list[str]:
    """A column of texts; a missing one is empty.

    Raises:
        ConfigurationError: Where the column holds anything else.
    """
    values = _arrow(table, column)
    if str(values.type) not in ("string", "large_string", "string_view"):
        raise ConfigurationError(
            f"`text_column={column!r}` holds {values.type}, no texts: choose one of "
            f"{', '.join(f'`{name}`' for name in table.column_names)}."
        )
    return [value or "" for value in values.to_pylist()]


def read_pictures(table: Any, column: str, resize: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Pictures as samples x channels x height x width bytes; one channel where all are grey.

    Args:
        table: The data set.
        column: Its column of pictures.
        resize: Height and width; ``None`` keeps the size, which must then be the same for all.

    Raises:
        ConfigurationError: Where the column holds no pictures, a picture is missing or broken, or they differ in size.
    """
    from datasets import Image

    if not isinstance(table.features[column], Image):
        raise ConfigurationError(
            f"`image_column={column!r}` holds {table.features[column]}, no pictures: choose one of "
            f"{', '.join(f'`{name}`' for name in table.column_names)}."
        )
    runs: list[list[NDArray[np.uint8]]] = []
    for number, run in enumerate(table.select_columns([column]).cast_column(column, Image(decode=False)).iter(_RUN)):
        places = (f"row {row} of `{column}` (counted from 0)" for row in range(number * _RUN, (number + 1) * _RUN))
        runs.append([_decode(stored, resize, place) for stored, place in zip(run[column], places, strict=False)])
        _check_sizes(column, runs[0][0], runs[-1])
    is_grey = all(picture.ndim == 2 for run in runs for picture in run)
    return np.concatenate([np.stack([_with_channels(p, is_grey) for p in run]) for run in runs])


def _decode(stored: Mapping[str, Any] | None, resize: tuple[int, int] | None, place: str) -> NDArray[np.uint8]:
    from PIL import Image

    if stored is None or (stored["bytes"] is None and stored["path"] is None):
        raise ConfigurationError(f"{place} holds no picture: leave the row out of the files.")
    try:
        with Image.open(io.BytesIO(stored["bytes"]) if stored["bytes"] is not None else stored["path"]) as picture:
            if picture.mode in ("I", "F") or ";" in picture.mode:
                raise ConfigurationError(
                    f"{place} has the mode `{picture.mode}`, more than 8 bits per channel: convert the pictures to 8 "
                    "bits."
                )
            converted = picture.convert("L" if picture.mode in ("1", "L") else "RGB")
            if resize is not None:
                converted = converted.resize((resize[1], resize[0]), Image.Resampling.BILINEAR)
            return np.asarray(converted)
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ConfigurationError(
            f"{place} is no picture that can be read ({error}): write or fetch it again, or leave the row out."
        ) from error


def _check_sizes(column: str, first: NDArray[np.uint8], run: list[NDArray[np.uint8]]) -> None:
    for picture in run:
        if picture.shape[:2] != first.shape[:2]:
            sizes = " and ".join(f"{p.shape[0]} x {p.shape[1]}" for p in (first, picture))
            raise ConfigurationError(
                f"the pictures in `{column}` differ in size ({sizes}): give the size they shall have, such as "
                "`resize: 32` or `resize: [32, 32]` (height, width)."
            )


def _with_channels(picture: NDArray[np.uint8], is_grey: bool) -> NDArray[np.uint8]:
    if is_grey:
        return picture[None]
    coloured = np.repeat(picture[..., None], 3, axis=-1) if picture.ndim == 2 else picture
    return coloured.transpose(2, 0, 1)


def _arrow(table: Any, column: str) -> Any:
    return table.select_columns([column]).with_format("arrow")[:][column]
