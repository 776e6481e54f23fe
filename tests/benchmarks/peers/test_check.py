import numpy as np
import pytest

from benchmarks.peers.check import TOLERANCE, compare, refuse_differences
from benchmarks.peers.task import cuts

START, END = np.float32([0, 0]), np.float32([3, 4])


def test_contestants_with_the_same_weights_pass():
    differences = compare({"hand-written": END, "pfl": END.copy()}, START)
    assert differences == {"hand-written": 0.0, "pfl": 0.0}
    refuse_differences(differences)


def test_differences_are_parts_of_the_way_the_weights_have_come():
    # the way from (1, 1) to (4, 5) is 5 long, the difference 5e-5 of it
    found = compare({"hand-written": np.float64([4, 5]), "pfl": np.float64([4, 5 + 2.5e-4])}, np.float64([1, 1]))
    assert found["pfl"] == pytest.approx(5e-5, rel=1e-6)


@pytest.mark.parametrize("wrong", [END * (1 + 2 * TOLERANCE), START, END * np.nan])
def test_a_contestant_with_other_weights_is_named(wrong):
    with pytest.raises(RuntimeError, match=r"differ.*'pfl'"):
        refuse_differences(compare({"hand-written": END, "pfl": wrong.astype(np.float32)}, START))


def test_a_row_of_clients_is_cut_where_half_of_the_samples_are():
    assert cuts([60] * 10, 2) == [0, 5, 10]
    assert cuts([1, 1, 8, 1, 1], 2) == [0, 3, 5]
