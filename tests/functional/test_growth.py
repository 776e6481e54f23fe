import pytest
import torch
from torch import nn

from flightning.errors import ConfigurationError
from flightning.functional.growth import Prior, grow_models, match_growing, restrict
from flightning.functional.matching import chain_layers, reorder


def units(*shape, seed=0, scale=5.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def test_permuted_units_find_each_other_and_nothing_grows():
    rows, order = units(6, 4), torch.tensor([3, 0, 5, 1, 2, 4])
    first, second = match_growing([rows, rows[order]])
    assert torch.equal(second, first[order])
    assert sorted(first.tolist()) == list(range(6))


def test_units_without_a_partner_become_new_ones():
    # at right angles: joining a stranger gains 2 * 100 / 3 - 50, less than the 50 of founding
    shared, left, right = torch.split(10 * torch.eye(7), [3, 2, 2])
    first, second = match_growing([torch.cat([shared, left]), torch.cat([right, shared])])
    assert torch.equal(second[2:], first[:3])
    assert set(second[:2].tolist()).isdisjoint(first.tolist())
    assert len(torch.cat([first, second]).unique()) == 7


def test_width_is_bounded():
    first, second = match_growing([units(4, 3), units(4, 3, seed=1)], Prior(max_width=5))
    assert torch.cat([first, second]).max() <= 4


def test_gamma_decides_how_easily_units_are_founded():
    rows = [units(8, 3, seed=k, scale=0.8) for k in range(3)]
    widths = [1 + int(torch.cat(match_growing(rows, Prior(gamma=g))).max()) for g in (1e-6, 1e6)]
    assert widths[0] == 8
    assert widths[1] > 8


def test_no_two_units_of_a_client_share_a_global_one():
    for own in match_growing([units(7, 3, seed=k, scale=0.3) for k in range(4)]):
        assert len(own.unique()) == len(own)


def test_clients_of_different_width():
    found = match_growing([units(2, 3), units(5, 3, seed=1)])
    assert [len(a) for a in found] == [2, 5]


def test_one_client_stays_as_it_is():
    assert match_growing([units(4, 3)])[0].tolist() == [0, 1, 2, 3]


def test_a_grown_model_of_permuted_copies_is_the_model():
    net = make_net()
    chain, weights = chain_layers(net), {n: 20 * w for n, w in net.state_dict().items()}
    twin = reorder(weights, chain, 0, torch.randperm(6, generator=torch.Generator().manual_seed(1)))
    merged, wide, places = grow_models([weights, twin], chain, [1.0, 3.0], Prior())
    for own in places:
        part = restrict({**wide[0], **merged}, chain, own)
        net.load_state_dict(part)
        x = units(3, 4)
        after = net(x)
        net.load_state_dict(weights)
        torch.testing.assert_close(after, net(x))


def test_units_are_averaged_over_their_owners_only():
    # the first units agree up to 1, the second ones are far apart: mean of the first, both of the second
    net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).double()
    chain = chain_layers(net)
    models = [
        {"0.weight": torch.tensor([[10.0], [-50.0]]).double(), "2.weight": torch.tensor([[1.0, 2.0]]).double()},
        {"0.weight": torch.tensor([[11.0], [60.0]]).double(), "2.weight": torch.tensor([[3.0, 4.0]]).double()},
    ]
    merged, wide, places = grow_models(models, chain, [1.0, 3.0], Prior())
    assert merged["0.weight"][places[0][0][0]].item() == pytest.approx((10 + 3 * 11) / 4)
    assert sorted(merged["0.weight"].flatten().tolist()) == pytest.approx([-50, 10.75, 60])
    # the last layer reads 0 from units of the other client
    for k in (0, 1):
        row = wide[k]["2.weight"][0]
        assert row[places[k][0]].tolist() == models[k]["2.weight"][0].tolist()
        assert row.count_nonzero() == 2


@pytest.mark.parametrize(("sweeps", "expected"), [(1, [0, 1, 0]), (2, [0, 0, 0])])
def test_clients_are_assigned_again_in_each_sweep(sweeps, expected):
    # sigma = sigma_0 = gamma = 1, units 3, 0 and 3. First sweep: founding gains the second 2 log(1/3) = -2.2, joining 3
    # only 9/3 - 9/2 + 2 log(1/2) = -2.9; the third joins the first. Second sweep: joining the two that agree gains the
    # second 36/4 - 36/3 + 2 log 2 = -1.6
    rows = [torch.tensor([[w]]) for w in (3.0, 0.0, 3.0)]
    assert torch.cat(match_growing(rows, Prior(gamma=1.0, sweeps=sweeps))).tolist() == expected


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"gamma": 0.0}, "`gamma=0.0` must be above 0"),
        ({"sigma": -1.0}, "`sigma=-1.0` must be above 0"),
        ({"sigma_0": 0.0}, "`sigma_0=0.0` must be above 0"),
        ({"sweeps": 0}, "`sweeps=0` must be at least 1"),
        ({"max_width": 0}, "`max_width=0` must be at least 1"),
    ],
)
def test_refusals(option, message):
    with pytest.raises(ConfigurationError, match=message):
        Prior(**option)


def test_gains_of_joining_and_founding():
    # sigma = sigma_0 = 1, three clients, of whom one has unit 4 (S = 4, s = 2) and two have unit -3 (S = -6, s = 3).
    # The third one's unit 1 gains (4 + 1)^2/3 - 16/2 + 2 log(1/2) = -1.053 by the first, (-6 + 1)^2/4 - 36/3 + 2 log 2
    # = -4.364 by the second and 1/2 + 2 log(gamma/3) by a new one: -1.697 with gamma = 1, -0.311 with gamma = 2
    rows = [torch.tensor([[4.0], [-3.0]]), torch.tensor([[-3.0]]), torch.tensor([[1.0]])]
    for gamma, expected in ((1.0, 0), (2.0, 2)):
        assert match_growing(rows, Prior(gamma=gamma, sweeps=1))[2].tolist() == [expected]
