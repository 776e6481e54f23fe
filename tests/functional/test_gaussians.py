import pytest
import torch

from flightning.functional.gaussians import ClassStatistics, class_statistics, pool_statistics, sample_features


def draw(n, d=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) @ torch.diag(torch.arange(1.0, d + 1).double())


def test_statistics_are_those_of_torch():
    x, y = draw(20), torch.arange(20) % 2
    counts, means, covariances = class_statistics([(x[:7], y[:7]), (x[7:], y[7:])], 3)
    assert counts.tolist() == [10, 10, 0]
    for c in (0, 1):
        torch.testing.assert_close(means[c], x[y == c].mean(0))
        torch.testing.assert_close(covariances[c], torch.cov(x[y == c].T))
    assert not means[2].any()
    assert not covariances[2].any()


def test_pooled_statistics_are_those_of_all_features():
    # clients of sizes 1 (covariance 0), 4 and 15; the second lacks class 1
    x, y = draw(20), torch.tensor([0] + [0] * 4 + [0, 1, 1] * 5)
    cuts = (slice(0, 1), slice(1, 5), slice(5, 20))
    pooled = pool_statistics(class_statistics([(x[cut], y[cut])], 2) for cut in cuts)
    whole = class_statistics([(x, y)], 2)
    for found, expected in zip(pooled, whole, strict=True):
        torch.testing.assert_close(found, expected)


def test_one_client_keeps_its_statistics():
    own = class_statistics([(draw(9), torch.arange(9) % 3)], 3)
    for found, expected in zip(pool_statistics([own]), own, strict=True):
        torch.testing.assert_close(found, expected)


def test_samples_have_the_asked_mean_and_covariance():
    mean, root = torch.tensor([1.0, -2.0]).double(), torch.tensor([[2.0, 0.0], [1.0, 0.5]]).double()
    statistics = ClassStatistics(torch.tensor([9.0]), mean[None], (root @ root.T)[None])
    x, _ = sample_features(statistics, 20_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(x.mean(0), mean, atol=0.05, rtol=0)
    torch.testing.assert_close(torch.cov(x.T), root @ root.T, atol=0.15, rtol=0)


def test_classes_with_fewer_than_two_samples_are_left_out_and_singular_ones_are_not():
    statistics = class_statistics([(draw(3, d=5), torch.tensor([0, 0, 1]))], 2)
    x, y = sample_features(statistics, 4, torch.Generator().manual_seed(0))
    assert y.tolist() == [0] * 4
    assert torch.isfinite(x).all()


def test_jitter_widens_a_point():
    statistics = ClassStatistics(torch.tensor([2.0]), torch.zeros(1, 2), torch.zeros(1, 2, 2))
    x, _ = sample_features(statistics, 20_000, torch.Generator().manual_seed(0), jitter=4.0)
    assert x.std().item() == pytest.approx(2.0, rel=0.05)


def test_nobody_to_pool_is_refused():
    with pytest.raises(ValueError, match="there is no client to pool"):
        pool_statistics([])
