import math

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F

from flightning.algorithms import SOLO, FedAvg, FedCD
from flightning.callbacks import CCVR, Federation
from flightning.callbacks.ccvr import _CCVR
from flightning.errors import ConfigurationError
from flightning.functional.gaussians import class_statistics, pool_statistics, sample_features
from flightning.functional.seeding import torch_generator
from tests.classification import BatchNormNet, RoundMemory, make_data, make_module, run
from tests.problems import make_trainer


def weights(module):
    return {n: w.clone() for n, w in module.state_dict().items()}


def test_only_the_classifier_changes():
    plain, _ = run(FedAvg, 2)
    module, _ = run(FedAvg, 2, callbacks=[CCVR()])
    for name, weight in weights(plain).items():
        same = torch.equal(weight, module.state_dict()[name])
        assert same == (not name.startswith("net.head")), name
    assert torch.equal(module.global_weights["net.head.weight"], module.net.head.weight)


def test_accuracy_before_and_after_are_logged_with_the_last_round():
    _, rounds = run(FedAvg, 2)
    module, with_ccvr = run(FedAvg, 2, callbacks=[CCVR()])
    assert with_ccvr[1]["ccvr/accuracy_before"] == pytest.approx(rounds[1]["val/accuracy"])
    batches = list(module.trainer.datamodule.test_dataloader())
    hits = sum((module.eval()(x).argmax(1) == y).sum().item() for x, y in batches)
    assert with_ccvr[1]["ccvr/accuracy"] == pytest.approx(hits / 12)
    assert "ccvr/accuracy" not in with_ccvr[0]


def test_bytes_are_statistics_up_and_the_classifier_down_once():
    # 3 clients, 3 classes, 5 features: 1 + 5 + 15 numbers per class up, 5 * 3 weights and 3 biases down
    _, rounds = run(FedAvg, 2, callbacks=[CCVR()])
    assert "ccvr/bytes_up" not in rounds[0]
    assert rounds[1]["ccvr/bytes_up"] == 3 * 3 * 21 * 4
    assert rounds[1]["ccvr/bytes_down"] == 3 * (5 * 3 + 3) * 4


def test_classes_that_the_classifier_had_forgotten_come_back():
    # a bias keeps class 2 from being predicted; its features are as separable as the others
    class Forgetful(FedAvg):
        def on_round_end(self):
            super().on_round_end()
            bias = self.global_weights["net.head.bias"].clone()
            bias[2] = -8.0
            self.set_global_weights({"net.head.bias": bias})
            self.load_global_weights()

    data = make_data(classes=((0, 1, 2), (0, 1, 2)), per_class=40, size=8)
    options = {"size": 8, "data": data, "federation": Federation(local_epochs=10)}
    predicted = []
    for epochs in (0, 50):
        module, _ = run(Forgetful, 1, callbacks=[CCVR(epochs=epochs)], **options)
        inputs = torch.cat([x for x, _ in module.trainer.datamodule.test_dataloader()])
        predicted.append((module.eval()(inputs).argmax(1) == 2).sum().item())
    assert predicted[0] == 0
    assert predicted[1] > 0


def test_jitter_widens_the_drawn_features(monkeypatch):
    from flightning.callbacks import ccvr

    drawn = []
    sample = ccvr.sample_features
    monkeypatch.setattr(ccvr, "sample_features", lambda *args: drawn.append(sample(*args)) or drawn[-1])
    for jitter in (0.0, 100.0):
        run(FedAvg, 1, callbacks=[CCVR(jitter=jitter)])
    narrow, wide = (features[labels == 0].std().item() for features, labels in drawn)
    assert wide == pytest.approx(10.0, rel=0.1)
    assert narrow < 5


def test_the_classifier_is_retrained_by_sgd_with_momentum():
    # six features in batches of three: two steps, the second with 0.9 of the first one's gradient
    torch.manual_seed(0)
    head, callback = nn.Linear(4, 3), CCVR(virtual_per_class=2, epochs=1, lr=0.3, batch_size=3, seed=5)
    inputs, labels = torch.randn(30, 4), torch.arange(30) % 3
    statistics = pool_statistics([class_statistics([(inputs, labels)], 3)])
    generator = torch_generator(5, _CCVR)
    features, drawn = sample_features(statistics, 2, generator, callback.jitter)
    order = torch.randperm(6, generator=generator)
    weight, bias = (p.detach().clone().requires_grad_() for p in head.parameters())
    kept = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for chosen in (order[:3], order[3:]):
        loss = F.cross_entropy(F.linear(features[chosen].float(), weight, bias), drawn[chosen])
        kept = [0.9 * k + g for k, g in zip(kept, torch.autograd.grad(loss, (weight, bias)), strict=True)]
        weight, bias = (p.detach().sub(0.3 * k).requires_grad_() for p, k in zip((weight, bias), kept, strict=True))
    callback._retrain(head, statistics)
    torch.testing.assert_close(head.weight, weight)
    torch.testing.assert_close(head.bias, bias)


