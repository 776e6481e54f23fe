import time
import warnings

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flightning.datamodules import partitioners
from flightning.datamodules.partitioners import (
    IID,
    ClassesPerClient,
    Dirichlet,
    DirichletPerClient,
    LongTail,
    MixedSkew,
    Natural,
    Partitioner,
    QuantityBalancedness,
    QuantityDirichlet,
    QuantityLognormal,
    QuantityPowerLaw,
    Shards,
    Similarity,
    SortedMix,
)
from flightning.errors import ConfigurationError, FlightningError, PartitionError
from flightning.functional.heterogeneity import label_counts
from flightning.functional.partition import partition_hash

COMPLETE = [
    IID(),
    IID(stratified=True),
    Dirichlet(alpha=0.3, min_size=0),
    Dirichlet(alpha=0.3, balance=False, shuffle_classes=True, min_size=0),
    DirichletPerClient(alpha=0.1),
    DirichletPerClient(alpha=0.1, sigma=1.0),
    Shards(per_client=1),
    Similarity(similarity=0.3),
    QuantityDirichlet(alpha=0.5, min_size=0),
    QuantityLognormal(sigma=1.0),
    QuantityPowerLaw(exponent=1.0),
    QuantityBalancedness(gamma=0.8),
    SortedMix(sorted_fraction=0.5, low=1, high=1, leftover="fill_smallest"),
    SortedMix(sorted_fraction=0.5, low=1, high=1, leftover="literal"),
]
PARTIAL = [
    ClassesPerClient(classes=1),
    ClassesPerClient(classes=1, assignment="balanced", sigma=1.0),
    MixedSkew(classes=1, min_size=0),
    SortedMix(sorted_fraction=0.5, low=1, high=1),
    LongTail(IID(), imbalance=2.0),
]
DISJOINT = COMPLETE + PARTIAL


def split(partitioner, labels, num_clients, seed, **kwargs):
    with warnings.catch_warnings():
        # few clients leave classes unheld
        warnings.simplefilter("ignore", UserWarning)
        return partitioner(labels, num_clients, seed, **kwargs)


problems = st.tuples(
    st.lists(st.integers(0, 6), min_size=20, max_size=120), st.integers(1, 10), st.integers(0, 2**40)
).map(lambda problem: (np.array(problem[0]), *problem[1:]))
fast = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("partitioner", DISJOINT, ids=str)
@fast
@given(problem=problems)
def test_clients_are_disjoint_and_of_the_number_asked_for(partitioner, problem):
    labels, num_clients, seed = problem
    parts = split(partitioner, labels, num_clients, seed)
    dealt = np.concatenate(parts)
    assert len(parts) == num_clients
    assert all(part.dtype == np.int64 for part in parts)
    assert len(np.unique(dealt)) == len(dealt)
    assert dealt.min() >= 0
    assert dealt.max() < len(labels)


@pytest.mark.parametrize("partitioner", COMPLETE, ids=str)
@fast
@given(problem=problems)
def test_every_sample_is_dealt(partitioner, problem):
    labels, num_clients, seed = problem
    assert sum(len(part) for part in split(partitioner, labels, num_clients, seed)) == len(labels)


@pytest.mark.parametrize("partitioner", DISJOINT, ids=str)
@fast
@given(problem=problems)
def test_same_seed_same_partition_whatever_the_global_generator(partitioner, problem):
    np.random.seed(0)
    first = partition_hash(split(partitioner, *problem))
    np.random.seed(1)
    assert partition_hash(split(partitioner, *problem)) == first


@pytest.mark.parametrize("partitioner", [p for p in DISJOINT if "low=1" not in str(p)], ids=str)
def test_another_seed_gives_another_partition(partitioner):
    labels = np.repeat(np.arange(10), 50)
    assert partition_hash(split(partitioner, labels, 5, 0)) != partition_hash(split(partitioner, labels, 5, 1))


