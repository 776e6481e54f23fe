"""`python -m flightning`."""

import os
import sys
from collections.abc import Sequence

from flightning.verbs import run_verb

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; PyTorch is imported only where something is trained.

    Args:
        args: Arguments without the program's name; ``None`` takes those of the process.

    Returns:
        Exit code.
    """
    try:
        try:
            return _run(args)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(args: Sequence[str] | None) -> int:
    code = run_verb(sys.argv[1:] if args is None else args)
    if code is not None:
        return code
    from flightning.cli import main as train

    return train(args)


if __name__ == "__main__":
    raise SystemExit(main())
