"""What is compared, read from files and from the command line."""

import argparse
from pathlib import Path

import pytest
import yaml

import flightning.algorithms
from flightning.compare.cells import default_folder, fingerprint, make_cells
from flightning.compare.command import choose, make_grid
from flightning.compare.grid import Choice, Grid, known_classes, parse_choice, read_grid
from flightning.errors import ConfigurationError


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "base.yaml"
    path.write_text("# a comment\nmodel: {class_path: FedAvg}\ntrainer: {max_epochs: 3}\n")
    return str(path)


def grid_of(config, models=("FedAvg", "FedProx:mu=0.1"), **kwargs):
    return Grid([config], [parse_choice(m, "model") for m in models], **kwargs)


def options(**kwargs):
    defaults = {"config": None, "models": None, "seeds": None, "grid": None}
    return argparse.Namespace(**{**defaults, **kwargs})


def test_known_classes_are_those_of_the_package_without_importing_it():
    exported = {n for n in flightning.algorithms.__all__ if not n.endswith("Mixin")}
    assert set(known_classes("algorithms")) == exported


@pytest.mark.parametrize(
    ("entry", "label", "arguments"),
    [
        ("SOLO", "SOLO", {"model": "SOLO"}),
        ("my_module.Mine", "Mine", {"model": "my_module.Mine"}),
        ("FedProx:mu=1", "FedProx(mu=1)", {"model": "FedProx", "model.mu": "1"}),
        ({"FedProx": None}, "FedProx", {"model": "FedProx"}),
        (
            {"FedAvg": {"net": {"class_path": "SimpleCNN", "init_args": {"projection": 256}}}},
            "FedAvg(net=SimpleCNN, net.projection=256)",
            {"model": "FedAvg", "model.net": "SimpleCNN", "model.net.projection": "256"},
        ),
        (
            {"SOLO": {}, "with": {"lr_scheduler": {"milestones": [33, 67]}, "trainer": {"logger": None}}},
            "SOLO",
            {"model": "SOLO", "lr_scheduler.milestones": "[33, 67]", "trainer.logger": "null"},
        ),
    ],
)
def test_an_entry_becomes_arguments(entry, label, arguments):
    assert parse_choice(entry, "model") == Choice(label, arguments)


@pytest.mark.parametrize(
    "entry",
    [
        3,
        {},
        {"FedAvg": {}, "FedProx": {}},
        {"FedAvg": [1]},
        {"FedAvg": {}, "with": 1},
        {"FedAvg": {}, "for": {"MNIST": 1}},
    ],
)
def test_an_entry_that_is_none_is_refused(entry):
    with pytest.raises(ConfigurationError, match="is no entry for `model`: give a class name"):
        parse_choice(entry, "model")


def test_arguments_in_one_word_need_a_value():
    with pytest.raises(ConfigurationError, match="`FedProx:mu` must give arguments as `name=value`"):
        parse_choice("FedProx:mu", "model")


def test_every_combination_is_a_cell(config, tmp_path):
    grid = grid_of(
        config,
        data=[parse_choice(d, "data") for d in ("Digits", "MNIST")],
        partitions=[parse_choice(p, "data.partition") for p in ("IID", {"Dirichlet": {"alpha": 0.5}})],
        seeds=[0, 1, 2],
    )
    cells = make_cells(grid, tmp_path)
    assert len(cells) == 2 * 2 * 2 * 3
    assert len({c.folder for c in cells}) == len(cells)
    assert {c.seed for c in cells[:8]} == {0}


def test_a_cell_names_classes_before_their_arguments(config, tmp_path):
    grid = grid_of(
        config,
        ["FedProx:mu=0.1"],
        data=[parse_choice({"MNIST": {"batch_size": 8}, "with": {"model": {"net": "SimpleCNN"}}}, "data")],
        seeds=[4],
        passed=["--trainer.max_epochs", "2"],
    )
    (cell,) = make_cells(grid, tmp_path)
    assert cell.arguments == (
        f"--config={config}",
        "--data=MNIST",
        "--model=FedProx",
        "--data.batch_size=8",
        "--model.net=SimpleCNN",
        "--model.mu=0.1",
        "--trainer.max_epochs",
        "2",
        "--seed_everything=4",
    )
    assert cell.folder == tmp_path / "mnist-batch_size=8" / "fedprox-mu=0.1" / "seed_4"
    assert cell.label == "FedProx(mu=0.1), MNIST(batch_size=8), seed 4"


def test_methods_come_before_data_where_both_speak(config, tmp_path):
    grid = grid_of(
        config,
        [{"SOLO": {}, "with": {"trainer": {"max_epochs": 7}}}],
        data=[parse_choice({"MNIST": {}, "with": {"trainer": {"max_epochs": 5}}}, "data")],
    )
    assert "--trainer.max_epochs=7" in make_cells(grid, tmp_path)[0].arguments


