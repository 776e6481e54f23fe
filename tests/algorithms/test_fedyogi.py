"""What is Yogi's own; see test_fedadam for the rest."""

import pytest

from flightning.algorithms import FedAvgMixin, FedYogiMixin
from tests.problems import fit_quadratic


@pytest.mark.parametrize("tau", [1e-3, 0.1, 0.5])
def test_yogi_changes_v_by_no_more_than_the_square(tau):
    d = fit_quadratic(FedAvgMixin, 1).w.item()  # mean update from 0
    v = fit_quadratic(FedYogiMixin, 1, tau=tau).server_state.variance["w"].item()
    assert abs(v - tau**2) <= 0.01 * d * d * (1 + 1e-12)
    assert (v > tau**2) == (tau**2 < d * d)
