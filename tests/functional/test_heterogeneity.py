import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flightning.datamodules.partitioners import (
    IID,
    ClassesPerClient,
    Dirichlet,
    DirichletPerClient,
    Shards,
    Similarity,
)
from flightning.functional.heterogeneity import (
    earth_mover_distance,
    effective_classes,
    feature_shift,
    gini,
    hellinger,
    jensen_shannon,
    label_counts,
    label_divergence,
    summarize,
)

LABELS = np.repeat(np.arange(10), 5000)


def mean_of(partitioner, num_clients, seeds=5):
    """Mean EMD, JS / log C, effective classes and classes held over some seeds."""
    summaries = [summarize(LABELS, partitioner(LABELS, num_clients, seed)) for seed in range(seeds)]
    return np.mean([(s.emd, s.jensen_shannon, s.effective_classes, s.classes_held) for s in summaries], axis=0)


# columns: EMD, JS / log C, effective classes, classes held (10 balanced classes of 5000)
@pytest.mark.parametrize(
    ("partitioner", "num_clients", "emd", "js", "effective", "held"),
    [
        (IID(), 10, 0.03, 0.000, 9.99, 10),
        (IID(), 100, 0.11, 0.004, 9.91, 10),
        (Dirichlet(5.0), 10, 0.35, 0.047, 9.0, 9.7),
        (Dirichlet(5.0), 100, 0.37, 0.054, 8.9, 9.7),
        (Dirichlet(0.5), 10, 0.94, 0.286, 5.3, 8.8),
        (Dirichlet(0.5), 100, 1.04, 0.355, 4.8, 8.1),
        (Dirichlet(0.5, balance=False), 10, 0.83, 0.221, 6.0, 9.9),
        (Dirichlet(0.5, balance=False), 100, 0.91, 0.274, 5.4, 9.2),
        (Dirichlet(0.1), 10, 1.39, 0.58, 2.8, 5.8),
        (Dirichlet(0.1), 100, 1.54, 0.74, 2.2, 4.2),
        (DirichletPerClient(0.6), 10, 0.77, 0.197, 6.4, 9.8),
        (DirichletPerClient(0.6), 100, 0.84, 0.232, 5.9, 9.5),
        (DirichletPerClient(0.3), 10, 0.97, 0.296, 5.2, 9.3),
        (DirichletPerClient(0.3), 100, 1.04, 0.352, 4.6, 8.3),
        (Shards(2), 10, 1.61, 0.72, 1.9, 1.9),
        (Shards(2), 100, 1.62, 0.73, 1.9, 1.9),
        (Similarity(0.0), 100, 1.80, 1.00, 1.0, 1),
        (Similarity(0.1), 100, 1.61, 0.78, 1.7, 10),
        (ClassesPerClient(1), 100, 1.8, 1.00, 1, 1),
        (ClassesPerClient(2), 100, 1.6, 0.70, 2.0, 2),
        (ClassesPerClient(3), 100, 1.4, 0.53, 3.0, 3),
    ],
    ids=str,
)
def test_reference_table(partitioner, num_clients, emd, js, effective, held):
    # tolerance of the table; its rows of 10 clients are means of 5 seeds with a standard deviation of up to 0.07 each
    # (measured over 100 seeds), so two standard errors of the table itself, 0.06, come on top there
    slack = 0.06 if num_clients == 10 else 0.0
    got = mean_of(partitioner, num_clients, seeds=20 if num_clients == 10 else 3)
    assert got[0] == pytest.approx(emd, abs=0.05 + slack)
    assert got[1] == pytest.approx(js, abs=0.05 + slack)
    assert got[2] == pytest.approx(effective, abs=0.5)
    assert got[3] == pytest.approx(held, abs=0.3 + 10 * slack)


# smallest and largest client of the table (means of 5 seeds), and their standard deviations measured over 20 seeds
@pytest.mark.parametrize(
    ("partitioner", "num_clients", "table", "deviations"),
    [
        (IID(), 10, (5000, 5000), (0, 0)),
        (IID(), 100, (500, 500), (0, 0)),
        (Dirichlet(5.0), 10, (4152, 5778), (190, 300)),
        (Dirichlet(5.0), 100, (367, 609), (23, 21)),
        (Dirichlet(0.5), 10, (2915, 6935), (600, 510)),
        (Dirichlet(0.5), 100, (140, 1001), (33, 140)),
        (Dirichlet(0.5, balance=False), 10, (2558, 8338), (690, 1400)),
        (Dirichlet(0.5, balance=False), 100, (118, 1251), (26, 100)),
        (Dirichlet(0.1), 10, (1571, 8188), (670, 900)),
        (Dirichlet(0.1), 100, (17, 1999), (4.5, 390)),
        (DirichletPerClient(0.6), 100, (500, 500), (0, 0)),
        (Shards(2), 100, (500, 500), (0, 0)),
        (Similarity(0.1), 100, (500, 500), (0, 0)),
    ],
    ids=str,
)
def test_sizes_of_the_reference_table(partitioner, num_clients, table, deviations):
    sizes = [[len(part) for part in partitioner(LABELS, num_clients, seed)] for seed in range(10)]
    got = np.mean([(min(own), max(own)) for own in sizes], axis=0)
    # difference of a mean of 10 and one of 5: two and a half standard errors
    allowed = 2.5 * np.array(deviations) * np.sqrt(1 / 5 + 1 / 10)
    assert np.all(np.abs(got - table) <= allowed)


