"""What a client's optimizer goes on with."""

import pytest
import torch

from flightning.callbacks.rounds import _restore_optimizer

#: Stands for a GPU: it holds no numbers.
ELSEWHERE = torch.device("meta")


@pytest.mark.parametrize(("capturable", "place"), [(False, "cpu"), (True, "meta")])
def test_the_step_count_lies_where_the_optimizer_counts(capturable, place):
    parameter = torch.nn.Parameter(torch.zeros(2, device=ELSEWHERE))
    optimizer = torch.optim.Adam([parameter], capturable=capturable)
    kept = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2)}
    _restore_optimizer(optimizer, {0: kept})
    restored = optimizer.state[parameter]
    assert (restored["step"].device.type, restored["exp_avg"].device.type) == (place, "meta")


def test_what_is_kept_is_copied():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([parameter])
    kept = {"step": torch.tensor(3.0), "exp_avg": torch.ones(2)}
    _restore_optimizer(optimizer, {0: kept})
    for name, value in kept.items():
        assert torch.equal(optimizer.state[parameter][name], value)
        assert optimizer.state[parameter][name].data_ptr() != value.data_ptr()
