import math

import numpy as np
import pytest

from flightning.report.runs import read_run
from flightning.report.statistics import cumulative, estimate, final, paired_difference, reached, traffic
from tests.report.synthetic import BYTES, write_run


def test_deviation_of_one_value_is_unknown():
    found = estimate([0.5])
    assert (found.mean, found.n) == (0.5, 1)
    assert math.isnan(found.std)


def test_sample_deviation():
    # values 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, divided by n - 1 = 2
    found = estimate([1.0, 2.0, 6.0])
    assert (found.mean, found.std, found.n) == (3.0, pytest.approx(math.sqrt(7)), 3)


def test_paired_interval_matches_students_t():
    # differences 1, 2, 3: mean 2, s = 1, t(0.975, 2) = 4.302653, half width 4.302653 / sqrt(3) = 2.484138
    d = paired_difference({0: 2.0, 1: 3.0, 2: 4.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert (d.mean, d.low, d.high) == pytest.approx((2.0, -0.484138, 4.484138), abs=1e-5)
    assert not d.clear


def test_only_common_seeds_are_paired():
    d = paired_difference({0: 0.9, 1: 0.8, 5: 0.1}, {0: 0.7, 1: 0.6, 9: 0.0})
    assert (d.n, d.mean) == (2, pytest.approx(0.2))
    assert d.clear


def test_one_pair_has_no_interval():
    d = paired_difference({0: 0.9}, {0: 0.7})
    assert d.n == 1
    assert math.isnan(d.low)
    assert not d.clear


def test_methods_without_a_common_seed_have_no_difference():
    assert paired_difference({0: 0.9}, {1: 0.7}).n == 0


def test_first_round_at_the_target_counts_and_float32_is_forgiven(tmp_path):
    run = read_run(write_run(tmp_path / "run", accuracy=(0.5, float(np.float32(0.9)), 0.95)))
    assert reached(run, 0.9) == 1
    assert reached(run, 0.9501) is None
    assert reached(run, math.nan) is None


def test_rounds_without_evaluation_are_passed_over(tmp_path):
    run = read_run(write_run(tmp_path / "run", accuracy=(0.5, 0.7, 0.6), columns={"val/accuracy": (0.5, "", 0.6)}))
    assert final(run, last=2).tolist() == [0.5, 0.6]
    assert reached(run, 0.55) == 2


def test_traffic_adds_both_ways_and_one_off_bytes(tmp_path):
    run = read_run(write_run(tmp_path / "run", clients=10, columns={"round/setup_bytes": (1000, "", "")}))
    assert traffic(run).tolist() == [20 * BYTES + 1000, 20 * BYTES, 20 * BYTES]
    assert cumulative(traffic(run))[-1] == 60 * BYTES + 1000


def test_traffic_has_what_ccvr_sends_after_the_last_round(tmp_path):
    sent = {"ccvr/bytes_up": ("", "", 500), "ccvr/bytes_down": ("", "", 30)}
    run = read_run(write_run(tmp_path / "run", clients=10, columns=sent))
    assert traffic(run).tolist() == [20 * BYTES, 20 * BYTES, 20 * BYTES + 530]


def test_unknown_rounds_do_not_break_a_running_total():
    assert cumulative(np.array([1.0, np.nan, 2.0])).tolist() == [1.0, 1.0, 3.0]
    assert np.isnan(cumulative(np.array([np.nan, np.nan]))).all()