@pytest.mark.parametrize("partitioner", DISJOINT, ids=str)
def test_labels_need_not_start_at_zero_nor_be_dense(partitioner):
    labels = np.repeat([7, -3, 100, 4], 30)
    dense = np.unique(labels, return_inverse=True)[1]
    assert partition_hash(split(partitioner, labels, 4, 0)) == partition_hash(split(partitioner, dense, 4, 0))


@fast
@given(problem=problems)
def test_local_test_sets_are_disjoint_and_hold_only_trained_classes(problem):
    labels, num_clients, seed = problem
    rule = Dirichlet(alpha=0.3, min_size=0)
    parts = split(rule, labels, num_clients, seed)
    test_parts = rule.split_test(labels, parts, labels, seed)
    dealt = np.concatenate(test_parts)
    assert len(np.unique(dealt)) == len(dealt)
    # on the training labels themselves the shares come out exactly
    assert label_counts(labels, test_parts, 7).tolist() == label_counts(labels, parts, 7).tolist()


@fast
@given(problem=problems, alpha=st.floats(0.05, 10), min_size=st.integers(0, 5))
def test_dirichlet_keeps_min_size_or_refuses(problem, alpha, min_size):
    labels, num_clients, seed = problem
    try:
        parts = Dirichlet(alpha=alpha, min_size=min_size)(labels, num_clients, seed)
    except PartitionError as error:
        assert "lower `min_size`" in str(error)  # noqa: PT017
        assume(False)
    assert min(len(part) for part in parts) >= min_size


@pytest.mark.parametrize(
    "partitioner",
    [
        IID(),
        Dirichlet(alpha=0.5, min_size=0),
        DirichletPerClient(alpha=0.3),
        Shards(per_client=2),
        ClassesPerClient(classes=2),
        Similarity(similarity=0.1),
        QuantityLognormal(sigma=1.0),
        SortedMix(sorted_fraction=0.5, low=1, high=8),
        MixedSkew(min_size=0),
        LongTail(Dirichlet(min_size=0), imbalance=5.0),
    ],
    ids=str,
)
def test_a_hundred_thousand_clients_take_seconds(partitioner):
    labels = np.random.default_rng(0).integers(0, 10, 1_000_000)
    start = time.perf_counter()
    parts = partitioner(labels, 100_000, seed=0)
    assert len(parts) == 100_000
    assert time.perf_counter() - start < 10


