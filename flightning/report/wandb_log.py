"""Read the file that W&B writes offline (``wandb/offline-run-*/run-*.wandb``).

The file is a LevelDB log: a header of 7 bytes, then blocks of 32 KiB with records
``crc32, length, kind, payload`` that may be split over blocks. W&B's Python package no longer
ships a reader for it, so the framing is read here and the payloads with W&B's own messages.
"""

from __future__ import annotations

import importlib
import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flightning.errors import ConfigurationError
from flightning.report.runs import ReportError, add_row

__all__ = ["read_wandb", "records"]

BLOCK = 32768
HEADER = b":W&B\xe1\xbe\x00"
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(content: bytes) -> Iterator[bytes | None]:
    """Payloads of a LevelDB log in order, and None for each damaged one.

    Args:
        content: The bytes of the file.

    Example:
        >>> import struct, zlib
        >>> kind, payload = bytes([1]), b"hello"
        >>> record = struct.pack("<IHB", zlib.crc32(kind + payload), len(payload), 1) + payload
        >>> list(records(b":W&B" + bytes([0xE1, 0xBE, 0]) + record + record[:-1]))
        [b'hello', None]
    """
    position, parts = len(HEADER), list[bytes]()
    while position < len(content):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        if position + 7 > len(content):
            yield None
            return
        checksum, length, kind = struct.unpack_from("<IHB", content, position)
        if length + 7 > left or kind not in (FULL, FIRST, MIDDLE, LAST):
            # the framing is lost: the next block starts a record or continues one
            yield None
            parts, position = [], position + left
            continue
        payload = content[position + 7 : position + 7 + length]
        position += 7 + length
        if len(payload) < length or zlib.crc32(payload, zlib.crc32(bytes([kind]))) != checksum:
            yield None
            parts = []
            continue
        parts = [payload] if kind in (FULL, FIRST) else [*parts, payload] if parts else []
        if kind in (FULL, LAST) and parts:
            yield b"".join(parts)
            parts = []


def read_wandb(path: Path) -> tuple[dict[int, dict[str, float]], dict[str, Any], dict[str, Any], int]:
    """Read one offline run.

    Args:
        path: The ``run-*.wandb`` file.

    Returns:
        ``{round: {key: value}}``, the configuration, the summary and the number of broken records.

    Raises:
        ConfigurationError: If W&B is not installed.
        ReportError: If the file is not a W&B log.
    """
    try:
        from wandb.proto import wandb_internal_pb2

        decode_error = importlib.import_module("google.protobuf.message").DecodeError
    except ImportError as error:
        raise ConfigurationError(
            f"`{path}` is a W&B log and reading it needs the package `wandb`; run `pip install wandb`, "
            "or give only folders with a `metrics.csv`."
        ) from error
    content = path.read_bytes()
    if not content.startswith(HEADER):
        raise ReportError(
            f"`{path}` does not start like a W&B log (`:W&B`); leave it out or sync it again from its machine."
        )
    log = _Log()
    for payload in records(content):
        try:
            log.add(wandb_internal_pb2.Record.FromString(payload) if payload is not None else None)
        except (decode_error, ValueError):
            log.broken += 1
    for key in ("partition", "partition_hash", "num_clients", "seed", "notice"):
        if isinstance(log.summary.get(key), dict):  # a picture of this name
            del log.summary[key]
        if key in log.config and not isinstance(log.config[key], dict):
            log.summary.setdefault(key, log.config.pop(key))
    log.summary.setdefault("finished", log.finished)
    if not any(key in log.config for key in ("model", "_class_path")):
        log.summary.setdefault("model", log.name)
    return log.table, log.config, log.summary, log.broken


@dataclass
class _Log:
    """What the records read so far say."""

    table: dict[int, dict[str, float]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    broken: int = 0
    finished: bool = False
    name: str = ""

    def add(self, record: Any) -> None:
        kind = record.WhichOneof("record_type") if record is not None else "broken"
        if kind == "broken":
            self.broken += 1
        elif kind == "run":
            self.name = record.run.display_name
            self.config.update(_items(record.run.config.update))
            self.summary.update(_items(record.run.summary.update))
        elif kind == "config":
            self.config.update(_items(record.config.update))
        elif kind == "summary":
            self.summary.update(_items(record.summary.update))
        elif kind == "exit":
            self.finished = record.exit.exit_code == 0
        elif kind == "history":
            row = _items(record.history.item)
            # rows of the machine's own statistics belong to no round
            self.broken += ("round" in row or "epoch" in row) and not add_row(self.table, row)


def _items(items: Iterable[Any]) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
