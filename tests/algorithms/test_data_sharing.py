import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flightning.algorithms import DataSharing, DataSharingMixin, FedAvg
from flightning.callbacks import Federation
from flightning.errors import ConfigurationError
from flightning.functional.heterogeneity import earth_mover_distance
from tests.classification import BatchNormNet, assert_resumes, assert_same, make_data, make_module, run


def data(**kwargs):
    return make_data(per_class=10, **{"shared_fraction": 0.2, **kwargs})


class Start(DataSharing):
    """Keep the weights with which the first round began."""

    def on_round_start(self):
        super().on_round_start()
        if self.round_index == 0:
            self.start = {n: w.clone() for n, w in self.global_weights.items()}


def test_nothing_shared_and_no_warm_up_is_fedavg_on_the_same_clients():
    assert_same(run(DataSharing, data=data(), alpha=0.0, warmup_epochs=0)[0], run(FedAvg, data=data())[0])


def test_each_client_gets_its_fraction_of_the_shared_set():
    federated = data()
    module, rounds = run(DataSharing, 1, data=federated, alpha=0.5)
    for client, part in enumerate(federated.parts):
        given = part[len(federated.own_parts[client]) :]
        assert len(given) == len(np.unique(given)) == round(0.5 * len(federated.shared))
        assert np.isin(given, federated.shared).all()
    # 4 floats and a label of 8 bytes per sample
    assert rounds[0]["round/setup_bytes"] == 3 * round(0.5 * len(federated.shared)) * (4 * 4 + 8)
    assert rounds[0]["round/extra_bytes_up"] == rounds[0]["round/extra_bytes_down"] == 0
    assert module.cohort_weights == {k: len(part) for k, part in enumerate(federated.parts)}


def test_bytes_of_a_sample_are_those_of_this_fit():
    module = make_module(DataSharing)
    module.sample_bytes = 1  # kept of a fit on other data
    federated = data()
    run(module, 1, data=federated)
    assert module.setup_bytes == 3 * round(0.5 * len(federated.shared)) * (4 * 4 + 8)


def test_skew_of_every_client_falls_with_alpha():
    skews = []
    for alpha in (0.0, 0.5, 1.0):
        federated = data()
        run(DataSharing, 1, data=federated, alpha=alpha, warmup_epochs=0)
        skews.append(earth_mover_distance(federated.label_counts()))
    assert (skews[0] > skews[1]).all()
    assert (skews[1] > skews[2]).all()


def test_warm_up_is_gradient_descent_on_the_shared_set():
    # one batch holds the whole set: each epoch is one full gradient step of size lr, momentum 0.9
    federated = data(batch_size=64)
    module, _ = run(Start, 1, data=federated, warmup_epochs=3)
    reference = make_module(Start).net
    inputs, targets = next(federated.train_source.batches([federated.shared]))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(reference(inputs), targets).backward()
        optimizer.step()
    for name, weight in reference.named_parameters():
        torch.testing.assert_close(module.start[f"net.{name}"], weight.detach(), rtol=1e-4, atol=1e-6)


def test_clients_start_with_a_fresh_optimizer_after_the_warm_up():
    class Momenta(DataSharing):
        def on_client_start(self, download):
            super().on_client_start(download)
            self.momenta = [*getattr(self, "momenta", []), len(self.trainer.optimizers[0].state)]

    assert run(Momenta, 1, data=data())[0].momenta[0] == 0


def test_the_warm_up_comes_before_the_first_round_only():
    class Count(DataSharing):
        count = 0

        def _warm_up(self):
            self.count += 1
            super()._warm_up()

    assert run(Count, 3, data=data())[0].count == 1


def test_batch_norm_statistics_come_out_of_the_warm_up():
    module, _ = run(Start, 1, data=data(), net=BatchNormNet, warmup_epochs=2)
    assert int(module.start["net.fc1.1.num_batches_tracked"]) > 0


def test_the_warm_up_uses_the_loss_of_any_module():
    from lightning.pytorch import LightningModule

    class Own(LightningModule):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(0.0))

        def training_step(self, batch, batch_idx):
            self.log("train_loss", self.w.detach(), on_step=True)
            return {"loss": (self.w - 1) ** 2}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.25)

    class Shared(DataSharingMixin, Own):
        start = None

        def on_round_start(self):
            super().on_round_start()
            self.start = self.start if self.round_index else self.global_weights["w"].item()

    module = Shared(warmup_epochs=2)
    run(module, 1, data=data(batch_size=64))
    assert module.start == pytest.approx(0.75)  # w <- w - 0.25 * 2 (w - 1): 0, 0.5, 0.75


def test_warm_up_happens_once_and_resume_is_bit_identical(tmp_path):
    assert_resumes(DataSharing, tmp_path, make=data)


def test_without_an_option_the_server_takes_a_twentieth():
    federated = data(shared_fraction=0.0)
    run(DataSharing, 1, data=federated, federation=Federation(participation=2))
    assert federated.shared_fraction == 0.05
    assert len(federated.shared) == 3


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"alpha": 1.5}, r"`alpha=1.5` must lie in \[0, 1\]"),
        ({"warmup_epochs": -1}, "`warmup_epochs=-1` must be at least 0"),
    ],
)
def test_refusals(option, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(DataSharing, **option)
