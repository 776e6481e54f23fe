"""What is wrong with data is said by the command line in one sentence: value, rule, remedy."""

import csv

import numpy as np
import pytest

from flightning.cli import main
from tests.datamodules.test_huggingface import write_pictures

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _place(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    monkeypatch.chdir(tmp_path)
    datasets.disable_progress_bars()


def write_table(rows=(("good day", 1, "ann"), ("bad day", 0, "bob")) * 6):
    with open("tweets.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label", "user"), *rows])


TWEETS = ("--data.path", "csv", "--data.data_files", "tweets.csv", "--data.test_split", "null")
DEALT = ("--data.num_clients", "2", "--data.partition", "IID")


def refusal(capsys, *options):
    """What is printed; nothing else may be, and no traceback."""
    assert main(["partition", "--data", "HuggingFace", *options]) == 2
    printed = capsys.readouterr().err.strip()
    assert printed.startswith("error: ")
    assert "Traceback" not in printed
    return printed


@pytest.mark.parametrize("option", ["text_column", "label_column", "client_column"])
def test_an_unknown_column(capsys, option):
    write_table()
    printed = refusal(capsys, *TWEETS, f"--data.{option}", "nobody")
    assert f"there is no column `{option}='nobody'`: the columns are `text`, `label`, `user`." in printed


def test_labels_that_are_words(capsys):
    write_table()
    printed = refusal(capsys, *TWEETS, *DEALT, "--data.label_column", "user", "--data.text_column", "text")
    assert "`label_column='user'` holds string such as 'ann', but labels are integers or a `ClassLabel`" in printed
    assert "class_encode_column" in printed


def test_a_client_column_with_one_value(capsys):
    write_table([("good day", 1, "ann"), ("bad day", 0, "ann")] * 6)
    printed = refusal(capsys, *TWEETS, "--data.client_column", "user")
    assert "one" in printed
    assert "ann" in printed


def test_pictures_of_different_sizes(capsys, tmp_path):
    write_pictures(tmp_path / "data", sizes=[(6, 5), (7, 5)])
    printed = refusal(capsys, "--data.path", "data", *DEALT)
    assert "the pictures in `img` differ in size (6 x 5 and 7 x 5)" in printed
    assert "`resize: 32`" in printed
    assert main(["partition", "--data", "HuggingFace", "--data.path", "data", *DEALT, "--data.resize", "6"]) == 0


def test_an_empty_file(capsys, tmp_path):
    (tmp_path / "tweets.csv").touch()
    assert "tweets.csv` is empty (0 bytes): write or fetch the file again." in refusal(capsys, *TWEETS, *DEALT)


def test_half_a_cache_is_made_again(capsys, tmp_path):
    write_pictures(tmp_path / "data")
    options = ["--data", "HuggingFace", "--data.path", "data", *DEALT, "--save"]
    assert main(["partition", *options, "first.npz"]) == 0
    (pictures,) = tmp_path.glob("cache/flightning/*/train_pictures.npy")
    whole = pictures.read_bytes()
    pictures.write_bytes(whole[: len(whole) // 2])
    assert main(["partition", *options, "second.npz"]) == 0
    assert pictures.read_bytes() == whole
    with np.load("first.npz") as first, np.load("second.npz") as second:
        assert str(first["partition_hash"]) == str(second["partition_hash"])


def test_a_partition_of_other_data(capsys):
    write_table()
    assert main(["partition", "--config", "quickstart", "--save", "split.npz"]) == 0
    capsys.readouterr()
    chosen = ("--data.text_column", "text", "--data.partition", "FromFile", "--data.partition.path", "split.npz")
    printed = refusal(capsys, *TWEETS, *chosen)
    assert "`split.npz` was made for other data (1437 labels" in printed
    assert "here are 12" in printed
    assert "load the data set it was made for, with the same `data.shared_fraction`" in printed
