import sys
import types

import numpy as np
import pytest

from flightning.datamodules import FederatedDataModule
from flightning.datamodules.partitioners import IID, FlowerPartitioner, FromFile, Shards, load_partition, save_partition
from flightning.datamodules.text import TextSource
from flightning.errors import ConfigurationError, DataNotFoundError, PartitionError
from flightning.functional.partition import partition_hash

LABELS = np.repeat(np.arange(5), 20)


@pytest.fixture
def saved(tmp_path):
    parts = Shards()(LABELS, 4, seed=1)
    return save_partition(tmp_path / "deep" / "split.npz", parts, LABELS), parts


def test_a_saved_partition_comes_back_whole(saved):
    path, parts = saved
    assert partition_hash(load_partition(path, LABELS)) == partition_hash(parts)


def test_empty_clients_survive_the_file(tmp_path):
    parts = [np.array([], dtype=np.int64), np.array([3, 1])]
    path = save_partition(tmp_path / "split.npz", parts, LABELS)
    assert [part.tolist() for part in load_partition(path, LABELS)] == [[], [3, 1]]


def test_saving_leaves_one_file_only(saved):
    assert [file.name for file in saved[0].parent.iterdir()] == ["split.npz"]


def test_from_file_deals_as_saved_whatever_the_seed(saved):
    path, parts = saved
    assert partition_hash(FromFile(str(path))(LABELS, None, seed=77)) == partition_hash(parts)


def test_other_labels_are_refused_by_hash(saved):
    with pytest.raises(PartitionError, match=r"was made for other data \(100 labels, hash .*; here are 100, hash"):
        FromFile(str(saved[0]))(LABELS[::-1], 4, seed=0)


def test_another_number_of_clients_is_refused(saved):
    with pytest.raises(PartitionError, match="holds 4 clients, not 5: set `num_clients` to 4"):
        FromFile(str(saved[0]))(LABELS, 5, seed=0)


def test_other_texts_with_the_same_labels_are_refused(tmp_path):
    def deal(first_token, partition):
        tokens = np.arange(first_token, first_token + 2 * len(LABELS))
        source = TextSource(tokens, np.arange(0, 2 * len(LABELS) + 1, 2), LABELS)
        data = FederatedDataModule.from_dataset(source, num_clients=4, partition=partition)
        data.setup("fit")
        return data

    path = deal(0, IID()).save_partition(tmp_path / "split.npz")
    assert deal(0, FromFile(str(path))).num_clients == 4
    with pytest.raises(
        PartitionError, match="was made for other data: the labels are the same, but 32 of 32 compared inputs"
    ):
        deal(1, FromFile(str(path)))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"no partition file `.*none.npz`: give the path"):
        load_partition(tmp_path / "none.npz", LABELS)


def test_a_cut_file_is_refused(saved):
    path, _ = saved
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(PartitionError, match="is damaged or no partition file"):
        load_partition(path, LABELS)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "split.npz"
    path.write_bytes(content)
    with pytest.raises(PartitionError, match="is damaged or no partition file"):
        load_partition(path, LABELS)


def test_a_plain_array_is_refused(tmp_path):
    np.save(tmp_path / "split.npy", np.arange(3))
    with pytest.raises(PartitionError, match="is damaged or no partition file"):
        load_partition(tmp_path / "split.npy", LABELS)


def test_changed_indices_are_noticed(saved):
    path, _ = saved
    with np.load(path) as file:
        stored = dict(file)
    stored["indices"] = stored["indices"][::-1]
    np.savez(path, **stored)
    with pytest.raises(PartitionError, match="its indices do not match their hash"):
        load_partition(path, LABELS)


def test_flower_missing_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(ConfigurationError, match=r"needs the package `flwr-datasets`.*pip install flwr-datasets"):
        FlowerPartitioner("IidPartitioner")(LABELS, 4, seed=0)


class EveryNth:
    """Smallest partitioner with the interface of Flower Datasets."""

    def __init__(self, num_partitions, partition_by, seed=42):
        self.num_partitions, self.partition_by, self.seed = num_partitions, partition_by, seed

    def load_partition(self, partition_id):
        assert self.partition_by in self.dataset.column_names
        return self.dataset.select(range(partition_id, len(self.dataset), self.num_partitions))


class ByIdNaturalId:
    """Counts its partitions by itself, as Flower's natural partitioners do."""

    def __init__(self, partition_by):
        self.partition_by = partition_by

    @property
    def num_partitions(self):
        return len(self.dataset.unique(self.partition_by))

    def load_partition(self, partition_id):
        rows = np.asarray(self.dataset[self.partition_by])
        return self.dataset.select(np.flatnonzero(rows == sorted(set(rows))[partition_id]))


class Strict(EveryNth):
    """Refuses one value when it is made and another when it deals."""

    def __init__(self, num_partitions, share=0.5):
        if share > 1:
            raise ValueError("share must be at most 1")
        super().__init__(num_partitions, "label")
        self.share = share

    def load_partition(self, partition_id):
        if self.share < 0:
            raise ValueError("share must be at least 0")
        return super().load_partition(partition_id)