def test_arguments_for_single_data_sets(config, tmp_path):
    entry = {"FedProx": {"mu": 1}, "for": {"MNIST": {"mu": 2}}}
    grid = grid_of(config, [entry], data=[parse_choice(d, "data") for d in ("Digits", "MNIST")])
    digits, mnist = make_cells(grid, tmp_path)
    assert "--model.mu=1" in digits.arguments
    assert "--model.mu=2" in mnist.arguments
    wrong = grid_of(config, [entry], data=[parse_choice("Digits", "data")])
    with pytest.raises(ConfigurationError, match="arguments `for` the data `MNIST`, which the grid does not have"):
        make_cells(wrong, tmp_path)


def test_data_may_have_a_name_partitions_of_their_own_and_options_that_they_ignore(config, tmp_path):
    data = [
        parse_choice("MNIST", "data"),
        parse_choice(
            {"HuggingFace": {"path": "x"}, "as": "Sent140", "partitions": ["IID"], "ignores": ["data.root"]}, "data"
        ),
    ]
    models = [parse_choice({"FedProx": {}, "for": {"Sent140": {"mu": 0.01}}}, "model")]
    partitions = [parse_choice({"Dirichlet": {"alpha": 1}}, "data.partition")]
    grid = Grid([config], models, data, partitions, passed=["--data.root", "/data", "--budget=0.5"])
    first, second = make_cells(grid, tmp_path)
    assert (first.setting, second.setting) == ("MNIST, Dirichlet(alpha=1)", "Sent140, IID")
    assert "--data.root" in first.arguments
    assert not {"--data.root", "/data"} & set(second.arguments)
    assert {"--model.mu=0.01", "--budget=0.5"} <= set(second.arguments)
    assert second.data == "Sent140"


def test_a_partition_that_is_unknown_is_refused_before_anything_runs(config, tmp_path):
    grid = grid_of(config, partitions=[parse_choice("Dirichelt", "data.partition")])
    with pytest.raises(ConfigurationError, match="`Dirichelt` is no class that flightning knows"):
        make_cells(grid, tmp_path)


def test_what_all_cells_share_comes_last(config, tmp_path):
    grid = grid_of(config, ["FedProx:mu=1"], shared={"model.mu": "3", "trainer.max_epochs": "5"})
    (cell,) = make_cells(grid, tmp_path)
    assert {"--model.mu=1", "--trainer.max_epochs=5"} <= set(cell.arguments)


def test_cells_that_differ_only_beside_the_method_have_folders_of_their_own(config, tmp_path):
    entries = ["FedAvg", {"FedAvg": {}, "with": {"federation": {"local_epochs": 2}}}]
    first, second = make_cells(grid_of(config, entries), tmp_path)
    assert first.folder != second.folder
    assert first.folder.parent.name.startswith("fedavg-")


def test_the_same_cell_twice_is_refused(config, tmp_path):
    with pytest.raises(ConfigurationError, match="`FedAvg, seed 0` is in the comparison twice"):
        make_cells(grid_of(config, ["FedAvg", "FedAvg"]), tmp_path)
    with pytest.raises(ConfigurationError, match="in the comparison twice"):
        make_cells(grid_of(config, seeds=[1, 1]), tmp_path)


def test_an_unknown_method_is_refused_before_anything_runs(config, tmp_path):
    with pytest.raises(ConfigurationError, match=r"`FedProxx` is no class .* Did you mean .*`FedProx`"):
        make_cells(grid_of(config, ["FedProxx"]), tmp_path)
    with pytest.raises(ConfigurationError, match=r"`MNISTT` is no class"):
        make_cells(grid_of(config, data=[parse_choice("MNISTT", "data")]), tmp_path)


def test_places_and_comments_do_not_decide_what_is_computed(config, tmp_path):
    (before, *_) = make_cells(grid_of(config, passed=["--data.root", "here"]), tmp_path)
    Path(config).write_text("trainer: {max_epochs: 3}\nmodel:\n  class_path: FedAvg  # other words\n")
    (after, *_) = make_cells(grid_of(config, passed=["--data.root=there"]), tmp_path)
    assert fingerprint(before.settings) == fingerprint(after.settings)
    Path(config).write_text("trainer: {max_epochs: 4}\nmodel: {class_path: FedAvg}\n")
    (other, *_) = make_cells(grid_of(config), tmp_path)
    assert fingerprint(other.settings) != fingerprint(before.settings)


def test_options_given_twice_all_count(config, tmp_path):
    one = make_cells(grid_of(config, passed=["--trainer.callbacks+=A", "--trainer.callbacks+=B"]), tmp_path)[0]
    two = make_cells(grid_of(config, passed=["--trainer.callbacks+=C", "--trainer.callbacks+=B"]), tmp_path)[0]
    assert fingerprint(one.settings) != fingerprint(two.settings)


def test_the_default_folder_stays_when_methods_and_seeds_are_added(config):
    few, many = grid_of(config, ["FedAvg"]), grid_of(config, seeds=[0, 1])
    assert default_folder(few, "base") == default_folder(many, "base")
    longer = grid_of(config, passed=["--trainer.max_epochs", "9"])
    assert default_folder(longer, "base") != default_folder(few, "base")
    assert default_folder(few, "base").parent == Path("runs/compare")


