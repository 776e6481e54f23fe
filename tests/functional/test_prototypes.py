import math

import pytest
import torch

from flightning.errors import ConfigurationError
from flightning.functional.prototypes import (
    adaptive_row_weights,
    align_prototypes,
    assign,
    class_means,
    cluster_means,
    count_row_weights,
    initial_prototypes,
    pool_prototypes,
    read_out,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded():
    return torch.Generator().manual_seed(0)


def test_readouts_by_hand():
    x = torch.tensor([[1.0, 3.0, 0.0, 4.0]])
    assert read_out(x, 2).tolist() == [[4.0, 4.0]]
    assert read_out(x, 2, "logit_mean").tolist() == [[2.0, 2.0]]
    expected = [math.log(math.e + math.exp(3)), math.log(1 + math.exp(4))]
    assert read_out(x, 2, "prob_sum")[0].tolist() == pytest.approx(expected)


def test_prob_sum_is_the_sum_of_fine_probabilities():
    x = normal(5, 6)
    torch.testing.assert_close(read_out(x, 3, "prob_sum").softmax(1), x.softmax(1).view(5, 2, 3).sum(2))


@pytest.mark.parametrize("how", ["logit_sum", "logit_mean", "prob_sum"])
def test_readout_does_not_depend_on_the_order_within_a_class(how):
    x = normal(4, 6)
    torch.testing.assert_close(read_out(x, 3, how), read_out(x[:, [2, 0, 1, 4, 5, 3]], 3, how))


def test_only_prob_sum_gives_rows_of_a_class_different_gradients():
    for how, same in (("logit_sum", True), ("prob_sum", False)):
        x = normal(3, 4).requires_grad_()
        read_out(x, 2, how)[:, 0].square().sum().backward()
        assert torch.allclose(x.grad[:, 0], x.grad[:, 1]) == same


def test_unknown_readout_is_refused():
    with pytest.raises(ConfigurationError, match=r"`readout='max'` must be one of `logit_sum`"):
        read_out(torch.zeros(1, 2), 2, "max")


def test_assignment_by_angle_and_by_distance_differ():
    prototypes = torch.tensor([[[0.1, 0.0], [3.0, 3.0]]])
    z, y = torch.tensor([[2.0, 1.5]]), torch.tensor([0])
    assert assign(z, y, prototypes).item() == 1
    assert assign(torch.tensor([[0.3, 0.2]]), y, prototypes, cosine=False).item() == 0


def test_assignment_leaves_out_prototypes_that_were_never_set():
    prototypes = torch.zeros(1, 3, 2)
    prototypes[0, 2] = torch.tensor([-1.0, 0.0])
    assert assign(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), prototypes).item() == 2


def test_means_by_class_and_by_fine_class():
    x, y, t = torch.tensor([[1.0], [3.0], [8.0]]), torch.tensor([2, 2, 0]), torch.tensor([0, 1, 1])
    means, counts = class_means(x, y, 3)
    assert means.flatten().tolist() == [8.0, 0.0, 2.0]
    assert counts.tolist() == [1, 0, 2]
    means, counts = cluster_means(x, y, t, torch.Size([3, 2, 1]))
    assert means.flatten().tolist() == [0, 8, 0, 0, 1, 3]
    assert counts.tolist() == [[0, 1], [0, 0], [1, 1]]


def test_start_uses_samples_as_centroids_where_there_are_too_few():
    x, y = torch.tensor([[1.0], [5.0], [2.0]]), torch.tensor([0, 0, 2])
    prototypes, counts = initial_prototypes(x, y, 3, 3, seeded())
    assert prototypes[0].flatten().tolist() == [1, 5, 0]
    assert counts.tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 0]]


def test_start_can_repeat_centroids():
    x, y = torch.tensor([[1.0], [5.0]]), torch.tensor([0, 0])
    prototypes, counts = initial_prototypes(x, y, 1, 3, seeded(), fill=True)
    assert prototypes.flatten().tolist() == [1, 5, 1]
    assert counts.tolist() == [[1, 1, 1]]


