"""Skewed samples, natural ids, local test sets, and partitions on disk, through a data module."""

import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from flightning.datamodules import (
    IID,
    AffineSkew,
    ClassesPerClient,
    Dirichlet,
    FederatedDataModule,
    FromFile,
    LabelPermutation,
    LongTail,
    Natural,
    NoiseSkew,
    RotationSkew,
    SortedMix,
)
from flightning.datamodules.local_tests import skew_samples
from flightning.datamodules.partitioners import save_partition
from flightning.datamodules.sources import PictureSource, TensorSource
from flightning.errors import ConfigurationError, PartitionError


def pictures(count, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 4, 4, generator=generator), torch.arange(count) % classes


def make(count=80, test=40, **kwargs):
    options = {"num_clients": 4, "partition": IID(), "seed": 0, **kwargs}
    data = FederatedDataModule.from_dataset(pictures(count), pictures(test, seed=1) if test else None, **options)
    data.setup("fit")
    return data


def samples(source, part):
    return next(iter(source.batches([part])))


# --- skew ---------------------------------------------------------------------------------------------------------


def test_each_client_trains_on_its_own_turn_of_the_pictures():
    plain, turned = make(), make(skew=RotationSkew(groups=4))
    for client in range(4):
        before, after = (samples(d.train_source, d.parts[client])[0] for d in (plain, turned))
        assert torch.equal(torch.rot90(before, client, (-2, -1)), after)


def test_skew_leaves_partition_test_set_and_given_tensors_alone():
    inputs, targets = pictures(80)
    kept = inputs.clone()
    data = FederatedDataModule.from_dataset(
        (inputs, targets), pictures(40, seed=1), num_clients=4, partition=IID(), seed=0, skew=NoiseSkew(sigma=1.0)
    )
    data.setup("fit")
    assert torch.equal(inputs, kept)
    assert data.partition_hash == make().partition_hash
    assert torch.equal(samples(data.test_source, np.arange(40))[0], pictures(40, seed=1)[0])


def test_noise_is_the_same_in_every_round_and_differs_between_samples():
    data = make(count=8, num_clients=2, skew=NoiseSkew(sigma=1.0))
    noise = (
        samples(data.train_source, data.parts[1])[0]
        - samples(make(count=8, num_clients=2).train_source, data.parts[1])[0]
    )
    again = next(data.client_batches(1))[0]
    assert torch.equal(again, samples(data.train_source, data.parts[1])[0])
    assert not torch.allclose(noise[0], noise[1])


def test_a_sample_of_two_clients_is_skewed_for_each():
    partition = SortedMix(sorted_fraction=0.2, low=60, high=70, overlap=True)
    plain, turned = (make(partition=partition, skew=skew) for skew in (None, RotationSkew(groups=4)))
    assert len(np.unique(np.concatenate(plain.parts))) < plain.sizes.sum()
    for client in range(4):
        before, after = (samples(d.train_source, d.parts[client]) for d in (plain, turned))
        assert torch.equal(torch.rot90(before[0], client, (-2, -1)), after[0])
        assert torch.equal(before[1], after[1])


def test_pictures_are_skewed_before_they_are_normalised():
    source = PictureSource(torch.full((2, 1, 1, 1), 51, dtype=torch.uint8), torch.tensor([0, 1]), (0.5,), (0.1,))
    skewed, _ = skew_samples(source, [np.array([0]), np.array([1])], NoiseSkew(sigma=1.0), seed=0)
    x = skewed.plain(np.arange(2))[0]
    assert x[0] == pytest.approx(0.2)  # 51 / 255, client 0 is clean
    assert skewed.gather(np.arange(2))[0][0] == pytest.approx(-3.0)  # (0.2 - 0.5) / 0.1
    assert torch.allclose(skewed.gather(np.arange(2))[0], (x - 0.5) / 0.1)


def test_a_pooled_client_keeps_what_each_client_saw():
    data = make(skew=RotationSkew(groups=4))
    seen = torch.cat([samples(data.train_source, part)[0] for part in data.parts]).sum(0)
    data.pool()
    assert torch.allclose(samples(data.train_source, data.parts[0])[0].sum(0), seen, atol=1e-4)


