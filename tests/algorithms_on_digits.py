"""Every ready-made algorithm on the digits, for the tests that compare loops, processes and precisions."""

import torch
from torch import nn

import flightning.algorithms
from flightning.callbacks import Federation
from flightning.datamodules import Digits
from flightning.datamodules.partitioners import Dirichlet
from flightning.datamodules.transforms import PadCrop
from flightning.nets import Net
from tests.problems import make_trainer

READY_MADE = [name for name in flightning.algorithms.__all__ if not name.endswith("Mixin")]

#: Settings without which an algorithm refuses to run.
_FEDERATION = {"FedPD": {"participation": 1.0}}
#: Settings that make an algorithm quick enough for a test, and let two rounds reach all of its stages.
_ARGUMENTS = {"FedDF": {"steps": 20, "eval_every": 10}, "CDFDM": {"warmup_rounds": 1}}


class DropoutNet(Net):
    """Two layers with dropout in between."""

    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.fc1 = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(16, num_classes)


class PlainNet(Net):
    """Two layers."""

    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.fc1 = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
        self.head = nn.Linear(16, num_classes)


class BatchNormNet(Net):
    """Two layers with BatchNorm in between."""

    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.fc1 = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, num_classes)


def make_module(name, net=DropoutNet, **kwargs):
    torch.manual_seed(0)
    cls = getattr(flightning.algorithms, name) if isinstance(name, str) else name
    return cls(**{"net": net, "input_shape": (1, 8, 8), "num_classes": 10, **_ARGUMENTS.get(name, {}), **kwargs})


def make_digits(augmented=False, **kwargs):
    kwargs |= {"augment": [PadCrop(1)]} if augmented else {}
    return Digits(**{"num_clients": 6, "partition": Dirichlet(alpha=0.5, min_size=20), "batch_size": 32, **kwargs})


def make_federation(name, **kwargs):
    return Federation(**{"participation": 0.5, **_FEDERATION.get(name, {}), **kwargs})


def run(
    name, rounds=2, net=DropoutNet, federation=None, data=None, callbacks=(), ckpt_path=None, arguments=None, **kwargs
):
    """Fit an algorithm, by name or class, on the digits and return module and trainer; ``arguments`` are its own."""
    module = make_module(name, net, **(arguments or {}))
    options = {"gradient_clip_val": 0.5, **kwargs}
    trainer = make_trainer(rounds, make_federation(name, **(federation or {})), callbacks, **options)
    trainer.fit(module, datamodule=data or make_digits(), ckpt_path=ckpt_path)
    return module, trainer