def test_hungarian_alignment_undoes_a_permutation():
    p = normal(1, 2, 3, 5)
    both = torch.cat([p, p[:, :, [2, 0, 1]]])
    counts = torch.tensor([[[4.0, 5, 6]] * 2, [[3.0, 1, 2]] * 2])
    aligned, numbers = align_prototypes(both, counts, "hungarian", seeded())
    torch.testing.assert_close(aligned[1], aligned[0])
    assert numbers[1].tolist() == [[1, 2, 3]] * 2


def test_the_client_with_most_samples_of_a_class_gives_the_order():
    p = torch.eye(2, dtype=torch.float64)
    both = torch.stack([p, p.flip(0)])[:, None]
    aligned, _ = align_prototypes(both, torch.tensor([[[1.0, 1.0]], [[5.0, 5.0]]]), "hungarian", seeded())
    assert torch.equal(aligned[0, 0], p.flip(0))
    assert torch.equal(aligned[1, 0], p.flip(0))


def test_index_alignment_changes_nothing():
    p, n = normal(2, 2, 3, 4), torch.ones(2, 2, 3)
    aligned, counts = align_prototypes(p, n, "index", seeded())
    assert torch.equal(aligned, p)
    assert torch.equal(counts, n)


def test_kmeans_alignment_weighs_uploads_by_counts():
    # one class, M = 1: the centroid of all uploads by count, (1 * 2 + 3 * 6) / 4
    p, n = torch.tensor([2.0, 6.0]).view(2, 1, 1, 1), torch.tensor([1.0, 3.0]).view(2, 1, 1)
    pooled, counts = align_prototypes(p, n, "kmeans", seeded())
    assert pooled.shape == (1, 1, 1, 1)
    assert pooled.item() == pytest.approx(5.0)
    assert counts.item() == 4


def test_pooling_is_the_mean_by_samples_and_keeps_what_nobody_saw():
    p = torch.tensor([[[[1.0], [7.0]]], [[[4.0], [9.0]]]])
    n = torch.tensor([[[1.0, 0.0]], [[2.0, 0.0]]])
    assert pool_prototypes(p, n, torch.full((1, 2, 1), -5.0)).flatten().tolist() == [3.0, -5.0]


def test_a_client_without_a_class_does_not_move_its_prototypes():
    p, n = normal(2, 1, 2, 3), torch.tensor([[[2.0, 1.0]], [[0.0, 0.0]]]).double()
    torch.testing.assert_close(pool_prototypes(p, n, torch.zeros(1, 2, 3).double()), p[0])


def test_row_weights_sum_to_one_and_are_bounded_by_e():
    weights = adaptive_row_weights(50 * normal(4, 6, 3), normal(6, 3, seed=1), normal(4, 6, seed=2))
    torch.testing.assert_close(weights.sum(0), torch.ones(6).double())
    assert (weights.max(0).values / weights.min(0).values).max() <= math.e


def test_equal_classifiers_weigh_the_same():
    rows = normal(1, 6, 3).expand(5, 6, 3)
    torch.testing.assert_close(adaptive_row_weights(rows, normal(6, 3)), torch.full((5, 6), 0.2).double())


def test_adaptive_weights_by_hand():
    # two rows, prototypes (1, 0) and (0, 1): q_1 = softmax(a, 0)[0] with rows a I; the second client knows nothing
    rows = torch.stack([2 * torch.eye(2), torch.zeros(2, 2)])
    q = math.exp(2) / (math.exp(2) + 1)
    expected = math.exp(q) / (math.exp(q) + math.exp(0.5))
    assert adaptive_row_weights(rows, torch.eye(2))[0].tolist() == pytest.approx([expected] * 2)


def test_rows_nobody_has_samples_of_are_averaged_equally():
    assert count_row_weights(torch.tensor([[0.0, 1.0], [0.0, 3.0]])).tolist() == [[0.5, 0.25], [0.5, 0.75]]