def test_unbalanced_dirichlet_has_the_distance_of_its_shares():
    # the same metric on the bare shares of 10 clients in 10 classes, without any samples
    rng = np.random.default_rng(0)
    tables = [rng.dirichlet(np.full(10, 0.5), 10).T for _ in range(2000)]
    clients = [table / table.sum(axis=1, keepdims=True) for table in tables]
    sizes = [table.sum(axis=1) / 10 for table in tables]
    expected = np.mean([w @ np.abs(p - 0.1).sum(axis=1) for p, w in zip(clients, sizes, strict=True)])
    assert mean_of(Dirichlet(0.5, balance=False), 10, seeds=200)[0] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("assignment", ["random", "balanced", "consecutive", "blocks"])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_classes_per_client_has_the_exact_distance(classes, assignment):
    # a client with c of C equally frequent classes, at least 1/C of each, in a balanced pool:
    # (C - c) / C over the classes it lacks and as much over those it holds
    parts = ClassesPerClient(classes, assignment)(LABELS, 100, seed=0)
    assert summarize(LABELS, parts).emd == pytest.approx(2 * (1 - classes / 10))


def test_skew_falls_as_alpha_grows():
    distances = [mean_of(Dirichlet(alpha), 20, seeds=3)[0] for alpha in (0.1, 0.5, 1.0, 5.0, 100.0)]
    assert distances == sorted(distances, reverse=True)


def test_counts_of_clients_and_classes():
    counts = label_counts(np.array([2, 0, 2, 1]), [np.array([0, 2]), np.array([], dtype=int), np.array([1])], 4)
    assert counts.tolist() == [[0, 0, 2, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


def test_hand_computed_metrics():
    # clients (3, 1) and (1, 3): p = 1/2, distances |3/4 - 1/2| + |1/4 - 1/2| = 1/2 each
    counts = np.array([[3, 1], [1, 3]])
    assert earth_mover_distance(counts).tolist() == [0.5, 0.5]
    entropy = -(0.75 * np.log2(0.75) + 0.25 * np.log2(0.25))
    assert jensen_shannon(counts) == pytest.approx(1 - entropy)
    assert effective_classes(counts)[0] == pytest.approx(2**entropy)
    # Hellinger: 1 - 2 sqrt(3)/4, root
    assert hellinger(counts)[0, 1] == pytest.approx(np.sqrt(1 - np.sqrt(3) / 2))


def test_weights_of_the_pooled_distance_are_the_sizes():
    labels = np.array([0, 0, 0, 1])
    result = summarize(labels, [np.array([0, 1, 2]), np.array([3])])
    # client 0: |1 - 3/4| + 1/4 = 1/2; client 1: 3/4 + 3/4 = 3/2; weights 3/4 and 1/4
    assert result.emd == pytest.approx(0.75 * 0.5 + 0.25 * 1.5)


def test_empty_clients_count_for_nothing():
    labels = np.array([0, 1])
    result = summarize(labels, [np.array([0, 1]), np.array([], dtype=int)])
    assert (result.emd, result.classes_held, result.min_size, result.num_clients) == (0.0, 2.0, 0, 2)
    assert result.client_effective_classes.tolist() == [pytest.approx(2.0), 0.0]


counts_tables = arrays(np.int64, st.tuples(st.integers(1, 8), st.integers(2, 6)), elements=st.integers(0, 50)).filter(
    lambda counts: counts.sum() > 0
)


@given(counts_tables)
def test_metrics_stay_in_their_ranges(counts):
    num_classes = counts.shape[1]
    assert np.all((earth_mover_distance(counts) >= 0) & (earth_mover_distance(counts) <= 2))
    assert -1e-12 <= jensen_shannon(counts) <= 1 + 1e-12
    assert effective_classes(counts).max() <= num_classes + 1e-9
    assert 0 <= gini(counts.sum(axis=1)) < 1


@given(counts_tables)
def test_jensen_shannon_is_the_weighted_mean_of_the_divergences(counts):
    sizes = counts.sum(axis=1)
    assert label_divergence(counts) @ sizes / sizes.sum() == pytest.approx(jensen_shannon(counts), abs=1e-9)


def test_gini_by_pairs():
    # mean absolute difference over twice the mean: sizes 1, 2, 6 -> (1 + 5 + 4) * 2 / 9 / (2 * 3) = 20 / 54
    assert gini([6, 1, 2]) == pytest.approx(20 / 54)


def test_feature_shift_weighs_clients_by_size():
    # pooled mean 0.25; client means 0 and 1, all variances 0, pooled variance 0.1875
    mean, variance = feature_shift([torch.zeros(3, 2, 2), torch.ones(1, 2, 2)])
    assert mean.tolist() == pytest.approx([0.25, 0.75])
    assert variance.tolist() == pytest.approx([0.1875, 0.1875])


def test_summary_as_dict_has_only_numbers():
    table = summarize(LABELS, IID()(LABELS, 10, seed=0)).as_dict()
    assert table["clients"] == 10
    assert table["samples"] == 50_000
    assert table["gini"] == 0.0
    assert all(isinstance(value, (int, float)) for value in table.values())
