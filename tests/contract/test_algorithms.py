"""What every exported algorithm promises; a new one is covered the day it is exported."""

import copy
import inspect
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import flightning.algorithms
from flightning.algorithms import FedProxMixin
from flightning.callbacks import Federation
from flightning.callbacks.planning import Planner
from flightning.classifier import Classifier
from flightning.datamodules import FederatedDataModule
from flightning.errors import ClientError, CompositionError, ConfigurationError
from tests.algorithms_on_digits import READY_MADE, BatchNormNet, PlainNet, make_digits, make_federation, make_module
from tests.classification import assert_equal_nested
from tests.problems import fit, make_trainer

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=READY_MADE)
def name(request):
    return request.param


def stem(name):
    return Path(inspect.getfile(getattr(flightning.algorithms, name))).stem


def train(name, rounds=2, federation=None, callbacks=(), ckpt_path=None, net=PlainNet, **trainer):
    module = make_module(name, net=net)
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


def test_batch_norm_trains_with_statistics_that_are_variances_or_is_refused(name):
    try:
        module = train(name, net=BatchNormNet, limit_val_batches=1)
    except ConfigurationError as error:
        assert "BatchNorm" in str(error)  # noqa: PT017
        return
    weights = {**module.state_dict(), **module.global_weights}
    assert all(torch.isfinite(w).all() for w in weights.values() if w.is_floating_point())
    assert (module.global_weights["net.fc1.2.running_var"] > 0).all()


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


# --- identical clients, and a single one ----------------------------------------------------------------------------

STEPS, ROUNDS, LR = 3, 2, 0.05
_SERVER_SAMPLES = "the server takes samples from the clients, who are then no longer identical"
#: Why the number of identical clients matters.
COUNTS_CLIENTS = {
    "CDFDM": _SERVER_SAMPLES,
    "DSFL": _SERVER_SAMPLES,
    "DataSharing": _SERVER_SAMPLES,
    "FedDF": _SERVER_SAMPLES,
    "FD": "a single client has nobody to learn from",
    "FedCD": "every client draws the first centres of its clusters",
    "FedCurv": "the penalty is a sum over the other clients",
    "FedMA": "every client draws its own initial weights",
    "VHL": "every client draws its own virtual samples",
}
#: Why a single client does not take the steps of SGD, whatever the arguments.
NEVER_SGD = {
    "DSFL": "the server's model learns from predictions alone",
    "FedDC": "the server adds the client's drift to its weights",
    "FedDyn": "the server goes on in the direction of the last rounds",
    "FedPD": "it is FedDyn",
}
#: What turns the terms of an algorithm off.
NEUTRAL = {
    "CDFDM": {"mu": 0.0, "shared_ratio": 0.0, "warmup_rounds": 0, "dp": 0.0},
    "DataSharing": {"alpha": 0.0, "warmup_epochs": 0},
    "FD": {"gamma": 0.0},
    "FedAdagrad": {"tau": 1e6, "server_lr": 2e6},
    "FedAdam": {"tau": 1e6, "server_lr": 2e6, "beta1": 0.0, "beta2": 1 - 1e-9},
    "FedAtt": {"epsilon": 1.0, "dp": 0.0},
    "FedAvgM": {"beta": 0.0},
    "FedCD": {
        "M": 1,
        "lambda_": 0.0,
        "gamma": 0.0,
        "mu": 1.0,
        "hpc": False,
        "classifier": "fedavg",
        "rebalance": "none",
        "bias": True,
    },
    "FedCurv": {"lam": 0.0},
    "FedDF": {"steps": 0},
    "FedMA": {"head": "samples", "independent_start": False},
    "FedProc": {"T_0": 0},
    "FedProto": {"lam": 0.0},
    "FedProx": {"mu": 0.0},
    "FedRL": {"mu": 0.0},
    "FedYogi": {"tau": 1e6, "server_lr": 2e6, "beta1": 0.0},
    "MOON": {"mu": 0.0},
    "QFedAvg": {"q": 0.0},
    "RFedAvg": {"lambda_": 0.0},
    "RFedAvgPlus": {"lambda_": 0.0},
    "VHL": {"a": 0.0, "w_c": 0.0, "w_n": 0.0},
}


