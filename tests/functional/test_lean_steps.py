"""The bare parts of a step do what PyTorch's own do, and give way to them where somebody listens."""

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from flightning.functional.lean_steps import backward, bare_step

OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.5}),
    (torch.optim.Adagrad, {"lr": 0.1}),
]


def problem():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    return net, torch.randn(7, 5), torch.randint(0, 3, (7,))


def trained(optimizer_class, options, is_bare):
    net, inputs, targets = problem()
    optimizer = optimizer_class(net.parameters(), **options)
    for _ in range(4):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(inputs), targets)
        if is_bare:
            backward(loss)
            bare_step(optimizer)()
        else:
            loss.backward()
            optimizer.step()
    return [p.detach() for p in net.parameters()]


@pytest.mark.parametrize(("optimizer_class", "options"), OPTIMIZERS)
def test_steps_are_those_of_pytorch_to_the_last_bit(optimizer_class, options):
    usual, bare = (trained(optimizer_class, options, is_bare) for is_bare in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(usual, bare, strict=True))


def test_step_leaves_gradients_switched_on():
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    bare_step(torch.optim.SGD([weight], lr=0.1))()
    assert torch.is_grad_enabled()


def test_step_is_bare_where_nobody_listens():
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
    assert bare_step(optimizer) != optimizer.step


def test_hooks_of_an_optimizer_are_called():
    weight, called = torch.ones(2, requires_grad=True), []
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    bare_step(optimizer)()
    assert called == ["after"]


def test_steps_are_counted_for_a_scheduler(recwarn):
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scheduler = StepLR(optimizer, 1)
    bare_step(optimizer)()
    scheduler.step()
    assert not [w for w in recwarn if "lr_scheduler.step()" in str(w.message)]


def test_profiler_sees_the_step():
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with torch.profiler.profile() as profile:
        bare_step(optimizer)()
    assert any("Optimizer.step#SGD" in event.key for event in profile.key_averages())


def test_own_step_of_a_subclass_is_taken():
    class Halving(torch.optim.SGD):
        def step(self, closure=None):
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter.mul_(0.5)

    weight = torch.ones(2, requires_grad=True)
    bare_step(Halving([weight], lr=0.1))()
    assert weight.tolist() == [0.5, 0.5]


def test_loss_that_is_no_scalar_is_refused_as_by_pytorch():
    weight = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        backward(weight * 2)


def test_loss_without_gradient_is_refused_as_by_pytorch():
    with pytest.raises(RuntimeError, match="does not require grad"):
        backward(torch.tensor(1.0))
