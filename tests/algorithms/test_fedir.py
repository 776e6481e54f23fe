import pytest
import torch
from torch.nn import functional as F

from flightning.algorithms import FedAvg, FedIR
from flightning.callbacks import Federation
from flightning.errors import ConfigurationError
from tests.classification import assert_same, make_data, make_module, run


def one_client_step(module, data, client, importance):
    """One SGD step (rate 0.01, momentum buffer empty) on the weighted loss of the first batch, by hand."""
    part = data.parts[client][: data.batch_size]
    inputs, targets = data.train_source.inputs[part], data.train_source.targets[part]
    losses = F.cross_entropy(module(inputs), targets, reduction="none")
    u = torch.tensor(importance)[targets]
    gradients = torch.autograd.grad((u * losses).sum() / u.sum(), list(module.parameters()))
    return [p.detach() - 0.01 * g for p, g in zip(module.parameters(), gradients, strict=True)]


def make_unequal(batch_size=8):
    # client 0: 2 of class 0 and 6 of class 1; client 1: 4 of class 0
    generator = torch.Generator().manual_seed(0)
    from flightning.datamodules import FederatedDataModule

    pairs = []
    for labels in ([0] * 2 + [1] * 6, [0] * 4):
        pairs.append((torch.randn(len(labels), 4, generator=generator), torch.tensor(labels)))
    return FederatedDataModule.from_clients(pairs, num_classes=3, batch_size=batch_size, shuffle=False)


@pytest.mark.parametrize("batch_size", [8, 4])
def test_step_matches_the_weighted_loss_written_out(batch_size):
    # p = (1/2, 1/2, 0); q_0 = (1/4, 3/4, 0): u = (2, 2/3, -); q_1 = (1, 0, 0): u = (1/2, -, -), which is plain CE.
    # In the batch of four, two of each class, u sums up to 16/3 and not to the number of samples
    data = make_unequal(batch_size)
    module, _ = run(FedIR, 1, data, Federation(local_steps=1))
    start = make_module(FedIR)
    expected = [
        (8 * a + 4 * b) / 12
        for a, b in zip(
            one_client_step(start, data, 0, [2.0, 2 / 3, 0.0]),
            one_client_step(start, data, 1, [1.0, 1.0, 1.0]),
            strict=True,
        )
    ]
    for ours, theirs in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_weighted_labels_follow_the_distribution_of_all():
    data = make_unequal()
    module, _ = run(FedIR, 1, data)
    u = module._importance  # of the client that trained last; both hold class 0
    counts = torch.tensor(data.label_counts()[module.federated_data.plan_round(0).cohort[-1]])
    weighted = u * counts
    p = torch.tensor([0.5, 0.5, 0.0]) * (counts > 0)
    torch.testing.assert_close(weighted / weighted.sum(), p / p.sum())


def test_clients_like_the_whole_are_fedavg_bit_for_bit():
    def make():
        return make_data(classes=((0, 1, 2),) * 3)

    assert_same(run(FedIR, data=make())[0], run(FedAvg, data=make())[0])


def test_label_counts_are_a_one_off_cost():
    _, rounds = run(FedIR, 2)
    assert rounds[0]["round/setup_bytes"] == 3 * (3 + 3) * 4
    assert [r["round/extra_bytes_up"] + r["round/extra_bytes_down"] for r in rounds] == [0, 0]
    assert rounds[1]["round/setup_bytes"] == 0


def test_importance_is_capped():
    data = make_unequal()
    module, _ = run(FedIR, 1, data, cap=1.0)
    assert float(module._importance.max()) <= 1.0


def test_cap_must_be_positive():
    with pytest.raises(ConfigurationError, match=r"`cap=0` must be above 0"):
        make_module(FedIR, cap=0)