def test_skew_refuses_samples_that_are_not_in_memory():
    class Numbers(Dataset):
        targets = (0, 1) * 4

        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.zeros(1), index % 2

    data = FederatedDataModule.from_dataset(Numbers(), num_clients=2, partition=IID(), skew=NoiseSkew())
    with pytest.raises(ConfigurationError, match=r"`skew=NoiseSkew\(sigma=0.1\)` changes samples .* leave `skew` out"):
        data.setup("fit")


@pytest.mark.parametrize("number", [3, 20])
def test_labels_are_permuted_only_among_the_classes_of_the_data(number):
    expected = rf"permutes `num_classes` = {number} classes, but the data has 4: set `skew.num_classes` to 4"
    with pytest.raises(PartitionError, match=expected):
        make(skew=LabelPermutation(num_classes=number))


# --- natural ids --------------------------------------------------------------------------------------------------


def test_natural_ids_make_as_many_clients_as_there_are_ids():
    ids = np.array(["ann", "bob", "cid", "dan", "eve"])[np.arange(80) % 5]
    data = make(num_clients=None, partition=Natural(), ids=ids)
    assert data.num_clients == 5
    assert [set(ids[part]) for part in data.parts] == [{"ann"}, {"bob"}, {"cid"}, {"dan"}, {"eve"}]


def test_ids_follow_the_samples_that_are_left_after_validation():
    ids = np.arange(80) % 5
    data = make(num_clients=None, partition=Natural(), ids=ids, val_fraction=0.25)
    assert len(data.validation) == 20
    assert all(set(ids[part]) == {client} for client, part in enumerate(data.parts))


def test_without_ids_or_a_number_there_are_ten_clients():
    assert make(num_clients=None).num_clients == 10


def test_number_of_ids_must_match():
    with pytest.raises(ConfigurationError, match="80 samples and 3 ids: give one id per sample"):
        make(ids=[1, 2, 3])


# --- local test sets ----------------------------------------------------------------------------------------------


def test_same_recipe_follows_the_label_distribution():
    data = make(count=400, test=200, partition=ClassesPerClient(classes=1))
    tests = data.local_tests
    for part, own in zip(data.parts, tests.parts, strict=True):
        assert set(data.train_source.labels[part]) == set(tests.source.labels[own])
    assert sorted(np.concatenate(tests.parts)) == list(range(200))


def tail_of(parts, source):
    return np.bincount(source.labels[np.concatenate(parts)]).tolist()


def test_local_test_sets_have_the_long_tail_of_the_training_set():
    data = make(count=400, test=200, partition=LongTail(IID(), imbalance=8))
    # 100 training and 50 test samples of each class, of which 1, 1/2, 1/4 and 1/8 are left
    assert tail_of(data.parts, data.train_source) == [100, 50, 25, 12]
    assert tail_of(data.local_tests.parts, data.local_tests.source) == [50, 25, 12, 6]


def test_natural_clients_of_a_long_tail_are_tested_on_their_own_thinned_samples():
    train, test = (TensorSource(*pictures(n), np.arange(n) % 5) for n in (400, 200))
    data = FederatedDataModule.from_dataset(train, test, partition=LongTail(Natural(), imbalance=8))
    data.setup("fit")
    own = data.local_tests.parts
    assert [set(test.ids[part]) for part in own] == [{0}, {1}, {2}, {3}, {4}]
    assert tail_of(own, test) == [50, 25, 12, 6]


def test_held_out_validation_samples_thin_no_local_test_sets():
    data = make(count=400, test=200, val_fraction=0.3)
    assert sorted(np.concatenate(data.local_tests.parts)) == list(range(200))


