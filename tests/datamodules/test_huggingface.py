"""Tables of pictures and texts: every file format, every refusal, on files that the tests write."""

import csv
import io
import json
import sys

import numpy as np
import pytest
import torch

from flightning.datamodules import Dirichlet, HuggingFace, Natural, PretrainedTokenizer, Words
from flightning.errors import ConfigurationError, DataNotFoundError, PartitionError
from flightning.partition.command import build_data

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    datasets.disable_progress_bars()


def png(picture):
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def write_pictures(folder, count=40, shape=(6, 5, 3), labels=None, writers=None, splits=("train", "test"), sizes=None):
    """Parquet files with the columns img, label, writer; returns the pictures of the splits."""
    folder.mkdir(exist_ok=True)
    written = []
    for split in splits:
        pictures = [
            RNG.integers(0, 256, shape if sizes is None else (*sizes[i % len(sizes)], 3), np.uint8)
            for i in range(count)
        ]
        labels_ = np.arange(count) % 4 if labels is None else labels
        columns = {"img": [png(p) for p in pictures], "label": labels_}
        features = {"img": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cat", "dog"])}
        if writers is not None:
            columns["writer"], features["writer"] = writers, datasets.Value("string")
        table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        table.to_parquet(folder / f"{split}.parquet")
        written.append(pictures)
    return written


def make(path, tmp_path, **kwargs):
    options = {"num_clients": 2, "partition": Dirichlet(min_size=1), "cache_dir": str(tmp_path / "cache"), **kwargs}
    return HuggingFace(str(path), **options)


def all_samples(source):
    return next(iter(source.batches([np.arange(len(source))])))


# --- pictures -----------------------------------------------------------------------------------------------------


def test_pictures_of_a_folder_of_parquet_files(tmp_path):
    train, test = write_pictures(tmp_path / "data")
    data = make(tmp_path / "data", tmp_path, normalize=False)
    assert (data.num_classes, data.input_shape) == (4, (3, 6, 5))
    assert data.class_names == ["ant", "bee", "cat", "dog"]
    data.setup("fit")
    inputs, targets = all_samples(data.train_source)
    assert torch.allclose(inputs, torch.tensor(np.stack(train)).permute(0, 3, 1, 2) / 255)
    assert targets.tolist() == (np.arange(40) % 4).tolist()
    assert torch.allclose(all_samples(data.test_source)[0], torch.tensor(np.stack(test)).permute(0, 3, 1, 2) / 255)


def test_training_pictures_have_mean_0_and_deviation_1(tmp_path):
    write_pictures(tmp_path / "data")
    data = make(tmp_path / "data", tmp_path)
    data.setup("fit")
    inputs, _ = all_samples(data.train_source)
    assert torch.allclose(inputs.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(inputs.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4)


def test_grey_pictures_have_one_channel(tmp_path):
    train, _ = write_pictures(tmp_path / "data", shape=(6, 5))
    data = make(tmp_path / "data", tmp_path, normalize=False)
    data.setup("fit")
    assert data.input_shape == (1, 6, 5)
    assert torch.allclose(all_samples(data.train_source)[0][3, 0], torch.tensor(train[3]) / 255)


def test_grey_pictures_among_coloured_ones_become_coloured(tmp_path):
    pictures = [RNG.integers(0, 256, (4, 4), np.uint8), RNG.integers(0, 256, (4, 4, 3), np.uint8)]
    table = datasets.Dataset.from_dict(
        {"image": [png(p) for p in pictures], "label": [0, 1]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    table.to_parquet(tmp_path / "mixed.parquet")
    data = make("parquet", tmp_path, data_files=str(tmp_path / "mixed.parquet"), test_split=None, normalize=False)
    data.setup("fit")
    first = all_samples(data.train_source)[0][0]
    assert first.shape == (3, 4, 4)
    assert torch.allclose(first[0], torch.tensor(pictures[0]) / 255)
    assert torch.equal(first[0], first[2])
    assert data.test_source is None


def test_folder_of_pictures_with_classes_as_folders(tmp_path):
    for split in ("train", "test"):
        for number, name in enumerate(("ant", "bee")):
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            for i in range(3):
                Image.fromarray(np.full((4, 4, 3), 100 * number + i, np.uint8)).save(folder / f"{i}.png")
    data = make(tmp_path / "data", tmp_path, normalize=False, batch_size=2)
    data.setup("fit")
    assert data.class_names == ["ant", "bee"]
    inputs, targets = all_samples(data.train_source)
    assert torch.equal((inputs[:, 0, 0, 0] * 255).round().long() // 100, targets)


def test_resize_makes_pictures_equal(tmp_path):
    write_pictures(tmp_path / "data", sizes=[(6, 5), (8, 8)])
    data = make(tmp_path / "data", tmp_path, resize=7)
    assert data.input_shape == (3, 7, 7)
    assert make(tmp_path / "data", tmp_path, resize=(4, 9)).input_shape == (3, 4, 9)


def test_columns_are_chosen_by_name(tmp_path):
    table = datasets.Dataset.from_dict(
        {"img": [png(np.zeros((2, 2), np.uint8))] * 4, "fine": [0, 1, 2, 3], "coarse": [0, 0, 1, 1]},
        features=datasets.Features(
            {
                "img": datasets.Image(),
                "fine": datasets.ClassLabel(num_classes=4),
                "coarse": datasets.ClassLabel(num_classes=2),
            }
        ),
    )
    table.to_parquet(tmp_path / "x.parquet")
    options = {"data_files": str(tmp_path / "x.parquet"), "test_split": None}
    assert make("parquet", tmp_path, label_column="coarse", **options).num_classes == 2
    assert make("parquet", tmp_path, label_column="fine", **options).num_classes == 4
    with pytest.raises(ConfigurationError, match=r"`label_column` is not given and 2 columns fit \(fine, coarse\)"):
        make("parquet", tmp_path, **options).setup("fit")


# --- natural clients ----------------------------------------------------------------------------------------------


def test_a_client_column_makes_natural_clients(tmp_path):
    writers = [f"w{i % 5}" for i in range(40)]
    write_pictures(tmp_path / "data", writers=writers)
    data = make(tmp_path / "data", tmp_path, client_column="writer", num_clients=None, partition=None)
    data.setup("fit")
    assert isinstance(data.partition, Natural)
    assert data.num_clients == 5
    assert [{writers[i] for i in part} for part in data.parts] == [{"w0"}, {"w1"}, {"w2"}, {"w3"}, {"w4"}]
    assert data.train_source.id_names == ["w0", "w1", "w2", "w3", "w4"]
    assert [len(part) for part in data.local_tests.parts] == [8] * 5


def test_a_client_column_with_one_value_is_refused(tmp_path):
    write_pictures(tmp_path / "data", writers=["ann"] * 40)
    with pytest.raises(PartitionError, match=r"The client column holds one value only \(ann\)"):
        make(tmp_path / "data", tmp_path, client_column="writer").setup("fit")


def test_one_client_in_the_test_split_is_fine(tmp_path):
    write_pictures(tmp_path / "data", writers=[f"w{i % 2}" for i in range(40)], splits=("train",))
    write_pictures(tmp_path / "data", writers=["new"] * 40, splits=("test",))
    data = make(tmp_path / "data", tmp_path, client_column="writer")
    data.setup("fit")
    assert set(data.test_source.ids) == {2}


# --- texts --------------------------------------------------------------------------------------------------------

TWEETS = [("What a good day", 4), ("bad bad weather", 0), ("good good!", 4), ("so bad", 0)] * 5


def write_tweets(folder, kind="csv", rows=TWEETS):
    folder.mkdir(exist_ok=True)
    path = folder / f"train.{kind}"
    records = [{"text": text, "sentiment": label, "user": f"u{i % 2}"} for i, (text, label) in enumerate(rows)]
    if kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "sentiment", "user"])
            writer.writeheader()
            writer.writerows(records)
    else:
        path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def make_tweets(tmp_path, kind="csv", rows=TWEETS, **kwargs):
    path = write_tweets(tmp_path / "tweets", kind, rows)
    options = {"text_column": "text", "label_column": "sentiment", "test_split": None, **kwargs}
    return make(kind, tmp_path, data_files=str(path), **options)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_texts_become_padded_tokens(tmp_path, kind):
    data = make_tweets(tmp_path, kind, tokenizer=Words(vocabulary_size=5, max_length=3))
    data.setup("fit")
    # 15 x good, 15 x bad, then 5 each of ! a day so weather what: the alphabet decides
    assert data.vocabulary == ["<pad>", "<unk>", "bad", "good", "!"]
    assert (data.vocabulary_size, data.padding_index) == (5, 0)
    assert data.input_shape == (3,)
    inputs, targets = next(iter(data.train_source.batches([np.array([0, 3, 2])])))
    assert inputs.tolist() == [[1, 1, 3], [1, 2, 0], [3, 3, 4]]
    assert targets.tolist() == [1, 0, 1]


def test_sent140_holds_a_tenth_of_each_users_tweets_out(tmp_path):
    users = np.repeat(["ann", "bob", "cid"], [30, 20, 10]).tolist()
    rows = {"text": ["so good", "so bad"] * 30, "sentiment": [4, 0] * 30, "user": users}
    datasets.Dataset.from_dict(rows).to_csv(tmp_path / "tweets.csv")
    data = build_data(
        ["--config", "sent140_lstm", "--data.path", "csv", "--data.data_files", str(tmp_path / "tweets.csv"),
         "--data.revision", "null", "--data.num_clients", "2", "--data.cache_dir", str(tmp_path / "cache")]
    )  # fmt: skip
    # the two users with most tweets, 30 and 20
    assert sorted(data.sizes.tolist()) == [18, 27]
    assert sorted(len(part) for part in data.local_tests.parts) == [2, 3]
    assert sum(len(targets) for _, targets in data.val_dataloader()) == 5


def test_labels_that_skip_numbers_are_counted_from_0(tmp_path):
    data = make_tweets(tmp_path)
    assert data.num_classes == 2
    assert data.class_names == ["0", "4"]


def test_the_only_text_column_is_found(tmp_path):
    data = make_tweets(tmp_path, text_column=None, client_column="user", num_clients=None, partition=None)
    data.setup("fit")
    assert data.num_clients == 2


def test_words_of_the_test_split_are_not_learned(tmp_path):
    train = write_tweets(tmp_path / "a")
    test = write_tweets(tmp_path / "b", rows=[("unheard words", 0), ("good", 4)])
    files = {"train": str(train), "test": str(test)}
    data = make("csv", tmp_path, data_files=files, text_column="text", label_column="sentiment")
    data.setup("fit")
    assert all_samples(data.test_source)[0].tolist() == [[1, 1], [data.vocabulary.index("good"), 0]]


def test_a_missing_text_is_empty(tmp_path):
    data = make_tweets(tmp_path, rows=[*TWEETS, (None, 0)])
    data.setup("fit")
    assert all_samples(data.train_source)[0][-1].tolist() == [0, 0, 0, 0]


def test_pretrained_tokenizer_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigurationError, match=r"needs the package `transformers`.*install transformers`, or use `W"):
        PretrainedTokenizer("bert-base-uncased").learn(["a text"])


def test_texts_and_pictures_exclude_each_other(tmp_path):
    with pytest.raises(
        ConfigurationError, match="`image_column='img'` goes with neither `text_column` nor `tokenizer`"
    ):
        make(tmp_path, tmp_path, image_column="img", tokenizer=Words())
    with pytest.raises(ConfigurationError, match=r"`resize=\(8, 8\)` is for pictures, but the samples are texts"):
        make_tweets(tmp_path, resize=8).setup("fit")


# --- the cache ----------------------------------------------------------------------------------------------------


def test_the_second_start_reads_the_cache(tmp_path, monkeypatch):
    write_pictures(tmp_path / "data")
    first = make(tmp_path / "data", tmp_path)
    first.setup("fit")

    def refuse(*args, **kwargs):
        raise AssertionError("read again")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    second = make(tmp_path / "data", tmp_path)
    second.setup("fit")
    assert second.partition_hash == first.partition_hash
    assert torch.equal(all_samples(second.train_source)[0], all_samples(first.train_source)[0])


def test_changed_files_are_read_again(tmp_path):
    write_pictures(tmp_path / "data")
    make(tmp_path / "data", tmp_path).setup("fit")
    train, _ = write_pictures(tmp_path / "data")
    data = make(tmp_path / "data", tmp_path, normalize=False)
    data.setup("fit")
    assert torch.allclose(all_samples(data.train_source)[0][0], torch.tensor(train[0]).permute(2, 0, 1) / 255)


def test_a_half_written_cache_is_made_again(tmp_path):
    train, _ = write_pictures(tmp_path / "data")
    make(tmp_path / "data", tmp_path).setup("fit")
    (file,) = (tmp_path / "cache").glob("*/train_pictures.npy")
    file.write_bytes(file.read_bytes()[:200])
    data = make(tmp_path / "data", tmp_path, normalize=False)
    with pytest.warns(UserWarning, match="The cached data in `.*` is damaged, .* and is made again"):
        data.setup("fit")
    assert torch.allclose(all_samples(data.train_source)[0][0], torch.tensor(train[0]).permute(2, 0, 1) / 255)


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["image_column", "label_column", "client_column"])
def test_an_unknown_column_is_answered_with_those_there_are(tmp_path, option):
    write_pictures(tmp_path / "data")
    with pytest.raises(ConfigurationError, match=rf"no column `{option}='nose'`: the columns are `img`, `label`"):
        make(tmp_path / "data", tmp_path, **{option: "nose"}).setup("fit")


def test_labels_that_are_words_are_refused(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"`label_column='user'` holds .*string such as 'u0', but labels are int"
    ):
        make_tweets(tmp_path, label_column="user").setup("fit")


def test_labels_that_are_fractions_are_refused(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"holds double such as 0.5, but labels are integers or a `ClassLabel`"
    ):
        make_tweets(tmp_path, rows=[("a", 0.5), ("b", 1.5)]).setup("fit")


def test_missing_labels_are_counted(tmp_path):
    labels = np.arange(40) % 4
    labels[:3] = -1
    write_pictures(tmp_path / "data", labels=labels)
    with pytest.raises(ConfigurationError, match=r"3 of 40 samples have no label in `label`: choose another split"):
        make(tmp_path / "data", tmp_path).setup("fit")


def test_pictures_of_different_sizes_ask_for_a_size(tmp_path):
    write_pictures(tmp_path / "data", sizes=[(6, 5), (8, 8)])
    with pytest.raises(ConfigurationError, match=r"differ in size \(6 x 5 and 8 x 8\): .*`resize: 32`"):
        make(tmp_path / "data", tmp_path).setup("fit")


def test_training_and_test_pictures_of_different_sizes_ask_for_a_size(tmp_path):
    write_pictures(tmp_path / "data", shape=(6, 5, 3), splits=("train",))
    write_pictures(tmp_path / "data", shape=(7, 5, 3), splits=("test",))
    with pytest.raises(ConfigurationError, match=r"have the shape \(3, 6, 5\) and test pictures \(3, 7, 5\).*`resize`"):
        make(tmp_path / "data", tmp_path).setup("fit")


def test_a_column_without_pictures_is_refused(tmp_path):
    write_pictures(tmp_path / "data")
    with pytest.raises(
        ConfigurationError, match=r"`image_column='label'` holds ClassLabel.*, no pictures: choose one of"
    ):
        make(tmp_path / "data", tmp_path, image_column="label", label_column="label").setup("fit")


def test_a_column_without_texts_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"`text_column='sentiment'` holds int64, no texts"):
        make_tweets(tmp_path, text_column="sentiment").setup("fit")