def test_hopeless_requests_of_many_clients_fail_in_seconds():
    labels = np.random.default_rng(0).integers(0, 10, 1_000_000)
    start = time.perf_counter()
    with pytest.raises(PartitionError, match="raise `alpha`"):
        Dirichlet(alpha=0.5)(labels, 100_000, seed=0)
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize(
    ("partitioner", "shown"),
    [
        (IID(), "IID()"),
        (IID(stratified=True), "IID(stratified=True)"),
        (Dirichlet(), "Dirichlet(alpha=0.5)"),
        (Dirichlet(0.1, min_size=1), "Dirichlet(alpha=0.1, min_size=1)"),
        (Shards(), "Shards(per_client=2)"),
        (ClassesPerClient(3), "ClassesPerClient(classes=3)"),
        (Similarity(0.0), "Similarity(similarity=0.0)"),
        (LongTail(Shards(), imbalance=50), "LongTail(inner=Shards(per_client=2), imbalance=50)"),
        (Natural(grouping="largest"), "Natural(min_samples=1, grouping='largest')"),
    ],
)
def test_representation_for_tables_and_run_names(partitioner, shown):
    assert repr(partitioner) == shown


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dirichlet(alpha=0), "`alpha` must be > 0 and finite, got 0: use"),
        (lambda: Dirichlet(alpha=float("nan")), "`alpha` must be > 0 and finite, got nan"),
        (lambda: Dirichlet(min_size=-1), "`min_size` must be >= 0, got -1"),
        (lambda: DirichletPerClient(alpha=-1), "`alpha` must be > 0 and finite, got -1"),
        (lambda: DirichletPerClient(sigma=-1), "`sigma` must be >= 0 and finite, got -1"),
        (lambda: Shards(per_client=0), "`per_client` must be >= 1, got 0"),
        (lambda: ClassesPerClient(classes=0), "`classes` must be >= 1, got 0"),
        (lambda: ClassesPerClient(assignment="x"), "`assignment` must be one of random, balanced, .* got 'x'"),
        (lambda: ClassesPerClient(sigma=-1), "`sigma` must be >= 0 and finite, got -1"),
        (lambda: ClassesPerClient(least=-1), "`least` must be >= 0, got -1"),
        (lambda: Similarity(10), r"`similarity` must lie in \[0, 1\], got 10: write 10 % as 0.1"),
        (lambda: SortedMix(sorted_fraction=2), r"`sorted_fraction` must lie in \[0, 1\], got 2"),
        (lambda: SortedMix(low=0), "`low` must be >= 1, got 0"),
        (lambda: SortedMix(low=10, high=5), "`high` must be at least `low` = 10, got 5"),
        (lambda: SortedMix(leftover="keep"), "`leftover` must be one of drop, literal, fill_smallest, got 'keep'"),
        (lambda: QuantityDirichlet(alpha=0), "`alpha` must be > 0 and finite, got 0"),
        (lambda: QuantityDirichlet(min_size=-1), "`min_size` must be >= 0, got -1"),
        (lambda: QuantityLognormal(sigma=float("inf")), "`sigma` must be >= 0 and finite, got inf"),
        (lambda: QuantityPowerLaw(exponent=-1), "`exponent` must be >= 0 and finite, got -1"),
        (lambda: QuantityBalancedness(gamma=1.5), r"`gamma` must lie in \(0, 1\], got 1.5"),
        (lambda: QuantityBalancedness(alpha=2), r"`alpha` must lie in \[0, 1\], got 2"),
        (lambda: MixedSkew(classes=0), "`classes` must be >= 1, got 0"),
        (lambda: MixedSkew(alpha=0), "`alpha` must be > 0 and finite, got 0"),
        (lambda: LongTail(imbalance=0.5), "`imbalance` must be >= 1 and finite, got 0.5"),
        (lambda: Natural(min_samples=0), "`min_samples` must be >= 1, got 0"),
        (lambda: Natural(grouping="x"), "`grouping` must be one of group, largest, random, got 'x'"),
    ],
)
def test_bad_settings_are_refused_at_once(build, message):
    with pytest.raises(ConfigurationError, match=message):
        build()


@pytest.mark.parametrize(
    ("labels", "num_clients", "message"),
    [
        (np.zeros(5, dtype=int), 6, r"more clients than samples \(6 > 5\): lower `num_clients` to at most 5"),
        (np.zeros(5, dtype=int), 0, "`num_clients` must be at least 1, got 0"),
        (np.zeros(5), 2, "`labels` must be integers, got float64: encode the classes"),
        (np.array(["a", "b"]), 2, "`labels` must be integers, got <U1"),
        (np.zeros((5, 2), dtype=int), 2, r"one label for each sample, got shape \(5, 2\)"),
        (np.zeros(0, dtype=int), 2, r"one label for each sample, got shape \(0,\)"),
        (np.zeros(5, dtype=int), None, r"`IID\(\)` does not know the number of clients: set `num_clients`"),
    ],
)
def test_data_that_cannot_be_dealt_is_refused(labels, num_clients, message):
    with pytest.raises(PartitionError, match=message):
        IID()(labels, num_clients, seed=0)


class Broken(Partitioner):
    def __init__(self, parts):
        self.parts = [np.array(part) for part in parts]

    def split(self, labels, num_clients, rng):
        return self.parts


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0]], "made 1 parts for 2 clients"),
        ([[0], [4]], "dealt indices outside 0 to 3"),
        ([[0], [-1]], "dealt indices outside 0 to 3"),
        ([[0, 1], [1]], "gave a sample to two clients: deal each once"),
    ],
)
def test_rules_of_users_are_checked(parts, message):
    with pytest.raises(PartitionError, match=message):
        Broken(parts)(np.zeros(4, dtype=int), 2, seed=0)


