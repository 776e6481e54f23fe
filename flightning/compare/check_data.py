"""See whether the data of some cells can be read: ``python -m flightning.compare.check_data FILE --data ...``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from flightning.errors import DataNotFoundError
from flightning.partition.command import build_data

__all__ = ["main"]


def main() -> int:
    """Read the data, and write down what is missing or what is read in its place."""
    result = Path(sys.argv.pop(1))
    try:
        data = build_data(sys.argv[1:])
    except DataNotFoundError as error:
        found = {"missing": str(error)}
    else:
        found = {"origin": getattr(data, "origin", "")}
    result.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