def test_deep_pictures_are_refused(tmp_path):
    table = datasets.Dataset.from_dict(
        {"img": [png(np.zeros((2, 2), np.uint16))], "label": [0]},
        features=datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")}),
    )
    table.to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ConfigurationError, match=r"mode `I;16`, more than 8 bits per channel: convert"):
        make("parquet", tmp_path, data_files=str(tmp_path / "x.parquet"), test_split=None).setup("fit")


@pytest.mark.parametrize(
    ("broken", "match"),
    [
        (None, r"row 2 of `img` \(counted from 0\) holds no picture: leave the row out"),
        (b"no picture", r"row 2 of `img` \(counted from 0\) is no picture that can be read \(.*\): write or fetch it"),
        ("cut", r"row 2 of `img` \(counted from 0\) is no picture that can be read \(.*\): write or fetch it"),
    ],
)
def test_a_missing_or_broken_picture_is_named_by_its_row(tmp_path, broken, match):
    whole = png(RNG.integers(0, 256, (16, 16, 3), np.uint8))
    content = whole["bytes"][:200] if broken == "cut" else broken
    bad = None if content is None else {"bytes": content, "path": None}
    table = datasets.Dataset.from_dict(
        {"img": [whole, whole, bad], "label": [0, 1, 0]},
        features=datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")}),
    )
    table.to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ConfigurationError, match=match):
        make("parquet", tmp_path, data_files=str(tmp_path / "x.parquet"), test_split=None).setup("fit")