def test_overlap_is_allowed_where_the_rule_says_so():
    rule = SortedMix(sorted_fraction=0.0, low=15, high=15, overlap=True)
    parts = rule(np.zeros(20, dtype=int), 4, seed=0)
    assert [len(part) for part in parts] == [15] * 4


def test_a_sorted_mix_that_leaves_classes_out_says_so():
    labels = np.repeat(np.arange(10), 100)
    # 5 clients take 20 samples each from the front of the sorted list, which is class 0
    with pytest.warns(UserWarning, match=r"No client holds 9 of 10 classes.*`leftover: fill_smallest`"):
        SortedMix(sorted_fraction=1.0, low=20, high=20)(labels, 5, seed=0)


def test_a_sorted_mix_with_all_classes_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SortedMix(sorted_fraction=0.5, low=20, high=20, leftover="fill_smallest")(
            np.repeat(np.arange(10), 100), 5, seed=0
        )


def test_natural_finds_the_number_of_clients_and_keeps_ids_together():
    ids = np.array(["ann", "bob", "ann", "cid", "bob", "ann"])
    rule = Natural(min_samples=2)
    assert rule.count_clients(ids) == 2
    parts = rule(np.zeros(6, dtype=int), None, seed=0, ids=ids)
    assert [sorted(part.tolist()) for part in parts] == [[0, 2, 5], [1, 4]]


def test_natural_without_ids_names_the_remedy():
    with pytest.raises(PartitionError, match="`Natural` needs the natural id of each sample: choose a data set with"):
        Natural()(np.zeros(6, dtype=int), 2, seed=0)


def test_ids_of_another_length_are_refused():
    with pytest.raises(PartitionError, match="There are 3 `ids` for 6 `labels`"):
        Natural()(np.zeros(6, dtype=int), 2, seed=0, ids=[1, 2, 3])


def test_long_tail_hands_ids_to_the_inner_rule():
    labels, ids = np.repeat([0, 1], 20), np.tile(np.arange(4), 10)
    parts = LongTail(Natural(), imbalance=4.0)(labels, 4, seed=0, ids=ids)
    assert all(len(set(ids[part].tolist())) == 1 for part in parts)
    # 20 samples of class 0 and 20 / 4 of class 1 are left
    assert np.bincount(labels[np.concatenate(parts)]).tolist() == [20, 5]


def test_long_tail_that_leaves_too_little_is_refused():
    with pytest.raises(PartitionError, match=r"`imbalance` = 10.0 keeps 11 of 20 samples.*lower `imbalance`"):
        LongTail(IID())(np.repeat([0, 1], 10), 15, seed=0)


def every_rule():
    return [name for name in partitioners.__all__ if isinstance(getattr(partitioners, name), type)]


@pytest.mark.parametrize("name", every_rule())
def test_every_rule_is_built_from_yaml_by_its_short_name(name):
    if name == "Partitioner":
        return
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_subclass_arguments(Partitioner, "partition")
    extra = {"FromFile": ["--partition.path", "x.npz"], "FlowerPartitioner": ["--partition.rule", "IidPartitioner"]}
    parsed = parser.parse_args(["--partition", name, *extra.get(name, [])])
    assert type(parser.instantiate_classes(parsed).partition).__name__ == name


def test_rules_nest_in_yaml():
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_subclass_arguments(Partitioner, "partition")
    text = "{class_path: LongTail, init_args: {imbalance: 50, inner: {class_path: Dirichlet, init_args: {alpha: 0.1}}}}"
    built = parser.instantiate_classes(parser.parse_object({"partition": yaml.safe_load(text)}))
    assert repr(built.partition) == "LongTail(inner=Dirichlet(alpha=0.1), imbalance=50.0)"


def test_refusals_share_the_base_error():
    with pytest.raises(FlightningError):
        Dirichlet(alpha=-1)