@pytest.fixture
def flower(monkeypatch):
    pytest.importorskip("datasets")
    package, rules = types.ModuleType("flwr_datasets"), types.ModuleType("flwr_datasets.partitioner")
    package.partitioner = rules
    rules.__all__ = ["EveryNth", "ByIdNaturalId", "Strict", "Partitioner", "VerticalEvenPartitioner"]
    rules.EveryNth, rules.ByIdNaturalId, rules.Strict = EveryNth, ByIdNaturalId, Strict
    monkeypatch.setitem(sys.modules, "flwr_datasets", package)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", rules)


@pytest.mark.usefixtures("flower")
def test_flower_rules_deal_rows():
    parts = FlowerPartitioner("EveryNth")(LABELS, 3, seed=0)
    assert [part[:2].tolist() for part in parts] == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.usefixtures("flower")
def test_flower_rules_can_be_called_twice():
    rule = FlowerPartitioner("EveryNth")
    assert partition_hash(rule(LABELS, 3, seed=0)) == partition_hash(rule(LABELS, 3, seed=0))


@pytest.mark.usefixtures("flower")
def test_flower_natural_rules_see_the_client_column():
    parts = FlowerPartitioner("ByIdNaturalId")(LABELS, 5, seed=0, ids=LABELS)
    assert [set(LABELS[part].tolist()) for part in parts] == [{k} for k in range(5)]


@pytest.mark.usefixtures("flower")
def test_flower_natural_rules_count_their_clients():
    ids = np.array(["ann", "bob", "cid"])[np.arange(100) % 3]
    parts = FlowerPartitioner("ByIdNaturalId")(LABELS, None, seed=0, ids=ids)
    assert [set(ids[part].tolist()) for part in parts] == [{"ann"}, {"bob"}, {"cid"}]


@pytest.mark.usefixtures("flower")
def test_the_number_of_clients_may_be_among_the_options_of_flower():
    assert len(FlowerPartitioner("EveryNth", {"num_partitions": 2})(LABELS, None, seed=0)) == 2


@pytest.mark.usefixtures("flower")
def test_sizes_among_the_options_of_flower_count_the_clients():
    assert FlowerPartitioner("EveryNth", {"partition_sizes": [50, 30, 20]}).count_clients() == 3


@pytest.mark.usefixtures("flower")
def test_flower_natural_rules_need_ids():
    with pytest.raises(ConfigurationError, match="`ByIdNaturalId` needs the natural id of each sample: choose a data"):
        FlowerPartitioner("ByIdNaturalId")(LABELS, 5, seed=0)


@pytest.mark.usefixtures("flower")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"size": 3}, "TypeError: .*size"),
        ({"share": 2}, "ValueError: share must be at most 1"),
        ({"share": -1}, "ValueError: share must be at least 0"),
    ],
)
def test_what_flower_refuses_is_named_with_the_options(options, reason):
    expected = rf"`Strict` of `flwr_datasets` cannot deal .*\({reason}.*\): correct `data.partition.options`"
    with pytest.raises(ConfigurationError, match=expected):
        FlowerPartitioner("Strict", options)(LABELS, 4, seed=0)


@pytest.mark.usefixtures("flower")
def test_flower_options_win_over_what_is_filled_in():
    with pytest.raises(PartitionError, match="made 2 parts for 3 clients"):
        FlowerPartitioner("EveryNth", options={"num_partitions": 2})(LABELS, 3, seed=0)


@pytest.mark.usefixtures("flower")
@pytest.mark.parametrize("name", ["EveryNt", "VerticalEvenPartitioner"])
def test_unknown_flower_rules_are_refused_with_the_nearest(name):
    with pytest.raises(ConfigurationError, match=rf"`{name}` is no partitioner of `flwr_datasets` that deals"):
        FlowerPartitioner(name)(LABELS, 3, seed=0)


def test_real_flower_partitioners_where_installed():
    pytest.importorskip("flwr_datasets")
    rule = FlowerPartitioner("PathologicalPartitioner", {"num_classes_per_partition": 2})
    parts = rule(LABELS, 10, seed=0)
    assert [len(set(LABELS[part].tolist())) for part in parts] == [2] * 10


def test_real_sizes_where_installed():
    pytest.importorskip("flwr_datasets")
    parts = FlowerPartitioner("SizePartitioner", {"partition_sizes": [50, 30, 20]})(LABELS, None, seed=0)
    assert [len(part) for part in parts] == [50, 30, 20]


def test_real_natural_partitioners_where_installed():
    pytest.importorskip("flwr_datasets")
    ids = np.array(["ann", "bob", "cid"])[np.arange(100) % 3]
    parts = FlowerPartitioner("NaturalIdPartitioner")(LABELS, None, seed=0, ids=ids)
    assert [set(ids[part].tolist()) for part in parts] == [{"ann"}, {"bob"}, {"cid"}]


def test_iid_and_file_agree_on_the_hash(tmp_path):
    parts = IID()(LABELS, 4, seed=0)
    path = save_partition(tmp_path / "iid.npz", parts, LABELS)
    assert partition_hash(load_partition(path, LABELS)) == partition_hash(IID()(LABELS, 4, seed=0))