def test_a_frozen_layer_stays_frozen():
    class Frozen(FedAvg):
        def on_round_end(self):
            super().on_round_end()
            self.net.fc1[1].eval()

    module, _ = run(Frozen, 1, net=BatchNormNet, callbacks=[CCVR()])
    assert (module.net.training, module.net.fc1[1].training) == (True, False)


def test_no_epoch_changes_nothing():
    plain, _ = run(FedAvg, 2)
    module, _ = run(FedAvg, 2, callbacks=[CCVR(epochs=0)])
    assert all(torch.equal(w, module.state_dict()[n]) for n, w in weights(plain).items())


@pytest.mark.parametrize("verb", ["validate", "test"])
@pytest.mark.parametrize("order", [(Federation, CCVR), (CCVR, Federation)])  # the second is that of the command line
def test_a_finished_checkpoint_can_be_calibrated(tmp_path, verb, order):
    saving = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    run(FedAvg, 2, callbacks=[saving])
    in_fit, logged = run(FedAvg, 2, callbacks=[CCVR()])
    module = make_module(FedAvg, seed=7)
    first, second = order
    trainer = make_trainer(1, first(), [second()], logger=RoundMemory())
    found = getattr(trainer, verb)(module, datamodule=make_data(), ckpt_path=str(tmp_path / "last.ckpt"))
    assert torch.equal(module.net.head.weight, in_fit.net.head.weight)
    accuracy = next(v for n, v in found[0].items() if n.endswith("accuracy"))
    assert accuracy == pytest.approx(logged[1]["ccvr/accuracy"])


def test_the_calibrated_model_is_saved_beside_the_other_checkpoints(tmp_path):
    module, _ = run(FedAvg, 2, callbacks=[ModelCheckpoint(dirpath=tmp_path, save_last=True), CCVR()])
    saved = torch.load(tmp_path / "ccvr.ckpt", weights_only=False)["state_dict"]
    assert torch.equal(saved["net.head.weight"], module.net.head.weight)
    last = torch.load(tmp_path / "last.ckpt", weights_only=False)["state_dict"]
    assert not torch.equal(last["net.head.weight"], module.net.head.weight)


def test_batch_norm_statistics_stay():
    plain, _ = run(FedAvg, 2, net=BatchNormNet)
    module, _ = run(FedAvg, 2, net=BatchNormNet, callbacks=[CCVR()])
    assert torch.equal(plain.net.fc1[1].running_mean, module.net.fc1[1].running_mean)
    assert all(math.isfinite(float(w.sum())) for w in module.state_dict().values())


def test_a_client_without_a_class_and_a_class_nobody_has():
    data = make_data(classes=((0,), (1,)), num_classes=3)
    _, rounds = run(FedAvg, 1, data=data, callbacks=[CCVR()])
    assert math.isfinite(rounds[0]["ccvr/accuracy"])


def test_no_class_with_two_samples_is_refused():
    with pytest.raises(ConfigurationError, match="no class has two training samples"):
        run(FedAvg, 1, data=make_data(classes=((0,), (1,)), per_class=1), callbacks=[CCVR()])


def test_double_precision():
    module = make_module(FedAvg)
    trainer = make_trainer(1, Federation(local_steps=1), [CCVR()], precision="64-true")
    trainer.fit(module, datamodule=make_data())
    assert module.net.head.weight.dtype == torch.float64
    assert math.isfinite(trainer.logged_metrics.get("ccvr/accuracy", 0.0))


def test_one_client_is_calibrated_by_its_own_statistics(monkeypatch):
    from flightning.callbacks import ccvr

    seen = []
    pool = ccvr.pool_statistics
    monkeypatch.setattr(ccvr, "pool_statistics", lambda clients: seen.append(pool(clients)) or seen[-1])
    module, _ = run(FedAvg, 1, data=make_data(classes=((0, 1, 2),)), callbacks=[CCVR(epochs=0)])
    inputs, labels = (torch.cat(parts) for parts in zip(*module.trainer.datamodule.client_batches(0), strict=True))
    features = module.eval().net.features(inputs).double()
    for label in range(3):
        torch.testing.assert_close(seen[0].covariances[label], torch.cov(features[labels == label].detach().T))


def test_personal_weights_are_refused():
    with pytest.raises(ConfigurationError, match="`SOLO` keeps weights on the clients"):
        run(SOLO, 1, callbacks=[CCVR()])


def test_a_classifier_without_one_output_per_class_is_refused():
    with pytest.raises(ConfigurationError, match="does not have one output per class"):
        run(FedCD, 1, callbacks=[CCVR()])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"virtual_per_class": 0}, "`virtual_per_class=0` must be at least 1"),
        ({"batch_size": 0}, "`batch_size=0` must be at least 1: the default is 64"),
        ({"epochs": -1}, "`epochs=-1` must be at least 0: 0 changes nothing"),
        ({"jitter": -1.0}, "`jitter=-1.0` must be at least 0"),
        ({"lr": 0.0}, "`lr=0.0` must be above 0: the default is 0.01"),
    ],
)
def test_refusals(option, message):
    with pytest.raises(ConfigurationError, match=message):
        CCVR(**option)
