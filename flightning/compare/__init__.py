"""Run methods, data sets, partitions and seeds against each other."""

from __future__ import annotations

from flightning.compare.cells import Cell, make_cells
from flightning.compare.command import compare, run
from flightning.compare.grid import Choice, Grid

__all__ = ["Cell", "Choice", "Grid", "compare", "make_cells", "run"]