def some_digits():
    digits = make_digits()
    digits.setup("fit")
    inputs, targets = next(iter(digits.train_source.batches([np.arange(60)])))
    return inputs, targets


def train_identical(name, copies, **kwargs):
    """Clients with the same samples in one batch: module before and after, and the data."""
    data = FederatedDataModule.from_clients([some_digits()] * copies, test=some_digits(), batch_size=60 * copies)
    module = make_module(name, net=PlainNet, **kwargs)
    start = copy.deepcopy(module)
    fit(module, data, ROUNDS, Federation(local_steps=STEPS), limit_val_batches=0)
    return start, module, data


def weights_of(module):
    """The global weights, or those of the first client where nothing is shared."""
    personal = module.personal_weights(0) if module.has_personal_weights else {}
    return {**module.state_dict(), **personal}


def expect_difference(request, reason):
    if reason is not None:
        expected = AssertionError, ClientError
        request.applymarker(pytest.mark.xfail(reason=reason, raises=expected, strict=True))


@pytest.fixture
def _plain_sgd(monkeypatch):
    monkeypatch.setattr(Classifier, "configure_optimizers", lambda self: torch.optim.SGD(self.parameters(), lr=LR))


@pytest.mark.usefixtures("_plain_sgd")
def test_identical_clients_equal_one_client(name, request):
    expect_difference(request, COUNTS_CLIENTS.get(name))
    (_, one, _), (_, three, _) = train_identical(name, 1), train_identical(name, 3)
    for (n, a), b in zip(weights_of(one).items(), weights_of(three).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=n)


@pytest.mark.usefixtures("_plain_sgd")
def test_one_client_without_terms_equals_sgd_on_its_data(name, request):
    expect_difference(request, NEVER_SGD.get(name))
    start, module, data = train_identical(name, 1, **NEUTRAL.get(name, {}))
    inputs, targets = next(iter(data.train_source.batches([data.parts[0]])))
    optimizer = torch.optim.SGD(start.parameters(), lr=LR)
    for _ in range(ROUNDS * STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(start(inputs), targets).backward()
        optimizer.step()
    for (n, a), b in zip(start.state_dict().items(), weights_of(module).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=n)


# --- clients that add nothing ---------------------------------------------------------------------------------------

_SERVER_OWNS = "the server owns some of its samples"
_NOT_SAMPLED = "the mean over all clients counts it as one that did not take part"
#: Why a client without samples matters.
COUNTS_EMPTY = {"DataSharing": "the server gives it samples, with which it trains"}
#: Why a client whose update is left out is not as if it had no samples.
COUNTS_BROKEN = {
    "CDFDM": _SERVER_OWNS,
    "Centralized": "its samples are in the pool",
    "DSFL": _SERVER_OWNS,
    "DataSharing": _SERVER_OWNS,
    "FedCD": "it cannot cluster such features, and says so",
    "FedDC": _NOT_SAMPLED,
    "FedDF": _SERVER_OWNS,
    "FedDyn": _NOT_SAMPLED,
    "FedIR": "its labels are part of the distribution of all",
    "SCAFFOLD": _NOT_SAMPLED,
}


def train_two_and(third, name):
    inputs, targets = some_digits()
    clients = [(inputs[:30], targets[:30]), (inputs[30:], targets[30:]), third(inputs, targets)]
    data = FederatedDataModule.from_clients([c for c in clients if c is not None], test=some_digits(), batch_size=30)
    module = make_module(name, net=PlainNet)
    fit(module, data, ROUNDS, Federation(local_steps=STEPS), limit_val_batches=0)
    return module


def nobody(inputs, targets):
    return None


def empty(inputs, targets):
    return inputs[:0], targets[:0]


def broken(inputs, targets):
    return torch.full_like(inputs[:30], torch.nan), targets[:30]


@pytest.mark.usefixtures("_plain_sgd")
@pytest.mark.filterwarnings("ignore:1 of 3 clients have no samples")
@pytest.mark.parametrize(("third", "reasons"), [(empty, COUNTS_EMPTY), (broken, COUNTS_BROKEN)])
def test_client_without_samples_or_with_broken_ones_changes_nothing(name, third, reasons, request):
    expect_difference(request, reasons.get(name))
    without, module = train_two_and(nobody, name), train_two_and(third, name)
    for (n, a), b in zip(weights_of(without).items(), weights_of(module).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=n)