def test_held_out_share_is_taken_from_the_clients_own_samples():
    plain, data = make(), make(client_test=0.25)
    for before, part, own in zip(plain.parts, data.parts, data.local_tests.parts, strict=True):
        assert (len(part), len(own)) == (15, 5)
        assert sorted(np.concatenate([part, own])) == sorted(before)
    assert data.local_tests.source is data.train_source
    assert data.partition_hash != plain.partition_hash  # clients train on other samples: no run may be resumed across


def test_without_a_test_set_what_is_held_out_is_the_test_set_of_all():
    data = make(test=0, client_test=0.25, skew=RotationSkew(groups=4))
    for loader in (data.test_dataloader(), data.val_dataloader()):
        (batch,) = loader
        expected = samples(data.local_tests.source, np.concatenate(data.local_tests.parts))
        assert torch.equal(batch[0], expected[0])
        assert torch.equal(batch[1], expected[1])


def test_what_is_held_out_leaves_a_test_set_alone():
    (batch,) = make(client_test=0.25).test_dataloader()
    assert torch.equal(batch[0], pictures(40, seed=1)[0])


def test_natural_clients_are_tested_on_their_own_test_samples():
    train, test = (TensorSource(*pictures(n), np.arange(n) % 5) for n in (80, 40))
    data = FederatedDataModule.from_dataset(train, test, partition=Natural())
    data.setup("fit")
    assert [set(test.ids[own]) for own in data.local_tests.parts] == [{0}, {1}, {2}, {3}, {4}]


def test_natural_clients_get_all_their_test_samples_in_stored_order():
    rng = np.random.default_rng(0)
    names = np.array([f"writer {number}" for number in range(30)])
    train, test = (TensorSource(*pictures(n), names[rng.integers(0, 30, n)]) for n in (80, 40))
    data = FederatedDataModule.from_dataset(train, test, num_clients=7, partition=Natural(grouping="group"))
    data.setup("fit")
    for part, own in zip(data.parts, data.local_tests.parts, strict=True):
        assert own.tolist() == np.flatnonzero(np.isin(test.ids, train.ids[part])).tolist()


def test_test_samples_of_ten_thousand_natural_clients_are_found_at_once():
    ids = np.array([f"writer {number}" for number in range(10_000)] * 2)
    parts = [np.array([client, client + 10_000]) for client in range(10_000)]
    start = time.perf_counter()
    own = Natural().split_test(np.zeros(20_000, np.int64), parts, np.zeros(20_000, np.int64), 0, ids, ids)
    assert time.perf_counter() - start < 2
    assert [part.tolist() for part in own[-2:]] == [[9_998, 19_998], [9_999, 19_999]]


def test_natural_clients_without_test_samples_are_told_what_to_do():
    train, test = TensorSource(*pictures(80), np.arange(80) % 5), TensorSource(*pictures(40), np.arange(40) + 100)
    data = FederatedDataModule.from_dataset(train, test, partition=Natural())
    data.setup("fit")
    with pytest.raises(
        PartitionError, match=r"None of the ids of the 5 clients occurs in the test split.*client_test: 0.2"
    ):
        data.local_tests  # noqa: B018


def test_natural_without_test_ids_falls_back_to_labels():
    train, test = TensorSource(*pictures(80), np.arange(80) % 4), TensorSource(*pictures(40))
    data = FederatedDataModule.from_dataset(train, test, partition=Natural())
    data.setup("fit")
    # 80 samples, 4 classes, 4 ids in step: client k holds class k only
    assert [set(test.labels[own]) for own in data.local_tests.parts] == [{0}, {1}, {2}, {3}]


def test_each_client_can_be_tested_on_the_whole_test_set_as_it_sees_it():
    plain = make(client_test="whole")
    assert [part.tolist() for part in plain.local_tests.parts] == [list(range(40))] * 4
    assert plain.partition_hash == make().partition_hash  # nothing is held out
    turned = make(client_test="whole", skew=RotationSkew(groups=4))
    pictures = samples(plain.test_source, np.arange(40))[0]
    for client, part in enumerate(turned.local_tests.parts):
        assert torch.equal(samples(turned.local_tests.source, part)[0], torch.rot90(pictures, client, (-2, -1)))