def test_a_grid_file_is_read(tmp_path, config):
    path = tmp_path / "grid.yaml"
    content = {"config": config, "models": ["FedAvg", {"FedProx": {"mu": 1}}], "seeds": [3], "report": {"last": 5}}
    path.write_text(yaml.safe_dump(content))
    grid = make_grid(options(grid=str(path)), [])
    assert [m.label for m in grid.models] == ["FedAvg", "FedProx(mu=1)"]
    assert (grid.seeds, grid.report, grid.configs) == ([3], {"last": 5}, [config])
    assert make_grid(options(grid=str(path), seeds=[0, 1], models=["SOLO"]), []).seeds == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [FedAvg]\nmodles: 3", "a key `modles`, which means nothing. Did you mean `models`"),
        ("seeds: [0]", "must list `models`"),
        ("[1, 2", "cannot be read"),
        ("- a", "must list `models`"),
        ("models: [FedAvg]\nwith: 3", "`with` and `report` .* must be mappings"),
    ],
)
def test_a_grid_file_with_faults_is_refused(tmp_path, text, message):
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_grid(str(path))


def test_an_unknown_grid_names_those_that_come_with_the_package():
    with pytest.raises(ConfigurationError, match=r"no configuration file `fedrll`. Did you mean `fedrl`"):
        read_grid("fedrll")


def test_callbacks_beside_a_method_are_part_of_its_name(tmp_path):
    cells = make_cells(make_grid(options(grid="fashion_checks"), []), tmp_path)
    assert cells[-1].label == "FedAvg + CCVR, FashionMNIST, Dirichlet(alpha=0.5), seed 0"


def test_nothing_to_compare_is_refused(config):
    with pytest.raises(ConfigurationError, match="needs a configuration and methods"):
        make_grid(options(config=[config]), [])
    with pytest.raises(ConfigurationError, match="needs a configuration and methods"):
        make_grid(options(models=["FedAvg"]), [])


@pytest.mark.parametrize("seeds", [[], [-1], [True], ["a"]])
def test_seeds_that_are_none_are_refused(config, seeds):
    with pytest.raises(ConfigurationError, match="must be whole numbers from 0 on"):
        make_grid(options(config=[config], models=["FedAvg"], seeds=seeds), [])


@pytest.mark.parametrize("word", ["--model=SOLO", "--seed_everything", "--run_folder=x", "--ckpt_path=last"])
def test_options_that_the_comparison_sets_are_refused(config, word):
    with pytest.raises(ConfigurationError, match="is set by the comparison for each cell: give"):
        make_grid(options(config=[config], models=["FedAvg"]), [word])


def test_a_word_that_stands_alone_is_refused(config):
    with pytest.raises(ConfigurationError, match="`FedRL` stands alone"):
        make_grid(options(config=[config], models=["FedAvg"]), ["FedRL"])


@pytest.mark.parametrize(
    "name", ["fashion", "fashion_checks", "fedrl", "rfedavg", "rfedavg_device", "fedcd", "cdfdm", "cdfdm_local"]
)
def test_packaged_grids_make_cells(name, tmp_path):
    grid = make_grid(options(grid=name), [])
    assert len(make_cells(grid, tmp_path)) >= 6


def test_the_grid_of_the_documentation_makes_cells(tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "compare.md").read_text()
    path = tmp_path / "grid.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    cells = make_cells(make_grid(options(grid=str(path)), []), tmp_path)
    assert len(cells) == 4 * 2 * 3
    solo = next(c for c in cells if c.model == "SOLO")
    assert "--trainer.max_epochs=20" in solo.arguments


def test_the_grid_of_all_methods_has_every_method():
    grid = read_grid("fashion")
    assert {parse_choice(entry, "model").arguments["model"] for entry in grid["models"]} == set(
        known_classes("algorithms")
    )


def labels(cells):
    return [cell.label for cell in cells]


def test_cells_are_chosen_by_whole_words_of_their_names(config, tmp_path):
    data = [parse_choice(name, "data") for name in ("MNIST", "FashionMNIST", "CIFAR10", "CIFAR100")]
    grid = grid_of(config, ("FedAvg", "RFedAvg:lambda_=0.1", "FedProx:mu=0.1"), data=data, seeds=[1, 10])
    cells = make_cells(grid, tmp_path)
    assert labels(choose(cells, ["fedavg", "CIFAR10", "seed 1"], [])) == ["FedAvg, CIFAR10, seed 1"]
    assert labels(choose(cells, ["FedProx", "seed 10"], ["MNIST", "CIFAR100"])) == [
        "FedProx(mu=0.1), FashionMNIST, seed 10",
        "FedProx(mu=0.1), CIFAR10, seed 10",
    ]
    assert choose(cells, [], []) == cells
    with pytest.raises(ConfigurationError, match=r"`--only Fed --without SOLO` leaves no cell: give whole words of"):
        choose(cells, ["Fed"], ["SOLO"])
