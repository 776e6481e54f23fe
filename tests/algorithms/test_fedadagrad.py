"""What is Adagrad's own; see test_fedadam for the rest."""

import pytest

from flightning.algorithms import FedAdagradMixin
from tests.problems import QuadraticModule, fit_quadratic


def test_second_moment_only_grows():
    class Growing(FedAdagradMixin):
        def on_round_end(self):
            super().on_round_end()
            self.seen = [*getattr(self, "seen", []), self.server_state.variance["w"].item()]

    seen = fit_quadratic(Growing, 5).seen
    assert seen == sorted(seen)
    assert seen[0] > 1e-6


def test_adagrad_has_no_beta2():
    with pytest.raises(TypeError, match="beta2"):
        type("Refused", (FedAdagradMixin, QuadraticModule), {})(beta2=0.9)