@pytest.mark.parametrize("client_test", ["same_recipe", 0.25])
def test_local_test_sets_are_skewed_like_the_client(client_test):
    plain, turned = (make(client_test=client_test, skew=skew) for skew in (None, RotationSkew(groups=4)))
    for client in range(4):
        before, after = (samples(d.local_tests.source, d.local_tests.parts[client]) for d in (plain, turned))
        assert torch.equal(torch.rot90(before[0], client, (-2, -1)), after[0])
        assert torch.equal(before[1], after[1])


def test_local_test_sets_have_the_labels_of_the_clients_group():
    skew = LabelPermutation(num_classes=4, groups=4, kind="full")
    plain, shifted = make(), make(skew=skew)
    tables = skew.permutations(shifted._skew_seed)
    for client in range(4):
        for kind in ("train", "test"):
            before, after = (
                samples(d.train_source, d.parts[client])
                if kind == "train"
                else samples(d.local_tests.source, d.local_tests.parts[client])
                for d in (plain, shifted)
            )
            assert torch.equal(torch.from_numpy(tables[client])[before[1]], after[1]), kind


def test_handwriting_is_the_same_in_training_and_test():
    """A picture that is in both sets looks the same to a client."""
    same = pictures(40)
    data = FederatedDataModule.from_dataset(
        same,
        same,
        num_clients=2,
        partition=ClassesPerClient(classes=2, assignment="blocks"),
        skew=AffineSkew(0.3),
        seed=0,
    )
    data.setup("fit")
    tests = data.local_tests
    for client in (0, 1):
        trained = samples(data.train_source, data.parts[client])[0].flatten(1)
        tested = samples(tests.source, tests.parts[client])[0].flatten(1)
        # the classes are not shared, so each test picture is also a training picture of the same client
        assert torch.cdist(tested, trained).min(dim=1).values.max() < 1e-5


def test_noise_of_the_test_set_was_not_trained_on():
    zeros = torch.zeros(40, 3), torch.arange(40) % 2
    data = FederatedDataModule.from_dataset(zeros, zeros, num_clients=2, partition=IID(), skew=NoiseSkew(sigma=1.0))
    data.setup("fit")
    trained, tested = (
        samples(source, parts[1])[0]
        for source, parts in ((data.train_source, data.parts), (data.local_tests.source, data.local_tests.parts))
    )
    assert tested.std() == pytest.approx(1.0, abs=0.25)
    assert torch.cdist(tested, trained).min() > 1e-3


def test_local_tests_survive_pooling():
    data = make()
    data.pool()
    assert len(data.local_tests.parts) == 4


def test_owners_name_the_client_of_each_sample():
    data = make(client_test=0.25)
    assert data.local_tests.owners.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5


def test_without_a_test_set_the_remedy_is_named():
    with pytest.raises(ConfigurationError, match=r"`InMemoryData` has no test set .* `client_test: 0.2`"):
        make(test=0).local_tests  # noqa: B018


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_client_test_is_checked(share):
    with pytest.raises(
        ConfigurationError, match=rf"`client_test={share}` must be `same_recipe`, `whole` or lie in \(0, 1\)"
    ):
        make(client_test=share)


def test_an_unknown_kind_of_local_test_set_is_refused():
    with pytest.raises(ConfigurationError, match="`client_test='hole'` must be one of `same_recipe`, `whole`"):
        make(client_test="hole")


# --- partitions on disk -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"val_fraction": 0.2, "shared_fraction": 0.1}])
def test_a_saved_partition_gives_the_same_clients(tmp_path, options):
    data = make(partition=Dirichlet(alpha=0.5, min_size=2), **options)
    path = data.save_partition(tmp_path / "split.npz")
    again = make(num_clients=None, partition=FromFile(str(path)), **options)
    assert again.num_clients == 4
    assert again.partition_hash == data.partition_hash


