import pytest
import torch

from flightning.algorithms import Centralized, CentralizedMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from tests.classification import RoundMemory, make_data, make_module, run, weights_of
from tests.problems import fit, fit_quadratic


def test_the_pooled_optimum_is_reached():
    data = Quadratic(batch_size=3)
    module = fit_quadratic(CentralizedMixin, rounds=80, local_steps=5, data=data)
    assert module.w.item() == pytest.approx(data.optimum, abs=1e-6)


def test_equals_plain_training_on_the_pooled_data():
    data = make_data(shuffle=False, batch_size=8)
    module = make_module(Centralized)
    reference = make_module(Centralized)
    fit(module, data, 3, Federation(local_epochs=2))
    optimizer = reference.configure_optimizers()  # momentum, one optimizer from beginning to end
    data = make_data(shuffle=False)
    data.setup("fit")
    inputs, targets = data.train_source.inputs, data.train_source.targets
    for _ in range(3 * 2):
        for start in range(0, len(targets), 8):
            loss = torch.nn.functional.cross_entropy(reference(inputs[start : start + 8]), targets[start : start + 8])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, weight in weights_of(reference).items():
        torch.testing.assert_close(weights_of(module)[name], weight, rtol=1e-6, atol=1e-7)


def test_nothing_crosses_a_network():
    memory = RoundMemory()
    fit(make_module(Centralized), make_data(), 1, logger=memory)
    assert memory.rounds[1]["round/bytes_up"] == memory.rounds[1]["round/bytes_down"] == 0
    assert memory.rounds[1]["round/clients"] == 1


def test_participation_does_not_apply():
    _, rows = run(Centralized, 1, federation=Federation(participation=2))
    assert rows[0]["round/clients"] == 1
