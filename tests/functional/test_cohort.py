import numpy as np
import pytest

from flightning.errors import ConfigurationError
from flightning.functional.cohort import cohort_size, sample_cohort

SIZES = np.array([5, 0, 1, 20, 3, 0, 4, 2, 9, 6])  # eight clients have samples
ABLE = set(np.flatnonzero(SIZES).tolist())


@pytest.mark.parametrize(
    ("participation", "clients", "expected"),
    [(0.1, 100, 10), (0.1, 4, 1), (1.0, 7, 7), (0.5, 3, 2), (1, 7, 1), (7, 7, 7), (0.001, 10, 1)],
)
def test_cohort_size(participation, clients, expected):
    assert cohort_size(participation, clients) == expected


@pytest.mark.parametrize("participation", [0, 0.0, -0.1, -3, 1.5])
def test_participation_that_selects_nobody_or_too_many_is_refused(participation):
    with pytest.raises(
        ConfigurationError, match=rf"`participation={participation}` of 10 clients .* fraction in \(0, 1\]"
    ):
        cohort_size(participation, 10)


def test_nobody_has_data():
    with pytest.raises(ConfigurationError, match="of 0 clients with data selects nobody"):
        sample_cohort(np.zeros(3, dtype=int), 1.0, "fixed", np.random.default_rng(0))


def test_a_count_above_the_clients_with_data_is_refused():
    with pytest.raises(ConfigurationError, match=r"`participation=9` asks for more clients than the 8 that have data"):
        sample_cohort(SIZES, 9, "fixed", np.random.default_rng(0))


@pytest.mark.parametrize("sampler", ["fixed", "bernoulli", "weighted"])
def test_clients_without_samples_are_never_drawn_and_nobody_twice(sampler):
    rng = np.random.default_rng(0)
    for _ in range(200):
        cohort = sample_cohort(SIZES, 0.5, sampler, rng)
        assert set(cohort) <= ABLE
        assert len(set(cohort)) == len(cohort) > 0


@pytest.mark.parametrize("sampler", ["fixed", "weighted"])
def test_fixed_samplers_draw_exactly_that_many(sampler):
    rng = np.random.default_rng(0)
    assert {len(sample_cohort(SIZES, 0.5, sampler, rng)) for _ in range(20)} == {4}


def test_fixed_sampler_draws_everybody_equally_often():
    rng, draws = np.random.default_rng(0), 4000
    counts = np.bincount([c for _ in range(draws) for c in sample_cohort(SIZES, 2, "fixed", rng)], minlength=10)
    # each of 8 with probability 1/4: standard deviation sqrt(4000 * 3/16) = 27
    assert np.abs(counts[sorted(ABLE)] - draws / 4).max() < 5 * 27


def test_weighted_sampler_draws_by_number_of_samples():
    rng, draws = np.random.default_rng(0), 4000
    counts = np.bincount([sample_cohort(SIZES, 1, "weighted", rng)[0] for _ in range(draws)], minlength=10)
    np.testing.assert_allclose(counts / draws, SIZES / SIZES.sum(), atol=5 * np.sqrt(0.24 / draws))


@pytest.mark.parametrize("participation", [0.05, 0.3])
def test_bernoulli_takes_the_fraction_itself_as_probability(participation):
    # 30 clients: round(0.05 * 30) = 2 would be probability 0.067. Redrawing empty cohorts divides by 1 - (1 - f)^30.
    rng, draws, sizes = np.random.default_rng(0), 4000, np.ones(30, dtype=int)
    mean = np.mean([len(sample_cohort(sizes, participation, "bernoulli", rng)) for _ in range(draws)])
    expected = 30 * participation / (1 - (1 - participation) ** 30)
    assert mean == pytest.approx(expected, abs=5 * np.sqrt(30 * participation / draws))


def test_bernoulli_with_a_count_expects_that_many():
    rng, sizes = np.random.default_rng(0), np.ones(20, dtype=int)
    sizes_of_cohorts = [len(sample_cohort(sizes, 10, "bernoulli", rng)) for _ in range(2000)]
    assert np.mean(sizes_of_cohorts) == pytest.approx(10, abs=0.3)
    assert len(set(sizes_of_cohorts)) > 5


def test_same_generator_same_cohort_in_the_same_order():
    first, second = (sample_cohort(SIZES, 0.5, "fixed", np.random.default_rng(4)) for _ in range(2))
    assert first == second
