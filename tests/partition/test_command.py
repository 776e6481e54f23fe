"""`flightning partition`: the table, the files and the refusals, without training anything."""

import csv

import numpy as np
import pytest

from flightning.cli import main
from flightning.datamodules import Digits, Dirichlet
from flightning.datamodules.partitioners import load_partition
from flightning.errors import ConfigurationError
from flightning.partition.command import build_data, find_sweep

PNG = b"\x89PNG"


@pytest.fixture(autouse=True)
def _seed(monkeypatch):
    # the command seeds everything, as `fit` does
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    monkeypatch.setenv("COLUMNS", "100")


def show(tmp_path, *arguments):
    return main(["partition", *arguments, "--out", str(tmp_path / "out")])


def rows_of(tmp_path):
    with (tmp_path / "out" / "clients.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_configuration_is_shown(tmp_path, capsys):
    assert show(tmp_path, "--config", "quickstart") == 0
    printed = capsys.readouterr().out
    for word in ("clients", "Gini", "classes held", "EMD", "Jensen-Shannon", "effective classes", "smallest, median"):
        assert word in printed
    assert "Dirichlet(alpha=0.5)" in printed
    for name in ("partition.png", "sizes.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(PNG)
    assert not list((tmp_path / "out").glob("samples*"))


def test_the_clients_are_those_of_a_run(tmp_path):
    show(tmp_path, "--config", "quickstart")
    data = Digits(num_clients=10, partition=Dirichlet(alpha=0.5), seed=0)
    data.setup("fit")
    assert [int(row["samples"]) for row in rows_of(tmp_path)] == data.sizes.tolist()
    assert [[int(row[str(c)]) for c in range(10)] for row in rows_of(tmp_path)] == data.label_counts().tolist()


def test_options_replace_those_of_the_configuration(tmp_path):
    show(tmp_path, "--config", "quickstart", "--data.num_clients", "4", "--data.partition", "IID")
    assert [int(row["samples"]) for row in rows_of(tmp_path)] == [360, 359, 359, 359]


def test_no_configuration_is_needed(tmp_path):
    assert show(tmp_path, "--data", "Digits", "--data.partition", "Shards", "--data.num_clients", "5") == 0
    assert len(rows_of(tmp_path)) == 5


def test_the_seed_decides(tmp_path):
    sizes = []
    for seed in ("0", "0", "1"):
        show(tmp_path, "--config", "quickstart", "--seed_everything", seed)
        sizes.append([row["samples"] for row in rows_of(tmp_path)])
    assert sizes[0] == sizes[1] != sizes[2]


def test_several_values_are_compared(tmp_path, capsys):
    assert show(tmp_path, "--config", "quickstart", "--data.partition.alpha", "0.1", "0.5", "5") == 0
    printed = capsys.readouterr().out
    assert all(f"alpha = {value}" in printed for value in ("0.1", "0.5", "5"))
    rows = rows_of(tmp_path)
    assert len(rows) == 30
    emd = {v: np.mean([float(r["EMD"]) for r in rows if r["partition"] == f"alpha = {v}"]) for v in ("0.1", "0.5", "5")}
    assert emd["0.1"] > emd["0.5"] > emd["5"]


def test_the_first_of_several_values_may_follow_an_equals_sign(tmp_path):
    assert show(tmp_path, "--config", "quickstart", "--data.partition.alpha=0.1", "5") == 0
    assert {row["partition"] for row in rows_of(tmp_path)} == {"alpha = 0.1", "alpha = 5"}


def test_values_of_a_rule_that_is_not_named_ask_for_its_name(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        show(tmp_path, "--data", "Digits", "--data.partition.alpha", "0.1", "0.5")
    assert "for instance `--data.partition Dirichlet`" in capsys.readouterr().err


def test_rules_are_compared(tmp_path):
    assert show(tmp_path, "--data", "Digits", "--data.partition", "IID", "Shards", "--data.num_clients", "5") == 0
    assert {row["partition"] for row in rows_of(tmp_path)} == {"partition = IID", "partition = Shards"}


@pytest.mark.parametrize("skew", ["RotationSkew", "NoiseSkew", "AffineSkew", "LabelPermutation"])
def test_samples_are_shown_where_clients_see_different_ones(tmp_path, capsys, skew):
    assert show(tmp_path, "--config", "quickstart", "--data.skew", skew) == 0
    assert (tmp_path / "out" / "samples.png").read_bytes().startswith(PNG)
    printed = capsys.readouterr().out
    assert "shift of the mean input" in printed
    assert ("labels changed" in printed) == (skew == "LabelPermutation")


def test_each_compared_skew_has_its_strip(tmp_path):
    show(tmp_path, "--config", "quickstart", "--data.skew", "NoiseSkew", "--data.skew.sigma", "0.1", "1")
    assert sorted(path.name for path in (tmp_path / "out").glob("samples*")) == ["samples_0.png", "samples_1.png"]


def test_many_clients_are_listed_in_the_file_alone(tmp_path, capsys):
    show(tmp_path, "--config", "quickstart", "--data.num_clients", "100", "--data.partition", "IID")
    assert "effective classes (mean)" in (printed := capsys.readouterr().out)
    assert "divergence" not in printed
    assert len(rows_of(tmp_path)) == 100


def test_a_partition_is_saved_and_trained_on(tmp_path, capsys):
    path = tmp_path / "split.npz"
    assert show(tmp_path, "--config", "quickstart", "--save", str(path)) == 0
    assert f"The partition is saved in {path}" in capsys.readouterr().out
    sizes = [int(row["samples"]) for row in rows_of(tmp_path)]
    data = Digits(seed=0)
    data.setup("fit")
    assert [len(part) for part in load_partition(path, data.train_source.labels)] == sizes
    code = show(
        tmp_path, "--data", "Digits", "--data.partition", "FromFile", "--data.partition.path", str(path)
    )  # fmt: skip
    assert code == 0
    assert [int(row["samples"]) for row in rows_of(tmp_path)] == sizes


def test_natural_clients_have_their_names(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    datasets.disable_progress_bars()
    rows = {"text": ["good day", "bad day"] * 6, "label": [1, 0] * 6, "user": ["ann", "ann", "bob", "bob"] * 3}
    datasets.Dataset.from_dict(rows).to_csv(tmp_path / "tweets.csv")
    code = show(
        tmp_path, "--data", "HuggingFace", "--data.path", "csv", "--data.data_files", str(tmp_path / "tweets.csv"),
        "--data.client_column", "user", "--data.test_split", "null", "--data.cache_dir", str(tmp_path / "cache"),
    )  # fmt: skip
    assert code == 0
    assert [row["client"] for row in rows_of(tmp_path)] == ["ann", "bob"]


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "quickstart", "--data.partition.alpha", "-1"], "`alpha` must be > 0 and finite, got -1"),
        (["--config", "quickstat"], "there is no configuration file `quickstat`. Did you mean `quickstart`"),
        (["--config", "no/such.yaml"], "there is no configuration file `no/such.yaml`: check the path"),
        (["quickstart"], "`quickstart` belongs to no option: write `--config quickstart`"),
        (
            ["--config", "quickstart", "--data.num_clients", "5", "10", "--data.partition.alpha", "1", "2"],
            "`--data.num_clients` and `--data.partition.alpha` have several values each",
        ),
        (
            ["--config", "quickstart", "--data.num_clients", "5", "10", "--save", "x.npz"],
            "`--save` keeps one partition, but `--data.num_clients` has 2 values",
        ),
        (["--config", "quickstart", "--data.num_clients", "5000"], "more clients than samples"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(tmp_path, capsys, arguments, message):
    assert show(tmp_path, *arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert message in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "Digit"], "`Digit` is no class that flightning knows. Did you mean `Digits`"),
        (["--config", "quickstart", "--data.batchsize", "3"], "batchsize"),
        ([], "data"),
    ],
)
def test_what_cannot_be_parsed_is_said_in_one_line(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        show(tmp_path, *arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "out").touch()
    assert show(tmp_path, "--config", "quickstart") == 2
    assert "cannot be written" in (printed := capsys.readouterr().err)
    assert "`--out`" in printed


def test_a_broken_configuration_is_named(tmp_path, capsys):
    (tmp_path / "broken.yaml").write_text("data: [")
    assert show(tmp_path, "--config", str(tmp_path / "broken.yaml")) == 2
    assert "broken.yaml` is no YAML file" in capsys.readouterr().err


# --- parts --------------------------------------------------------------------------------------------------------


def test_model_and_trainer_are_not_looked_at(tmp_path):
    (tmp_path / "run.yaml").write_text(
        "model: {class_path: no.such.Model}\ntrainer: {max_epochs: 1}\ndata: {class_path: Digits}\n"
    )
    assert build_data([f"--config={tmp_path / 'run.yaml'}"]).num_clients == 10


def test_one_value_each_is_no_comparison():
    sweep = find_sweep(["--config=x.yaml", "--data", "MNIST"])
    assert sweep.option is None
    assert [sweep.arguments_of(value) for value in sweep.values] == [["--config=x.yaml", "--data", "MNIST"]]


def test_values_may_be_negative():
    assert find_sweep(["--data.x", "-1", "2"]).values == ["-1", "2"]


def test_two_comparisons_are_refused():
    with pytest.raises(ConfigurationError, match="compare the values of one option at a time"):
        find_sweep(["--a", "1", "2", "--b", "1", "2"])
