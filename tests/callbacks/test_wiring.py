"""What is set up before a fit."""

import signal

import pytest
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch import Callback

from flightning.algorithms import FedAvg
from tests.classification import make_data, make_module
from tests.problems import fit


class Handlers(Callback):
    """Keep what the requeue signal would do inside a fit."""

    def on_train_start(self, trainer, pl_module):
        self.handler = signal.getsignal(signal.SIGUSR1)


def test_the_automatic_requeue_of_slurm_is_switched_off():
    handlers = Handlers()
    with pytest.warns(UserWarning, match="automatic requeue would save inside a round.*submit the job again with"):
        fit(make_module(FedAvg), make_data(), 1, callbacks=[handlers], plugins=[SLURMEnvironment()])
    assert handlers.handler is signal.SIG_DFL


def test_slurm_without_requeue_needs_no_warning(recwarn):
    fit(make_module(FedAvg), make_data(), 1, plugins=[SLURMEnvironment(auto_requeue=False)])
    assert not [w for w in recwarn if "requeue" in str(w.message)]
