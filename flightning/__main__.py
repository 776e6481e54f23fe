"""`python -m flightning`."""

from flightning.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
