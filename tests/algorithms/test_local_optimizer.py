import pytest
import torch

from flightning.algorithms.local_optimizer import LocalOptimizer


@pytest.mark.parametrize(
    ("options", "tells"),
    [({}, True), ({"momentum": 0.9}, True), ({"momentum": 0.9, "nesterov": True}, False), ({"maximize": True}, False)],
)
def test_steps_of_sgd_downhill_tell_the_gradient(options, tells):
    weight = torch.nn.Parameter(torch.tensor(1.0))
    assert LocalOptimizer(torch.optim.SGD([weight], lr=0.1, **options), {"w": weight}).is_heavy_ball is tells
