import pytest
import torch
from torch import nn

from flightning.errors import ConfigurationError
from flightning.functional.matching import chain_layers, is_chain, match_models, match_rows, reorder, rows_of
from flightning.nets import MLP, CharLSTM, FedDynCNN, McMahanCNN, ResNet50, SimpleCNN, SmallCNN


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def conv_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 16, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    ).eval()


def shuffled(net, seed=0):
    """The same network with its hidden units in another order."""
    weights, chain = dict(net.state_dict()), chain_layers(net)
    for index, layer in enumerate(chain[:-1]):
        weights = reorder(weights, chain, index, torch.randperm(len(weights[layer.weight]), generator=seeded(seed)))
    return weights


def test_reordered_units_compute_the_same():
    net, x = conv_net(), torch.randn(2, 1, 8, 8)
    net[1].running_mean.copy_(torch.arange(4.0))
    net[1].running_var.copy_(torch.arange(1.0, 5.0))
    before = net(x)
    net.load_state_dict(shuffled(net))
    torch.testing.assert_close(net(x), before)


def test_a_permuted_copy_is_matched_back_exactly():
    net = conv_net()
    weights = net.state_dict()
    matched, moved = match_models([weights, shuffled(net)], chain_layers(net), reference=0)
    assert all(torch.equal(matched[1][n], w) for n, w in weights.items())
    assert moved > 0.5


def test_identical_models_stay_as_they_are():
    net = conv_net()
    matched, moved = match_models([net.state_dict()] * 3, chain_layers(net), reference=1)
    assert moved == 0
    assert all(torch.equal(m[n], w) for m in matched for n, w in net.state_dict().items())


def test_the_order_of_the_reference_is_kept():
    net = conv_net()
    twin = shuffled(net)
    matched, _ = match_models([net.state_dict(), twin], chain_layers(net), reference=1)
    assert all(torch.equal(m[n], twin[n]) for m in matched for n in twin)


def test_rows_are_assigned_by_least_total_distance():
    # the nearest of both is the first; the sum is least when the farther one takes the second
    reference, rows = torch.tensor([[0.0], [10.0]]), torch.tensor([[1.0], [2.0]])
    assert match_rows(reference, rows).tolist() == [0, 1]


def test_rows_hold_incoming_weights_and_bias():
    net = conv_net()
    rows = rows_of(net.state_dict(), chain_layers(net)[1])
    assert rows.shape == (5, 4 * 9 + 1)
    assert torch.equal(rows[:, -1], net[3].bias.double())


@pytest.mark.parametrize(
    "make",
    [
        lambda: MLP((1, 8, 8), 10),
        lambda: SmallCNN((1, 28, 28), 10),
        lambda: SimpleCNN((3, 32, 32), 10, projection=16),
        lambda: FedDynCNN((3, 32, 32), 10),
        lambda: McMahanCNN((1, 12, 12), 10),
        conv_net,
    ],
)
def test_nets_without_skip_connections_are_chains(make):
    net = make()
    shape = getattr(net, "input_shape", (1, 8, 8))
    assert is_chain(net, torch.randn(1, *shape, generator=seeded()), seeded())


def test_a_skip_connection_is_no_chain():
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = torch.relu(self.a(x))
            return self.c(h + torch.relu(self.b(h)))

    assert not is_chain(Skip(), torch.randn(2, 4, generator=seeded()), seeded())


def test_resnet_is_no_chain():
    assert not is_chain(ResNet50((3, 32, 32), 10), torch.randn(1, 3, 32, 32, generator=seeded()), seeded())


def test_the_network_is_not_changed_by_the_trial():
    net = MLP((4,), 3, hidden=[5])
    before = {n: w.clone() for n, w in net.state_dict().items()}
    is_chain(net, torch.ones(1, 4), seeded())
    assert all(torch.equal(w, before[n]) for n, w in net.state_dict().items())
    assert net.training


def test_other_layers_are_refused():
    with pytest.raises(ConfigurationError, match=r"the units of `Embedding` .* cannot be matched"):
        chain_layers(CharLSTM((80,), 80))
