"""Evaluation where clients keep weights of their own."""

import numpy as np
import pytest
import torch
from torch import nn

from flightning.algorithms import FD, SOLO, FedAvg, FedAvgMixin, FedProto
from flightning.callbacks import Federation
from flightning.datamodules import FederatedDataModule
from tests.classification import RoundMemory, make_data, make_module, run, weights_of
from tests.problems import QuadraticModule, fit, make_trainer


class PersonalHead(FedAvg):
    """The head stays with the client, everything else is averaged."""

    def is_shared(self, name):
        return "head" not in name and super().is_shared(name)


class Mean(QuadraticModule):
    """Logs its weight in evaluation, weighted by the size of the batch."""

    def validation_step(self, batch, batch_idx):
        self.log("val/w", self.w.float() * float(batch[1][0]), batch_size=len(batch[1]))
        self.log("val/constant", 2.0)


class PersonalMean(FedAvgMixin, Mean):
    def is_shared(self, name):
        return False


def quadratic_data(**kwargs):
    pairs = [(torch.tensor([[h, b]], dtype=torch.float64), torch.tensor([0])) for h, b in ((1, -1), (3, 0.5), (10, 2))]
    # one batch of three samples with factor 1, one of a single sample with factor 5
    test = torch.zeros(4, 2, dtype=torch.float64), torch.tensor([1, 1, 1, 5])
    return FederatedDataModule.from_clients(pairs, test, eval_batch_size=3, **kwargs)


def test_logged_values_are_means_over_clients_and_samples():
    memory = RoundMemory()
    module = PersonalMean()
    fit(module, quadratic_data(), 1, Federation(local_steps=5), logger=memory)
    own = [b * (1 - (1 - 0.02 * h) ** 5) for h, b in ((1, -1), (3, 0.5), (10, 2))]
    per_client = [w * (3 * 1 + 1 * 5) / 4 for w in own]
    assert memory.rounds[1]["val/w"] == pytest.approx(np.mean(per_client), rel=1e-5)
    assert memory.rounds[1]["val/w_std"] == pytest.approx(np.std(per_client), rel=1e-5)
    assert memory.rounds[1]["val/constant"] == 2.0
    assert memory.rounds[1]["val/constant_std"] == 0.0


def test_shared_models_have_no_spread():
    memory = RoundMemory()
    fit(make_module(FedAvg), make_data(), 1, logger=memory)
    assert not any(name.endswith("accuracy_std") for name in memory.rounds[1])


def test_personal_parts_stay_and_the_rest_is_averaged():
    module = make_module(PersonalHead)
    fit(module, make_data(), 2)
    kept = module.client_states.state_dict()
    assert {tuple(sorted(kept[c]["weights"])) for c in kept} == {("net.head.bias", "net.head.weight")}
    assert not torch.equal(kept[0]["weights"]["net.head.bias"], kept[1]["weights"]["net.head.bias"])


def test_a_client_that_never_trained_is_evaluated_with_the_global_weights():
    module, memory = make_module(PersonalHead), RoundMemory()
    fit(module, make_data(), 1, Federation(participation=1), logger=memory)
    assert len(module.client_states) == 1
    assert memory.rounds[1]["val/accuracy_std"] >= 0


def test_global_weights_are_back_after_evaluation():
    module, data = make_module(PersonalHead), make_data()
    trainer = fit(module, data, 1)
    before = weights_of(module)
    trainer.validate(module, datamodule=data, verbose=False)
    trainer.test(module, datamodule=data, verbose=False)
    assert all(torch.equal(before[n], w) for n, w in weights_of(module).items())


def test_dropout_is_off_and_statistics_are_the_clients_own():
    class Recording(PersonalHead):
        def validation_step(self, batch, batch_idx):
            assert not self.training
            super().validation_step(batch, batch_idx)

    def net(shape, classes):
        layers = nn.Sequential()
        layers.add_module("body", nn.Sequential(nn.Linear(*shape, 6), nn.Dropout(0.5)))
        layers.add_module("head", nn.Linear(6, classes))
        return layers

    fit(make_module(Recording, net=net), make_data(), 1)


def test_training_logs_are_not_repeated_per_client():
    class Chatty(PersonalHead):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("train/loss", loss, on_step=False, on_epoch=True)
            return loss

    memory = RoundMemory()
    fit(make_module(Chatty), make_data(), 1, logger=memory)
    assert "train/loss_std" not in memory.rounds[1]


@pytest.mark.parametrize("cls", [FD, FedProto])
def test_methods_that_look_at_layers_are_tested_after_a_fit(cls):
    # `Trainer.test` runs in inference mode, whose tensors have no version
    module, _ = run(cls, 2)
    trainer = make_trainer(1, Federation(), logger=False, enable_checkpointing=False)
    [metrics] = trainer.test(module, datamodule=make_data(), verbose=False)
    assert 0 <= metrics["test/accuracy"] <= 1


def test_clients_without_samples_are_left_out():
    # the mean and deviation of two clients are those of the same two and a third that owns nothing
    logged = []
    for classes, sizes in ((((0, 1), (1, 2)), [6, 6]), (((0, 1), (), (1, 2)), [6, 0, 6])):
        data = make_data(classes=classes, per_class=sizes, batch_size=12, shuffle=False)
        logged.append(run(SOLO, 1, data)[1][0])
    assert logged[1]["val/accuracy_std"] == pytest.approx(logged[0]["val/accuracy_std"])
    assert logged[1]["val/loss"] == pytest.approx(logged[0]["val/loss"])
