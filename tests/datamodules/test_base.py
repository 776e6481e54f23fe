import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from flightning.datamodules import IID, ClassesPerClient, Dirichlet, FederatedDataModule, HorizontalFlip, Natural
from flightning.datamodules.stream import RoundPlan, Visit
from flightning.errors import ConfigurationError, PartitionError

LABELS = torch.arange(60) % 3
INPUTS = torch.arange(60.0)[:, None]


def make(**kwargs):
    options = {"num_clients": 4, "partition": IID(), "batch_size": 4, **kwargs}
    data = FederatedDataModule.from_dataset((INPUTS, LABELS), (INPUTS[:9], LABELS[:9]), **options)
    data.setup("fit")
    return data


def read(data, client, steps=4, round_index=0):
    return [b[0][:, 0].tolist() for b in next(data.visit_batches(RoundPlan(round_index, ()), [Visit(client, steps)]))]


# --- who owns what ------------------------------------------------------------------------------------------------


def test_shape_and_number_of_classes_come_from_the_samples():
    data = make()
    assert (data.num_classes, data.input_shape) == (3, (1,))


def test_same_seed_same_partition():
    assert make(seed=1).partition_hash == make(seed=1).partition_hash != make(seed=2).partition_hash


def test_more_clients_than_samples_are_refused():
    with pytest.raises(
        PartitionError, match=r"more clients than samples \(61 > 60\): lower `num_clients` to at most 60"
    ):
        make(num_clients=61)


@pytest.mark.parametrize("alpha", [0, -0.5])
def test_alpha_must_be_positive(alpha):
    with pytest.raises(ConfigurationError, match=rf"`alpha` must be > 0 and finite, got {alpha}: use 0.1"):
        Dirichlet(alpha=alpha)


def test_empty_clients_are_allowed_with_a_warning():
    class Greedy(IID):
        def split(self, labels, num_clients, rng):
            return [np.arange(len(labels)), *[np.arange(0)] * (num_clients - 1)]

    with pytest.warns(
        UserWarning, match=r"3 of 4 clients have no samples and are never sampled \(first: client 1\): lower"
    ):
        make(partition=Greedy())


def test_from_clients_deals_as_told():
    pairs = [(torch.full((n, 2), float(n)), torch.full((n,), n % 2)) for n in (3, 1, 2)]
    data = FederatedDataModule.from_clients(pairs, batch_size=8, shuffle=False)
    data.setup("fit")
    assert data.sizes.tolist() == [3, 1, 2]
    assert [read(data, c, steps=1)[0] for c in range(3)] == [[3.0] * 3, [1.0], [2.0] * 2]


def test_given_clients_keep_their_order_unless_it_is_to_be_sorted():
    pairs = [(torch.arange(4.0)[:, None], torch.tensor([1, 0, 1, 0]))] * 2
    for order, expected in (("shuffled_once", [0, 1, 2, 3]), ("class_sorted", [1, 3, 0, 2])):
        data = FederatedDataModule.from_clients(pairs, batch_size=4, shuffle=False, stored_order=order)
        data.setup("fit")
        assert read(data, 1, steps=1) == [expected]


def test_no_clients_are_refused():
    with pytest.raises(ConfigurationError, match=r"there are no clients: give `from_clients` a pair of tensors"):
        FederatedDataModule.from_clients([])


def test_data_sets_as_clients_are_refused_and_can_be_joined_as_the_message_says():
    whole = TensorDataset(INPUTS, LABELS)
    sets = [Subset(whole, range(20)), Subset(whole, range(20, 60))]
    with pytest.raises(ConfigurationError, match=r"client 0 is a `Subset`, .*join data sets, `from_dataset\("):
        FederatedDataModule.from_clients(sets)
    ids = [number for number, own in enumerate(sets) for _ in own]
    data = FederatedDataModule.from_dataset(ConcatDataset(sets), labels=LABELS, ids=ids, partition=Natural())
    data.setup("fit")
    assert data.sizes.tolist() == [20, 40]


