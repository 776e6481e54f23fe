"""k-means on points with a known answer, and the matching of centroids."""

import math

import pytest
import torch

from flightning.functional.clustering import align, kmeans


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(10))
def test_separated_groups_are_found_from_any_start(seed):
    # Three groups around 0, 100 and 200 of 2, 3 and 4 points: their means are the answer.
    groups = [[-1.0, 1.0], [99.0, 100.0, 101.0], [198.0, 199.0, 201.0, 202.0]]
    x = torch.tensor([[value, 0.0] for group in groups for value in group])
    clusters = kmeans(x, 3, seeded(seed))
    order = clusters.centroids[:, 0].argsort()
    assert torch.equal(clusters.centroids[order], torch.tensor([[0.0, 0.0], [100.0, 0.0], [200.0, 0.0]]))
    assert clusters.counts[order].tolist() == [2, 3, 4]


def test_centroid_is_the_mean_of_its_points_and_counts_add_up():
    x = torch.randn(200, 5, generator=seeded(1))
    clusters = kmeans(x, 4, seeded())
    assert clusters.counts.sum() == 200
    for m in range(4):
        torch.testing.assert_close(clusters.centroids[m], x[clusters.assignments == m].mean(dim=0))
    assert torch.equal(torch.cdist(x, clusters.centroids).argmin(dim=1), clusters.assignments)


def test_one_cluster_is_the_mean():
    x = torch.randn(50, 3, generator=seeded(1))
    torch.testing.assert_close(kmeans(x, 1, seeded()).centroids[0], x.mean(dim=0))


def test_same_generator_same_clusters_and_no_global_randomness():
    x = torch.randn(100, 3, generator=seeded(1))
    before = torch.random.get_rng_state()
    first, second = kmeans(x, 5, seeded(3)), kmeans(x, 5, seeded(3))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(before, torch.random.get_rng_state())


def test_fewer_points_than_clusters_are_the_centroids():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    clusters = kmeans(x, 4, seeded())
    assert torch.equal(clusters.centroids, torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]]))
    assert clusters.counts.tolist() == [1, 1, 0, 0]
    assert clusters.assignments.tolist() == [0, 1]


def test_no_points_leave_all_slots_empty():
    clusters = kmeans(torch.zeros(0, 3), 2, seeded())
    assert torch.equal(clusters.centroids, torch.zeros(2, 3))
    assert clusters.counts.tolist() == [0, 0]


def test_fewer_distinct_points_than_clusters():
    x = torch.tensor([[1.0], [1.0], [1.0], [5.0], [5.0]])
    clusters = kmeans(x, 4, seeded())
    assert sorted(clusters.counts.tolist()) == [0, 0, 2, 3]
    assert clusters.counts[2:].tolist() == [0, 0]
    assert sorted(clusters.centroids[:2].flatten().tolist()) == [1.0, 5.0]


def test_iterations_bound_the_updates():
    x = torch.randn(300, 2, generator=seeded(1))

    def spread(iterations):
        clusters = kmeans(x, 8, seeded(), iterations)
        return (x - clusters.centroids[clusters.assignments]).square().sum()

    assert spread(1) > spread(100)


def test_features_are_read_without_a_graph_and_in_single_precision():
    x = torch.randn(20, 3, generator=seeded(1)).bfloat16().requires_grad_()
    clusters = kmeans(x, 2, seeded())
    assert clusters.centroids.dtype == torch.float32
    assert not clusters.centroids.requires_grad


@pytest.mark.parametrize(("k", "iterations"), [(0, 10), (2, 0)])
def test_no_clusters_or_iterations_are_refused(k, iterations):
    with pytest.raises(ValueError, match=f"must be >= 1, got {k} and {iterations}"):
        kmeans(torch.zeros(3, 2), k, seeded(), iterations)


def test_align_undoes_a_permutation_whatever_the_lengths():
    reference = torch.randn(5, 8, generator=seeded(1))
    shuffled = torch.tensor([3, 0, 4, 1, 2])
    centroids = reference[shuffled] * torch.tensor([1.0, 2.0, 0.1, 5.0, 3.0])[:, None]
    torch.testing.assert_close(align(reference, centroids), shuffled.argsort())


def test_align_maximises_the_sum_and_not_each_pair():
    # Angles of the reference 0 and 40 degrees, of the centroids 30 and 90 degrees. Greedy pairs 40 with 30 (cosine
    # .985) and leaves 0 with 90 (0): .985. The best sum is 0 with 30 (.866) and 40 with 90 (.643).
    def at(*degrees):
        return torch.tensor([[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees])

    assert align(at(0, 40), at(90, 30)).tolist() == [1, 0]


def test_align_of_different_shapes_is_refused():
    with pytest.raises(ValueError, match=r"got \(2, 3\) and \(3, 3\)"):
        align(torch.zeros(2, 3), torch.zeros(3, 3))
