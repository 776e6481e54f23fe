"""A small classification federation, run through the real Trainer, and what its rounds logged."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.nn import functional as F

from flightning.callbacks import Federation
from flightning.datamodules import IID, FederatedDataModule, RotationSkew
from flightning.nets import MLP, Net
from tests.problems import make_trainer

#: Classes of the clients: each lacks one.
CLASSES = ((0, 1), (1, 2), (0, 2))


def make_data(classes=CLASSES, per_class=6, size=4, batch_size=4, num_classes=3, **kwargs):
    """Gaussian clouds, one per class; client k holds ``per_class`` samples of each of its classes."""
    generator = torch.Generator().manual_seed(0)

    def draw(labels):
        labels = torch.as_tensor(labels, dtype=torch.long)
        return torch.randn(len(labels), size, generator=generator) + F.one_hot(labels, size), labels

    counts = per_class if isinstance(per_class, (list, tuple)) else [per_class] * len(classes)
    clients = [draw([c for c in own for _ in range(n)]) for own, n in zip(classes, counts, strict=True)]
    test = draw([c for c in range(num_classes) for _ in range(4)])
    return FederatedDataModule.from_clients(
        clients, test, num_classes=num_classes, **{"batch_size": batch_size, "eval_batch_size": 8, **kwargs}
    )


def make_turned_pictures(count=24, **kwargs):
    """Pictures of four pixels, which each of three clients sees from another side."""
    pictures = torch.rand(count, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 3
    options = {"num_clients": 3, "partition": IID(), "skew": RotationSkew(3), "seed": 0, "batch_size": 4, **kwargs}
    return FederatedDataModule.from_dataset(pictures, pictures, **options)


def small_net(input_shape, num_classes, hidden=(5,), **kwargs):
    return MLP(input_shape, num_classes, hidden=hidden, **kwargs)


class BatchNormNet(Net):
    """A net with BatchNorm under an inconspicuous name."""

    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.fc1 = nn.Sequential(nn.Linear(input_shape[0], 5), nn.BatchNorm1d(5), nn.ReLU())
        self.head = nn.Linear(5, num_classes)


class RoundMemory(Logger):
    """Keep what is logged, one dict per round."""

    name = version = None

    def __init__(self):
        super().__init__()
        self.rounds = {}

    def log_metrics(self, metrics, step=None):
        self.rounds.setdefault(int(metrics.get("round", 0)), {}).update(metrics)

    def log_hyperparams(self, *args, **kwargs):
        pass


def make_module(cls, net=small_net, size=4, num_classes=3, seed=0, **kwargs):
    """The algorithm on a small net; the same seed gives the same weights."""
    torch.manual_seed(seed)
    return cls(net=net, input_shape=(size,), num_classes=num_classes, **kwargs)


def _saves(callbacks):
    # without a checkpoint callback of the test's own, Lightning would add one that writes into the working directory
    return any(isinstance(c, ModelCheckpoint) for c in callbacks)


def run(cls, rounds=3, data=None, federation=None, callbacks=(), ckpt_path=None, **kwargs):
    """Fit and return module and logged metrics, the dict of each round in order."""
    module = cls if isinstance(cls, nn.Module) else make_module(cls, **kwargs)
    memory = RoundMemory()
    federation = federation or Federation(local_epochs=2)
    trainer = make_trainer(rounds, federation, callbacks, logger=memory, enable_checkpointing=_saves(callbacks))
    trainer.fit(module, datamodule=data or make_data(), ckpt_path=ckpt_path)
    return module, [memory.rounds[i] for i in sorted(memory.rounds) if i]


def weights_of(module):
    return {name: weight.detach().clone() for name, weight in module.state_dict().items()}


def assert_same(a, b):
    """The same weights, bit for bit."""
    a, b = (weights_of(m) if isinstance(m, nn.Module) else m for m in (a, b))
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


class Crash(Callback):
    """Break off at the start of the third round."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            raise InterruptedError


def assert_resumes(cls, tmp_path, make_federation=lambda: Federation(local_epochs=2), make=make_data, **kwargs):
    """Four rounds equal four rounds that break off in the third and go on: weights and all declared state."""
    whole, _ = run(cls, 4, make(), make_federation(), **kwargs)
    saving = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    with pytest.raises(InterruptedError):
        run(cls, 4, make(), make_federation(), callbacks=[Crash(), saving], **kwargs)
    resumed, _ = run(cls, 4, make(), make_federation(), ckpt_path=str(tmp_path / "last.ckpt"), seed=99, **kwargs)
    assert_same(whole, resumed)
    assert_equal_nested(whole.server_state.values, resumed.server_state.values)
    assert_equal_nested(whole.client_states.state_dict(), resumed.client_states.state_dict())


def assert_equal_nested(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal_nested(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal_nested(x, y)
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b
