"""The packaged grids are understood by `flightning fit`."""

import argparse

import pytest

from flightning.cli import main
from flightning.compare.cells import make_cells
from flightning.compare.command import make_grid

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI.s args parameter")
GRIDS = ["fedrl", "rfedavg", "rfedavg_device", "fedcd", "fedcd_scale", "fedcd_ablation", "cdfdm", "cdfdm_local"]


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


@pytest.mark.parametrize("name", GRIDS)
def test_every_grid_of_a_paper_evaluates_the_clients_at_the_end(name, tmp_path):
    for cell in cells_of(name, tmp_path):
        assert "ClientEvaluation" in next(a for a in cell.arguments if a.startswith("--trainer.callbacks="))


@pytest.mark.parametrize("name", ["rfedavg", "rfedavg_device"])
def test_sent140_parses_beside_the_folder_of_the_other_data(name, tmp_path, capsys):
    options = argparse.Namespace(grid=name, config=None, models=None, seeds=[0])
    cells = make_cells(make_grid(options, ["--data.root", str(tmp_path)]), tmp_path)
    assert {c.setting for c in cells if c.data == "Sent140"} == {"Sent140, Natural(grouping=largest)", "Sent140, IID"}
    parses(next(c for c in cells if c.data == "Sent140" and c.model.startswith("RFedAvg")), capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", GRIDS)
def test_all_cells_of_a_grid_parse(name, tmp_path, capsys):
    for cell in cells_of(name, tmp_path):
        parses(cell, capsys)
