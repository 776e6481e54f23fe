"""The packaged grids are understood by `flightning fit`."""

import argparse

import pytest

from flightning.cli import main
from flightning.compare.cells import make_cells
from flightning.compare.command import make_grid

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI.s args parameter")
GRIDS = ["fedrl", "rfedavg", "rfedavg_device", "fedcd", "cdfdm"]


def cells_of(name, tmp_path):
    options = argparse.Namespace(grid=name, config=None, models=None, seeds=[0])
    cells = make_cells(make_grid(options, []), tmp_path)
    # a partition changes nothing else: one of each method on each data set
    return list({(c.model, c.setting.split(",")[0]): c for c in cells}.values())


def parses(cell, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fit", *cell.arguments, "--print_config"])
    assert ended.value.code == 0, f"{cell.label}: {capsys.readouterr().err}"


@pytest.mark.parametrize("name", GRIDS)
def test_the_last_cell_of_a_grid_parses(name, tmp_path, capsys):
    parses(cells_of(name, tmp_path)[-1], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", GRIDS)
def test_all_cells_of_a_grid_parse(name, tmp_path, capsys):
    for cell in cells_of(name, tmp_path):
        parses(cell, capsys)
