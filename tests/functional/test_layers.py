"""Layers by name: cut forward passes, the head, batch normalization."""

import pytest
import torch
from torch import nn

from flightning.errors import ConfigurationError
from flightning.functional.layers import batch_norm_names, last_linear, truncated_forward, truncated_input


class Tail(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), Tail(), nn.Linear(3, 2))


def hooks(module):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


def test_output_of_a_layer(net):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(truncated_forward(net, "1", x), net[0](x).relu())


def test_nothing_behind_the_layer_is_run(net):
    truncated_forward(net, "1", torch.zeros(5, 4))
    assert net[2].calls == 0
    truncated_forward(net, "2", torch.zeros(5, 4))
    assert net[2].calls == 1


def test_input_of_a_layer_without_running_it(net):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(truncated_input(net, "2", x), net[0](x).relu())
    assert net[2].calls == 0


def test_module_itself_has_the_empty_name(net):
    x = torch.ones(1, 4)
    assert torch.equal(truncated_forward(net, "", x), net(x))


def test_gradient_flows_through_the_cut_pass(net):
    truncated_forward(net, "0", torch.ones(1, 4)).sum().backward()
    assert torch.equal(net[0].weight.grad, torch.ones(3, 4))
    assert net[3].weight.grad is None


def test_hooks_are_removed_also_after_a_failure(net):
    truncated_forward(net, "1", torch.zeros(5, 4))
    truncated_input(net, "1", torch.zeros(5, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        truncated_forward(net, "3", torch.zeros(5, 7))
    assert hooks(net) == 0


def test_net_that_catches_exceptions_does_not_swallow_the_cut():
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.calls = 0

        def forward(self, x):
            try:
                x = self.fc(x)
            except Exception:  # noqa: BLE001
                self.calls += 1
            self.calls += 1
            return x

    net = Careful()
    assert truncated_forward(net, "fc", torch.zeros(1, 2)).shape == (1, 2)
    assert net.calls == 0


def test_cut_inside_a_cut_pass(net):
    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.fc = nn.Linear(3, 1)

        def forward(self, x):
            return self.fc(truncated_forward(self.inner, "1", x))

    outer, x = Outer(net), torch.ones(2, 4)
    assert torch.equal(truncated_forward(outer, "fc", x), outer(x))
    assert torch.equal(truncated_forward(outer, "inner.0", x), net[0](x))


def test_keyword_inputs_and_tuple_outputs():
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(2, 3, batch_first=True)

        def forward(self, *, tokens):
            return self.lstm(tokens)[0][:, -1]

    net, x = Text(), torch.ones(1, 4, 2)
    assert torch.equal(truncated_forward(net, "lstm", tokens=x), net.lstm(x)[0])


def test_unknown_layer_is_refused_with_the_nearest_names():
    net = nn.ModuleDict({"conv1": nn.Linear(1, 1), "head": nn.Linear(1, 1)})
    with pytest.raises(ConfigurationError, match=r"no layer `conv2`. Did you mean `conv1`\?"):
        truncated_forward(net, "conv2", torch.zeros(1, 1))


def test_layer_that_is_never_called_is_refused(net):
    net.add_module("spare", nn.Linear(2, 2))
    net.forward = lambda x: net[0](x)
    with pytest.raises(ConfigurationError, match="never calls its layer `spare`"):
        truncated_forward(net, "spare", torch.zeros(1, 4))
    assert hooks(net) == 0


def test_output_that_is_no_tensor_is_refused():
    class Named(nn.Module):
        def forward(self, x):
            return {"x": x}

    with pytest.raises(ConfigurationError, match="layer `0` of `Sequential` gives a `dict`"):
        truncated_forward(nn.Sequential(Named()), "0", torch.zeros(1))


def test_last_linear_is_the_last_registered(net):
    assert last_linear(net) == "3"
    assert last_linear(nn.ModuleDict({"body": net, "pool": nn.ReLU()})) == "body.3"
    assert last_linear(nn.Linear(1, 1)) == ""


def test_module_without_linear_is_refused_with_the_remedy():
    with pytest.raises(ConfigurationError, match=r"`Conv2d` has no `nn.Linear`.*Give the name of a layer"):
        last_linear(nn.Conv2d(1, 1, 1))


def test_batch_norm_is_found_by_type_and_not_by_name():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.Linear(2, 2)
            self.downsample = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, affine=False))
            self.sync = nn.SyncBatchNorm(2, track_running_stats=False)
            self.instance = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)

    assert batch_norm_names(Block()) == {
        "downsample.1.running_mean",
        "downsample.1.running_var",
        "downsample.1.num_batches_tracked",
        "sync.weight",
        "sync.bias",
    }


def test_shared_batch_norm_has_all_its_names():
    norm = nn.BatchNorm1d(2)
    net = nn.Sequential(norm, norm)
    assert batch_norm_names(net) == set(net.state_dict())


def test_batch_norm_itself_and_none():
    assert batch_norm_names(nn.BatchNorm1d(2)) == set(nn.BatchNorm1d(2).state_dict())
    assert batch_norm_names(nn.Linear(1, 1)) == set()
