import numpy as np
import pytest
import torch

from flightning.algorithms import SOLO, SOLOMixin
from flightning.callbacks import Federation
from tests.classification import make_data, make_module, run, weights_of
from tests.problems import fit, fit_quadratic, make_trainer


def test_every_client_reaches_its_own_optimum():
    # w_k after R rounds of K steps: b_k (1 - (1 - eta h_k)^(R K))
    module = fit_quadratic(SOLOMixin, rounds=4, local_steps=5)
    for client, (h, b) in enumerate(zip((1, 3, 10), (-1, 0.5, 2), strict=True)):
        own = module.client_states.state_dict()[client]["weights"]["w"].item()
        assert own == pytest.approx(b * (1 - (1 - 0.02 * h) ** 20), rel=1e-12)


def test_nothing_is_exchanged():
    _, rows = run(SOLO, 2)
    assert all(r["round/bytes_up"] == r["round/bytes_down"] == 0 for r in rows)


def test_the_global_weights_never_move():
    module = make_module(SOLO)
    before = weights_of(module)
    fit(module, make_data(), 2)
    assert all(torch.equal(before[n], w) for n, w in weights_of(module).items())


def test_everybody_trains_whatever_the_participation():
    _, rows = run(SOLO, 2, federation=Federation(participation=1))
    assert [r["round/clients"] for r in rows] == [3, 3]


def test_accuracy_is_the_mean_over_clients_with_standard_deviation():
    module, rows = run(SOLO, 2)
    data = make_data()
    data.setup("fit")
    accuracies = []
    for client in range(3):
        module.load_weights(module.client_states.state_dict()[client]["weights"])
        inputs, targets = data.test_source.inputs, data.test_source.targets
        accuracies.append((module(inputs).argmax(1) == targets).float().mean().item())
    assert rows[-1]["val/accuracy"] == pytest.approx(np.mean(accuracies), rel=1e-6)
    assert rows[-1]["val/accuracy_std"] == pytest.approx(np.std(accuracies), rel=1e-5)
    assert np.std(accuracies) > 0


def test_clients_can_be_tested_after_the_fit_and_from_a_checkpoint(tmp_path):
    module, data = make_module(SOLO), make_data()
    trainer = fit(module, data, 2)
    (expected,) = trainer.validate(module, datamodule=data, verbose=False)
    trainer.save_checkpoint(tmp_path / "solo.ckpt")
    fresh = make_module(SOLO, seed=9)
    (found,) = make_trainer(1).validate(
        fresh, datamodule=make_data(), ckpt_path=str(tmp_path / "solo.ckpt"), verbose=False
    )
    assert found == expected
    assert "val/accuracy_std" in found


def test_one_client_is_trained_without_interruption():
    # momentum lives on over rounds: 3 rounds of 2 epochs are 6 epochs
    long, _ = run(SOLO, 1, federation=Federation(local_epochs=6), data=make_data(shuffle=False))
    short, _ = run(SOLO, 3, federation=Federation(local_epochs=2), data=make_data(shuffle=False))
    for client in range(3):
        a, b = (m.client_states.state_dict()[client]["weights"] for m in (long, short))
        assert all(torch.equal(a[n], b[n]) for n in a)
