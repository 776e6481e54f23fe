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
    ],
)
def test_an_entry_becomes_arguments(entry, label, arguments):
    assert parse_choice(entry, "model") == Choice(label, arguments)


def test_other_parts_of_the_configuration_are_not_in_the_label():
    entry = {"SOLO": {}, "with": {"lr_scheduler": {"milestones": [33, 67]}, "trainer": {"logger": None}}}
    beside = {"lr_scheduler.milestones": "[33, 67]", "trainer.logger": "null"}
    assert parse_choice(entry, "model") == Choice("SOLO", {"model": "SOLO", **beside}, unsaid=beside)


@pytest.mark.parametrize(
    ("callback", "unsaid"), [({"class_path": "CCVR"}, False), ({"class_path": "CCVR", "init_args": {"lr": 1}}, True)]
)
def test_arguments_of_a_callback_are_not_in_the_label(callback, unsaid):
    choice = parse_choice({"FedAvg": {}, "with": {"trainer": {"callbacks": [callback]}}}, "model")
    assert (choice.label, bool(choice.unsaid)) == ("FedAvg + CCVR", unsaid)


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


def test_cells_that_differ_only_beside_the_method_have_folders_that_others_do_not_move(config, tmp_path):
    longer = {"FedAvg": {}, "with": {"federation": {"local_epochs": 2}}}
    first, second = make_cells(grid_of(config, ["FedAvg", longer]), tmp_path)
    assert first.folder.parent.name == "fedavg"
    assert second.folder.parent.name.startswith("fedavg-")
    for entry, cell in (("FedAvg", first), (longer, second)):
        assert [c.folder for c in make_cells(grid_of(config, [entry]), tmp_path)] == [cell.folder]


def test_the_folder_of_a_method_does_not_hang_on_options_of_all_cells(config, tmp_path):
    entry = {"FedAvg": {}, "with": {"federation": {"local_epochs": 2}}}
    (short,) = make_cells(grid_of(config, [entry]), tmp_path)
    (long,) = make_cells(grid_of(config, [entry], passed=["--trainer.max_epochs", "9"]), tmp_path)
    assert short.folder == long.folder


@pytest.mark.parametrize(
    "axes",
    [
        {"models": ["FedProx:mu=1", {"FedProx": {"mu": 2}, "as": "FedProx(mu=1)"}]},
        {"data": [{"MNIST": {}, "with": {"optimizer": {"lr": lr}}} for lr in (0.1, 0.2)]},
        {"partitions": [{"IID": {}, "with": {"data": {"num_clients": n}}} for n in (5, 10)]},
    ],
)
def test_entries_that_cannot_be_told_apart_are_refused(config, tmp_path, axes):
    places = {"data": "data", "partitions": "data.partition"}
    parsed = {axis: [parse_choice(e, places[axis]) for e in axes[axis]] for axis in places if axis in axes}
    grid = grid_of(config, axes.get("models", ("FedAvg",)), **parsed)
    with pytest.raises(ConfigurationError, match=r"would share the folder .*: give one of the entries another name"):
        make_cells(grid, tmp_path)


def test_long_names_fit_into_a_folder_and_stay_apart(config, tmp_path):
    words = ["a" * 300, "a" * 299 + "b"]
    cells = make_cells(grid_of(config, [f"FedProx:net={word}" for word in words]), tmp_path)
    names = [c.folder.parent.name for c in cells]
    assert [len(name) for name in names] == [100, 100]
    assert names[0] != names[1]


def test_the_name_of_a_method_is_true_on_all_data_sets(config, tmp_path):
    entry = {"FedProx": {"mu": 1.0, "net": "MLP"}, "for": {"MNIST": {"mu": 0.01}}}
    grid = grid_of(config, [entry], data=[parse_choice(d, "data") for d in ("Digits", "MNIST")])
    assert {c.model for c in make_cells(grid, tmp_path)} == {"FedProx(net=MLP)"}


def test_the_label_of_the_data_and_the_name_of_the_method_are_kept(config, tmp_path):
    data = [parse_choice({"EMNIST": {"split": split}}, "data") for split in ("letters", "digits")]
    cells = make_cells(grid_of(config, [{"FedAvg": {}, "as": "mine"}], data=data), tmp_path)
    assert [(c.data, c.name) for c in cells] == [("EMNIST(split=letters)", "mine"), ("EMNIST(split=digits)", "mine")]


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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--budget", "1"], ["--budget=1.0"]),
        (["--data.download", "false"], []),
        (["--data.cache_dir=a"], ["--data.cache_dir=b"]),
        (["--trainer.logger", "WandbLogger", "--trainer.logger.project=x"], []),
        (["--trainer.logger+=TensorBoardLogger"], []),
    ],
)
def test_what_changes_no_result_decides_nothing(config, tmp_path, before, after):
    one, two = (make_cells(grid_of(config, passed=passed), tmp_path)[0] for passed in (before, after))
    assert fingerprint(one.settings) == fingerprint(two.settings)


def test_the_configuration_of_a_hub_data_set_decides(config, tmp_path):
    one, two = (make_cells(grid_of(config, passed=["--data.name", name]), tmp_path)[0] for name in "ab")
    assert fingerprint(one.settings) != fingerprint(two.settings)


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
    ("word", "axis"),
    [
        ("--data", "data"),
        ("--data=MNIST", "data"),
        ("--data.partition=IID", "partitions"),
        ("--data.partition.alpha", "partitions"),
    ],
)
def test_options_that_replace_an_axis_are_refused(tmp_path, config, word, axis):
    path = tmp_path / "grid.yaml"
    path.write_text(f"config: {config}\nmodels: [FedAvg]\ndata: [Digits]\npartitions: [IID]\n")
    with pytest.raises(ConfigurationError, match=rf"would replace all `{axis}` of the grid"):
        make_grid(options(grid=str(path)), [word, "x"])


def test_options_that_replace_no_axis_are_passed_on(config):
    words = ["--data=Digits", "--data.partition=IID"]
    assert make_grid(options(config=[config], models=["FedAvg"]), words).passed == words


@pytest.mark.parametrize(
    "name",
    [
        *("fashion", "fashion_checks", "fedrl", "rfedavg", "rfedavg_device"),
        *("fedcd", "fedcd_scale", "fedcd_ablation", "cdfdm", "cdfdm_local"),
    ],
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
