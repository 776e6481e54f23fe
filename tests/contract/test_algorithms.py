"""What every exported algorithm promises; a new one is covered the day it is exported."""

import inspect
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint

import flightning.algorithms
from flightning.algorithms import FedProxMixin
from flightning.callbacks import Federation
from flightning.callbacks.planning import Planner
from flightning.classifier import Classifier
from flightning.errors import CompositionError
from tests.algorithms_on_digits import READY_MADE, PlainNet, make_digits, make_federation, make_module
from tests.classification import assert_equal_nested
from tests.problems import fit, make_trainer

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=READY_MADE)
def name(request):
    return request.param


def stem(name):
    return Path(inspect.getfile(getattr(flightning.algorithms, name))).stem


def train(name, rounds=2, federation=None, callbacks=(), ckpt_path=None, **trainer):
    module = make_module(name, net=PlainNet)
    options = {"limit_val_batches": 0, **trainer}
    runner = make_trainer(rounds, federation or make_federation(name), callbacks, **options)
    runner.fit(module, datamodule=make_digits(), ckpt_path=ckpt_path)
    return module


class Interrupt(pl.Callback):
    """Crash at the start of the third round."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            raise InterruptedError


def test_has_a_page_a_config_and_a_row_in_the_readme(name):
    assert (ROOT / "docs" / "algorithms" / f"{stem(name)}.md").is_file()
    configs = (ROOT / "flightning" / "configs").glob("*.yaml")
    assert any(yaml.safe_load(c.read_text())["model"]["class_path"] == name for c in configs)
    assert f"| [{name}]" in (ROOT / "README.md").read_text() or f"`{name}`" in (ROOT / "README.md").read_text()


def test_hyperparameters_and_state_survive_a_checkpoint_and_resume_is_exact(name, tmp_path):
    whole = train(name, 3)
    saving = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    with pytest.raises(InterruptedError):
        train(name, 3, callbacks=[saving, Interrupt()], enable_checkpointing=True)
    resumed = train(name, 3, ckpt_path=str(tmp_path / "last.ckpt"))
    for (n, a), (_, b) in zip(whole.state_dict().items(), resumed.state_dict().items(), strict=True):
        assert torch.equal(a, b), n
    assert_equal_nested(dict(whole.server_state.values), dict(resumed.server_state.values))
    kept = torch.load(tmp_path / "last.ckpt", weights_only=False)["hyper_parameters"]
    for key, value in whole.hparams.items():
        assert kept[key] == value


def test_bf16_stays_finite(name):
    module = train(name, precision="bf16-mixed")
    assert all(torch.isfinite(w).all() for w in module.state_dict().values() if w.is_floating_point())


def test_state_of_clients_that_did_not_take_part_stays_as_it_was(name):
    federation = make_federation(name)
    module = make_module(name, net=PlainNet)
    seen = {}

    class Watch(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            states = pl_module.client_states
            seen["before"] = {k: states.load(k, torch.device("cpu")) for k in states}

        def on_train_epoch_end(self, trainer, pl_module):
            asked = {*pl_module.cohort, *federation.plan(trainer.current_epoch + 1).cohort}
            for client, before in seen["before"].items():
                if client not in asked:
                    assert_equal_nested(before, pl_module.client_states.load(client, torch.device("cpu")))

    fit(module, make_digits(), 3, federation, [Watch()], limit_val_batches=0)
    assert "before" in seen


def test_composes_with_fedprox_or_says_why_not(name):
    mixin = getattr(flightning.algorithms, f"{name}Mixin")
    if issubclass(mixin, FedProxMixin):
        pytest.skip("it is a FedProx itself")
    try:
        cls = type(f"Prox{name}", (FedProxMixin, mixin, Classifier), {})
    except CompositionError as error:
        assert name in str(error)  # noqa: PT017
        return
    ready = getattr(flightning.algorithms, name)
    if vars(ready).keys() - {"__module__", "__doc__", "__qualname__", "reductions"}:
        pytest.skip("the ready-made class arranges more than the mixin")
    torch.manual_seed(0)
    module = cls(net=PlainNet, input_shape=(1, 8, 8), num_classes=10, mu=0.5)
    fit(module, make_digits(), 1, make_federation(name), limit_val_batches=0)
    assert all(torch.isfinite(w).all() for w in module.state_dict().values() if w.is_floating_point())


def test_order_of_clients_does_not_matter(name, monkeypatch):
    forward = train(name, 2, Federation(participation=1.0))
    plan = Planner.plan

    def reversed_plan(self, round_index):
        made = plan(self, round_index)
        return type(made)(made.round_index, tuple(reversed(made.visits)))

    monkeypatch.setattr(Planner, "plan", reversed_plan)
    backward = train(name, 2, Federation(participation=1.0))
    for (n, a), (_, b) in zip(forward.state_dict().items(), backward.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=n)