def with_ids(partition, count=80, test=40, **options):
    train, held = (TensorSource(*pictures(n), np.arange(n) // 2 % 5) for n in (count, test))
    data = FederatedDataModule.from_dataset(train, held, partition=partition, seed=0, **options)
    data.setup("fit")
    return data


def test_natural_clients_of_a_file_are_tested_on_their_own_test_samples(tmp_path):
    natural = with_ids(Natural(), num_clients=3)
    loaded = with_ids(FromFile(str(natural.save_partition(tmp_path / "split.npz"))))
    for own, again in zip(natural.local_tests.parts, loaded.local_tests.parts, strict=True):
        assert own.tolist() == again.tolist()


def test_clients_of_a_file_that_share_ids_are_tested_by_their_labels(tmp_path):
    by_class = with_ids(ClassesPerClient(classes=1), num_clients=4)
    loaded = with_ids(FromFile(str(by_class.save_partition(tmp_path / "split.npz"))))
    for part, own in zip(loaded.parts, loaded.local_tests.parts, strict=True):
        assert set(loaded.train_source.labels[part]) == set(loaded.local_tests.source.labels[own])


def test_a_partition_for_other_data_is_refused(tmp_path):
    path = make().save_partition(tmp_path / "split.npz")
    with pytest.raises(PartitionError, match=r"was made for other data \(80 labels, hash .*; here are 84"):
        make(count=84, partition=FromFile(str(path)))


@pytest.mark.parametrize(("inputs", "answer"), [(100, "32 of 32 compared inputs"), (0, None)])
def test_a_partition_for_other_samples_with_the_same_labels_is_refused(tmp_path, inputs, answer):
    path = make().save_partition(tmp_path / "split.npz")
    other = FederatedDataModule.from_dataset(pictures(80, seed=inputs), partition=FromFile(str(path)))
    if answer is None:
        other.setup("fit")
        return
    with pytest.raises(PartitionError, match=f"was made for other data: the labels are the same, but {answer}"):
        other.setup("fit")


def test_a_partition_for_other_ids_is_refused(tmp_path):
    path = with_ids(IID()).save_partition(tmp_path / "split.npz")
    other = TensorSource(*pictures(80), np.array(["ann", "bob"])[np.arange(80) % 2])
    with pytest.raises(PartitionError, match="32 of 32 compared ids are not"):
        FederatedDataModule.from_dataset(other, partition=FromFile(str(path))).setup("fit")


def test_the_same_samples_in_another_form_are_taken_where_asked(tmp_path):
    path = make().save_partition(tmp_path / "split.npz")
    inputs, targets = pictures(80)
    rule = FromFile(str(path), check_samples=False)
    data = FederatedDataModule.from_dataset((1 - inputs, targets), partition=rule, seed=0)
    data.setup("fit")
    assert data.partition_hash == make().partition_hash


def test_inputs_may_differ_in_their_last_digits(tmp_path):
    path = make().save_partition(tmp_path / "split.npz")
    inputs, targets = pictures(80)
    data = FederatedDataModule.from_dataset((inputs + 1e-6, targets), partition=FromFile(str(path)), seed=0)
    data.setup("fit")
    assert data.num_clients == 4


def test_a_file_of_an_older_version_knows_the_labels_only(tmp_path):
    data = make()
    path = save_partition(tmp_path / "split.npz", data._dealt, data._loaded.labels)
    other = FederatedDataModule.from_dataset(pictures(80, seed=100), partition=FromFile(str(path)), seed=0)
    other.setup("fit")
    assert other.partition_hash == data.partition_hash


def test_a_partition_without_the_samples_that_a_method_gives_to_the_server_is_refused(tmp_path):
    path = make().save_partition(tmp_path / "split.npz")
    data = make(num_clients=None, partition=FromFile(str(path)))
    with pytest.raises(PartitionError, match=r"here are 64, .*with the same `data\.shared_fraction`"):
        data.share(0.2)


def test_heterogeneity_counts_what_the_clients_hold():
    data = make(partition=ClassesPerClient(classes=1))
    assert data.heterogeneity().emd == pytest.approx(2 * (1 - 1 / 4))
    assert data.heterogeneity().counts.tolist() == data.label_counts().tolist()
