import functools

import pytest
import torch

from flightning.algorithms import FedAvg, FedAvgMixin, FedAvgMMixin, FedOpt, FedOptMixin
from flightning.errors import CompositionError, ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, run
from tests.problems import QuadraticModule, fit_quadratic

H, B, ETA = (1, 3, 10), (-1, 0.5, 2), 0.02


def mean_update(w):
    """FedAvg's, K = 5: mean_i (a_i - 1)(w - b_i), a_i = (1 - eta h_i)^5."""
    return sum(((1 - ETA * h) ** 5 - 1) * (w - b) for h, b in zip(H, B, strict=True)) / 3


def test_default_is_fedavg():
    assert fit_quadratic(FedOptMixin, 3).w.item() == pytest.approx(fit_quadratic(FedAvgMixin, 3).w.item(), rel=1e-14)


def test_sgd_with_momentum_is_fedavgm():
    sgd = functools.partial(torch.optim.SGD, lr=0.7, momentum=0.8)
    a = fit_quadratic(FedOptMixin, 4, server_optimizer=sgd)
    b = fit_quadratic(FedAvgMMixin, 4, server_lr=0.7, beta=0.8)
    assert a.w.item() == pytest.approx(b.w.item(), rel=1e-12)


def test_adam_matches_torch_on_the_pseudo_gradient():
    weight = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([weight], lr=0.1, weight_decay=0.01)
    for _ in range(4):
        weight.grad = torch.tensor(-mean_update(weight.item()), dtype=torch.float64)
        adam.step()
    server = functools.partial(torch.optim.Adam, lr=0.1, weight_decay=0.01)
    assert fit_quadratic(FedOptMixin, 4, server_optimizer=server).w.item() == pytest.approx(weight.item(), rel=1e-9)


@pytest.mark.parametrize(
    "name", ["Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD", "AdamW"]
)
def test_optimizers_of_torch_run(name):
    module, _ = run(FedOpt, 2, server_optimizer=getattr(torch.optim, name))
    assert all(torch.isfinite(p).all() for p in module.parameters())


def test_batch_norm_statistics_are_averaged():
    server = functools.partial(torch.optim.SGD, lr=5.0)
    one, plain = run(FedOpt, 1, net=BatchNormNet, server_optimizer=server)[0], run(FedAvg, 1, net=BatchNormNet)[0]
    assert torch.equal(one.net.fc1[1].running_var, plain.net.fc1[1].running_var)
    assert torch.equal(one.net.fc1[1].num_batches_tracked, plain.net.fc1[1].num_batches_tracked)
    assert not torch.equal(one.net.head.weight, plain.net.head.weight)


def test_no_extra_bytes():
    _, rounds = run(FedOpt, 1)
    assert rounds[0]["round/extra_bytes_up"] == rounds[0]["round/extra_bytes_down"] == 0


def test_resumes_in_the_middle(tmp_path):
    assert_resumes(FedOpt, tmp_path, server_optimizer=functools.partial(torch.optim.Adam, lr=0.01))
    torch.load(tmp_path / "last.ckpt", weights_only=True)  # no function in the checkpoint


def test_lbfgs_is_refused():
    with pytest.raises(ConfigurationError, match=r"`server_optimizer=LBFGS` evaluates the loss again"):
        run(FedOpt, 1, server_optimizer=torch.optim.LBFGS)


def test_two_server_optimizers_are_refused():
    with pytest.raises(CompositionError, match=r"both own the server optimizer"):
        type("Both", (FedOptMixin, FedAvgMMixin, QuadraticModule), {})
