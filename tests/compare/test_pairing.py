"""Methods that are compared start from the same weights."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback, seed_everything

import flightning.algorithms
from flightning.classifier import Classifier
from flightning.cli import main
from flightning.compare.grid import known_classes
from flightning.nets import MLP

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI.s args parameter")
METHODS = [n for n in known_classes("algorithms") if issubclass(getattr(flightning.algorithms, n), Classifier)]


class Seen(Exception):
    """The weights have been seen."""


class Look(Callback):
    def on_train_start(self, trainer, pl_module):
        self.weights = {n: w.clone() for n, w in pl_module.net.state_dict().items()}
        self.hash = trainer.datamodule.partition_hash
        raise Seen


def start(*arguments):
    look = Look()
    options = ["--trainer.logger=false", "--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false"]
    with pytest.raises(Seen):
        main(["fit", "--config=quickstart", *arguments, *options], [look])
    return look


def test_two_methods_start_alike_through_the_command_line():
    one = start("--model=FedAvg", "--seed_everything=1")
    two = start("--model=SCAFFOLD", "--seed_everything=1")
    other = start("--model=FedAvg", "--seed_everything=2")
    assert one.hash == two.hash != other.hash
    assert all(torch.equal(one.weights[n], two.weights[n]) for n in one.weights)
    assert not all(torch.equal(one.weights[n], other.weights[n]) for n in one.weights)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_builds_the_network_first(name):
    """What a method draws for itself comes after the network, which is then the same for all."""

    def weights(method):
        seed_everything(3, verbose=False)
        built = method(net=partial(MLP, projection=16), input_shape=(1, 8, 8), num_classes=10)
        return dict(built.net.named_parameters())

    plain, own = weights(flightning.algorithms.FedAvg), weights(getattr(flightning.algorithms, name))
    shared = [n for n in plain if n in own and plain[n].shape == own[n].shape]
    assert len(shared) >= len(plain) - 2  # a method may have a classifier of its own
    assert all(torch.equal(plain[n], own[n]) for n in shared)