def test_label_counts():
    counts = make(partition=ClassesPerClient(1)).label_counts()
    assert counts.shape == (4, 3)
    assert ((counts > 0).sum(axis=1) == 1).all()


@pytest.mark.parametrize("name", ["num_clients", "batch_size", "eval_batch_size"])
def test_sizes_must_be_positive(name):
    with pytest.raises(ConfigurationError, match=f"`{name}=0` must be at least 1"):
        make(**{name: 0})


@pytest.mark.parametrize("name", ["val_fraction", "shared_fraction"])
@pytest.mark.parametrize("value", [1.0, -0.1])
def test_fractions_must_lie_below_one(name, value):
    with pytest.raises(ConfigurationError, match=rf"`{name}={value}` must lie in \[0, 1\)"):
        make(**{name: value})


def test_more_classes_than_declared_are_refused():
    with pytest.raises(ConfigurationError, match=r"label 2, but `num_classes=2`: labels count from 0"):
        make(num_classes=2)


def test_no_samples_at_all_are_refused():
    with pytest.raises(ConfigurationError, match="no training samples"):
        FederatedDataModule.from_dataset((INPUTS[:0], LABELS[:0]))


def test_stored_order_is_checked():
    with pytest.raises(
        ConfigurationError, match="`stored_order='sorted'` must be one of `shuffled_once`, `class_sorted`"
    ):
        make(stored_order="sorted")


def test_a_subclass_without_load_says_so():
    class Empty(FederatedDataModule):
        pass

    with pytest.raises(TypeError, match="`Empty` must define `load`"):
        Empty().setup("fit")


def test_a_subclass_of_a_few_lines():
    class Ramp(FederatedDataModule):
        num_classes, input_shape = 3, (1,)

        def load(self):
            return (INPUTS, LABELS), None

    data = Ramp(num_clients=5)
    data.setup("fit")
    assert data.sizes.sum() == 60
    assert data.test_dataloader() == []


# --- samples that no client owns ------------------------------------------------------------------------------------


def test_validation_samples_are_kept_away_from_all_clients():
    data = make(val_fraction=0.1)
    assert len(data.validation) == 6
    assert sorted(np.concatenate([*data.parts, data.validation])) == list(range(60))
    seen = [x for batch in data.val_dataloader() for x in batch[0][:, 0].tolist()]
    assert sorted(seen) == sorted(data.validation.tolist())


def test_without_validation_samples_the_test_set_is_used():
    data = make()
    assert [b[0].tolist() for b in data.val_dataloader()] == [b[0].tolist() for b in data.test_dataloader()]


def test_shared_samples_are_equal_over_classes_and_owned_by_the_server():
    data = make(shared_fraction=0.1, val_fraction=0.1)
    assert len(data.shared) == 6  # round(0.1 * 54 / 3) = 2 of each class
    assert np.bincount(LABELS[data.shared]).tolist() == [2, 2, 2]
    everything = np.concatenate([*data.parts, data.validation, data.shared])
    assert sorted(everything) == list(range(60))


def test_samples_given_to_a_client_replace_those_given_before():
    data = make(shared_fraction=0.2)
    own = data.parts[1].copy()
    data.give(1, data.shared[:4])
    data.give(1, data.shared[:2])
    assert data.parts[1].tolist() == [*own, *data.shared[:2]]
    assert data.sizes[1] == len(own) + 2


def test_pooling_keeps_every_sample_once():
    data = make()
    data.pool()
    assert data.num_clients == 1
    assert data.parts[0].tolist() == list(range(60))


# --- the batches of a client ----------------------------------------------------------------------------------------


def test_shuffled_passes_are_new_in_every_round_and_the_same_for_the_same_round():
    data = make()
    assert read(data, 0, round_index=0) == read(data, 0, round_index=0) != read(data, 0, round_index=1)


def test_clients_have_their_own_order_whoever_trained_before():
    data = make()
    alone = read(data, 2)
    read(data, 0)
    assert read(data, 2) == alone


