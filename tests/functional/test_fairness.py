import numpy as np
import pytest

from flightning.functional.fairness import fairness, jain_index


def test_jain_lies_between_one_over_n_and_one():
    assert jain_index(np.full(7, 0.3)) == pytest.approx(1.0)
    assert jain_index(np.eye(5)[0]) == pytest.approx(1 / 5)
    assert jain_index(np.array([1.0, 2.0, 3.0])) == pytest.approx((1 + 2 + 3) ** 2 / (3 * (1 + 4 + 9)))


def test_all_wrong_is_equally_wrong():
    assert jain_index(np.zeros(3)) == 1.0


def test_worst_and_best_tenth():
    numbers = fairness(np.linspace(0, 1, 21)[np.random.default_rng(0).permutation(21)])
    # a tenth of 21 clients is rounded up to 3: 0, 0.05, 0.1 and 0.9, 0.95, 1
    assert numbers["accuracy_worst10"] == pytest.approx(0.05)
    assert numbers["accuracy_best10"] == pytest.approx(0.95)
    assert numbers["accuracy_mean"] == pytest.approx(0.5)


def test_deviation_is_that_of_the_population():
    assert fairness(np.array([0.0, 1.0]))["accuracy_std"] == pytest.approx(0.5)


def test_a_single_client_is_worst_and_best():
    numbers = fairness(np.array([0.7]))
    assert numbers == pytest.approx(
        {"accuracy_mean": 0.7, "accuracy_std": 0.0, "accuracy_worst10": 0.7, "accuracy_best10": 0.7, "jain": 1.0}
    )