def test_missing_clients_are_counted(tmp_path):
    writers = [None, None, *("ann", "bob") * 19]
    write_pictures(tmp_path / "data", writers=writers)
    with pytest.raises(ConfigurationError, match=r"2 of 40 samples have no client in `writer`: leave these samples"):
        make(tmp_path / "data", tmp_path, client_column="writer", partition=None, num_clients=None).setup("fit")


def test_clients_with_numbers_are_ordered_as_numbers(tmp_path):
    rows = {"text": ["so good", "so bad"] * 6, "label": [0, 1] * 6, "user": [10, 9, 100] * 4}
    datasets.Dataset.from_dict(rows).to_json(tmp_path / "tweets.json")
    data = make("json", tmp_path, data_files=str(tmp_path / "tweets.json"), test_split=None, text_column="text",
                client_column="user", partition=None, num_clients=None)  # fmt: skip
    data.setup("fit")
    assert data.client_names == ["9", "10", "100"]


def test_empty_files_are_named(tmp_path):
    (tmp_path / "empty.csv").touch()
    with pytest.raises(ConfigurationError, match=r"empty.csv` is empty \(0 bytes\): write or fetch the file again"):
        make("csv", tmp_path, data_files=str(tmp_path / "empty.csv"), test_split=None).setup("fit")


def test_files_without_samples_are_named(tmp_path):
    (tmp_path / "header.csv").write_text("text,label\n")
    with pytest.raises(ConfigurationError, match=r"split `train` of `csv .*header.csv` .*hold"):
        make("csv", tmp_path, data_files=str(tmp_path / "header.csv"), test_split=None).setup("fit")


def test_half_a_file_is_named(tmp_path):
    write_pictures(tmp_path / "data")
    path = tmp_path / "data" / "train.parquet"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ConfigurationError, match=r"split `train` of .* cannot be read .*check .* the files are whole"):
        make(tmp_path / "data", tmp_path).setup("fit")


def test_an_unknown_split_is_answered_with_those_there_are(tmp_path):
    write_pictures(tmp_path / "data")
    with pytest.raises(ConfigurationError, match=r"split `validation` .*\['train', 'test'\]"):
        make(tmp_path / "data", tmp_path, test_split="validation").setup("fit")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"nowhere.csv` cannot be found .*: check `path` and `data_files`"):
        make("csv", tmp_path, data_files=str(tmp_path / "nowhere.csv")).setup("fit")


def test_without_datasets_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r"needs the package `datasets`.*pip install -e '.\[huggingface\]'"):
        make(tmp_path, tmp_path).setup("fit")