def test_stored_order_is_kept_without_shuffling():
    data = make(shuffle=False)
    assert [x for batch in read(data, 3, steps=4) for x in batch] == [float(i) for i in data.parts[3]]
    assert read(data, 3, round_index=0) == read(data, 3, round_index=5)


def test_class_sorted_order_can_be_trained_on_as_stored():
    data = make(stored_order="class_sorted", shuffle=False, batch_size=5)
    labels = [int(x) % 3 for batch in read(data, 0, steps=3) for x in batch]
    assert labels == sorted(labels) == [0] * labels.count(0) + [1] * labels.count(1) + [2] * labels.count(2)


def test_class_sorted_order_is_random_within_a_class():
    part = make(stored_order="class_sorted").parts[0]
    within = part[LABELS[part].numpy() == 0]
    assert within.tolist() != sorted(within)


def test_augmentation_draws_from_the_clients_own_generator():
    pictures = torch.arange(2.0)[None, None, None].repeat(40, 1, 1, 1)
    data = FederatedDataModule.from_dataset(
        (pictures, torch.zeros(40, dtype=torch.long)), num_clients=2, partition=IID(), augment=[HorizontalFlip(0.5)]
    )
    data.setup("fit")

    def flips(round_index):
        batches = next(data.visit_batches(RoundPlan(round_index, ()), [Visit(0, 1)]))
        return [b[0][:, 0, 0, 0].tolist() for b in batches]

    assert flips(0) == flips(0) != flips(1)


def test_evaluation_is_not_augmented():
    pictures = torch.arange(2.0)[None, None, None].repeat(40, 1, 1, 1)
    pair = pictures, torch.zeros(40, dtype=torch.long)
    data = FederatedDataModule.from_dataset(pair, pair, partition=IID(), augment=[HorizontalFlip(1.0)])
    data.setup("fit")
    for batch in [*data.val_dataloader(), *data.client_batches(0)]:
        assert batch[0][:, 0, 0, 0].max() == 0


def test_augmenting_what_is_no_pair_is_refused():
    class Dicts(Dataset):
        labels = tuple(range(2)) * 5

        def __len__(self):
            return 10

        def __getitem__(self, index):
            return {"x": torch.zeros(1)}

    data = FederatedDataModule.from_dataset(Dicts(), num_clients=2, partition=IID(), augment=[HorizontalFlip()])
    data.setup("fit")
    with pytest.raises(
        ConfigurationError, match=r"`augment` changes the inputs of `\(inputs, targets\)` batches.*`dict`"
    ):
        next(next(data.visit_batches(RoundPlan(0, ()), [Visit(0, 1)])))


def test_clients_are_evaluated_on_all_their_samples_in_stored_order():
    data = make(eval_batch_size=6)
    seen = [x for batch in data.client_batches(1) for x in batch[0][:, 0].tolist()]
    assert seen == [float(i) for i in data.parts[1]]


def test_streaming_without_a_round_engine_is_refused():
    with pytest.raises(ConfigurationError, match=r"no round engine asks for them: add `Federation\(\)`"):
        make().train_dataloader()


# --- evaluation by several processes ----------------------------------------------------------------------------------


def evaluated(loader):
    return sum(len(targets) for _, targets in loader)


def test_processes_share_an_evaluation_and_each_predicts_everything():
    data = make(eval_batch_size=2)
    parts = []
    for rank in range(2):
        data.evaluation_shard = (rank, 2)
        loader = data.test_dataloader()
        assert loader.is_shared
        parts.append(evaluated(loader))
        assert evaluated(data.predict_dataloader()) == 9
        assert data.evaluation_shard == (rank, 2)
    assert sum(parts) == 9


def test_a_test_set_smaller_than_the_number_of_processes_is_not_shared():
    data = make()
    data.evaluation_shard = (1, 10)
    loader = data.test_dataloader()
    assert evaluated(loader) == 9
    assert not loader.is_shared
