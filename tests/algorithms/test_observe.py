import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.aggregation import CatMetric, MeanMetric

from flightning.algorithms.observe import LayerTaps, evaluating, frozen_forward, metrics_kept, without_noise
from flightning.errors import ConfigurationError


class Net(nn.Module):
    def __init__(self, inplace=False):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.relu = nn.ReLU(inplace=inplace)
        self.drop = nn.Dropout(0.5)
        self.b = nn.Linear(4, 2)
        self.calls = []

    def forward(self, x):
        x = self.relu(self.norm(self.a(x)))
        self.calls.append("b")
        return self.b(self.drop(x))


X = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))


def other_weights(net):
    return {n: t + 1 if t.is_floating_point() else t for n, t in net.state_dict().items()}


def test_taps_see_inputs_and_outputs_with_gradient():
    net = Net()
    taps = LayerTaps(net)
    taps.watch("a")
    taps.watch("b")
    with taps.listening():
        logits = net(X)
        assert torch.equal(taps.input("a"), X)
        assert taps.output("b") is logits
        assert taps.output("a").requires_grad


def test_nothing_outlives_the_step():
    net = Net()
    taps = LayerTaps(net)
    taps.watch("a")
    with taps.listening():
        net(X)
    with pytest.raises(KeyError, match="layer `a` was not called in this local step"):
        taps.output("a")
    net(X)  # nobody listens
    assert not taps._seen


def test_after_a_pass_aside_layers_show_the_one_before():
    net = Net()
    taps = LayerTaps(net)
    taps.watch("a")
    with taps.listening():
        net(X)
        with taps.aside():
            net(X[:2])
            assert len(taps.input("a")) == 2
        assert len(taps.input("a")) == len(taps.output("a")) == 6


def test_evaluation_gives_every_part_its_own_mode_back():
    net = Net()
    net.norm.eval()
    with evaluating(net):
        assert not any(part.training for part in net.modules())
        assert not net(X).requires_grad
    assert [part.training for part in (net, net.norm, net.drop)] == [True, False, True]


def test_a_layer_that_was_not_called_is_named_with_remedy():
    taps = LayerTaps(Net())
    with taps.listening(), pytest.raises(KeyError, match=r"layer `b` was not called .*watch it with `watch_layers`"):
        taps.input("b")


def test_watching_twice_adds_one_hook():
    net = Net()
    taps = LayerTaps(net)
    taps.watch("a")
    taps.watch("a")
    assert len(net.a._forward_hooks) == 1
    taps.close()
    assert len(net.a._forward_hooks) == 0


def test_an_output_that_was_overwritten_in_place_is_refused():
    net = Net(inplace=True)
    taps = LayerTaps(net)
    taps.watch("norm")
    with taps.listening():
        net(X)
        with pytest.raises(ConfigurationError, match=r"layer `norm` was overwritten .*set `inplace=False`"):
            taps.output("norm")


def test_pausing_hides_a_second_pass():
    net = Net()
    taps = LayerTaps(net)
    taps.watch("a")
    with taps.listening():
        net(X)
        with taps.paused():
            net(X + 1)
        assert torch.equal(taps.input("a"), X)


def test_a_frozen_pass_uses_other_weights_in_evaluation_mode():
    net, reference = Net(), Net()
    weights = other_weights(net)
    reference.load_state_dict(weights)
    reference.eval()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    result = frozen_forward(net, weights, (X,), {})
    torch.testing.assert_close(result, reference(X))
    assert not result.requires_grad
    assert all(m.training for m in net.modules())
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())


def test_a_frozen_pass_is_cut_short():
    net = Net()
    weights = dict(net.state_dict())
    after = frozen_forward(net, weights, (X,), {}, until="a")
    torch.testing.assert_close(after, net.a(X).detach())
    assert net.calls == []
    before = frozen_forward(net, weights, (X,), {}, before="b")
    assert before.shape == (6, 4)


def test_a_frozen_pass_in_training_mode_leaves_the_given_statistics():
    net = Net()
    weights = {n: t.clone() for n, t in net.state_dict().items()}
    frozen_forward(net, weights, (X,), {}, training=True)
    assert all(torch.equal(weights[n], t) for n, t in net.state_dict().items())


def test_noise_is_switched_off_and_on_again():
    net = Net()
    with without_noise(net):
        assert not net.norm.training
        assert not net.drop.training
        assert net.a.training
        assert torch.equal(net(X), net(X))
    assert net.norm.training
    assert net.drop.training


def test_layers_that_were_already_in_evaluation_mode_stay_so():
    net = Net()
    net.norm.eval()
    with without_noise(net):
        pass
    assert not net.norm.training


def watching(net, *names):
    taps = LayerTaps(net)
    for name in names:
        taps.watch(name)
    return taps


def test_a_second_pass_without_gradient_is_not_seen_while_a_step_learns():
    net = Net()
    taps = watching(net, "a")
    with taps.listening():
        net(X)
        with torch.no_grad():
            net(X + 1)
        assert torch.equal(taps.input("a"), X)
        assert taps.output("a").requires_grad


def test_a_pass_without_gradient_before_the_learning_one_is_forgotten():
    net = Net()
    taps = watching(net, "a")
    with taps.listening():
        with torch.no_grad():
            net(X + 1)
        net(X)
        assert torch.equal(taps.input("a"), X)


def test_a_layer_that_never_learns_is_seen():
    net = Net()
    taps = watching(net, "a")
    with taps.listening():
        with torch.no_grad():
            hidden = net.a(X)
        net.b(hidden)
        assert torch.equal(taps.output("a"), hidden)


def test_the_last_pass_counts_in_evaluation():
    net = Net()
    taps = watching(net, "a")
    with torch.no_grad(), taps.listening():
        net(X)
        net(X + 1)
        assert torch.equal(taps.input("a"), X + 1)


def test_a_layer_that_is_called_again_in_a_pass_is_refused():
    net = Net()
    taps = watching(net, "", "a")
    with taps.listening():
        with torch.no_grad():
            net.a(X)  # counts as little as it is seen
        net(X)
        net(X)
        taps.check_called_once("a", "")
        net.a(X)
        with pytest.raises(ConfigurationError, match="layer `a` was called 3 times in 2 forward passes"):
            taps.check_called_once("a", "")


def test_metrics_forget_what_they_see_in_the_block():
    root = nn.Module()
    root.mean, root.cat, root.pair = MeanMetric(), CatMetric(), MetricCollection({"x": MeanMetric(), "y": MeanMetric()})
    for metric in (root.mean, root.cat, root.pair):
        metric.update(torch.tensor(1.0))
    with metrics_kept(root):
        for metric in (root.mean, root.cat, root.pair):
            metric.update(torch.tensor(5.0, requires_grad=True) * 2)
    assert root.mean.compute() == 1.0
    assert root.cat.compute().tolist() == 1.0
    assert {name: value.item() for name, value in root.pair.compute().items()} == {"x": 1.0, "y": 1.0}
    assert root.mean.update_count == 1
