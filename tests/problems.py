"""Small problems whose answers are known on paper, run through the real Trainer."""

import lightning.pytorch as pl
import torch
from torch import nn

from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic


class QuadraticModule(pl.LightningModule):
    """One weight, loss h/2 (w - b)^2 of the samples (h, b) in the batch."""

    def __init__(self, lr=0.02, momentum=0.0, weight_decay=0.0, start=0.0, nesterov=False):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(float(start), dtype=torch.float64))
        self.lr, self.momentum, self.weight_decay, self.nesterov = lr, momentum, weight_decay, nesterov

    def training_step(self, batch, batch_idx):
        (h, b) = batch[0].unbind(1)
        return (h / 2 * (self.w - b) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(
            self.parameters(),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


class TwoGroups(QuadraticModule):
    """Two weights on the same problem; the second has its own rate, and momentum 0.9."""

    def __init__(self, lr=0.02, second_lr=0.01):
        super().__init__(lr=lr)
        self.v = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
        self.second_lr = second_lr

    def training_step(self, batch, batch_idx):
        h, b = batch[0].unbind(1)
        return (h / 2 * ((self.w - b) ** 2 + (self.v - b) ** 2)).mean()

    def configure_optimizers(self):
        groups = [{"params": [self.w]}, {"params": [self.v], "lr": self.second_lr, "momentum": 0.9}]
        return torch.optim.SGD(groups, lr=self.lr)


def make_trainer(rounds, federation=None, callbacks=(), **kwargs):
    options = {
        "accelerator": "cpu",
        "max_epochs": rounds,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        **kwargs,
    }
    return pl.Trainer(callbacks=[federation or Federation(), *callbacks], **options)


def fit(module, data, rounds, federation=None, callbacks=(), **kwargs):
    """Run a federation and return its trainer."""
    trainer = make_trainer(rounds, federation, callbacks, **kwargs)
    trainer.fit(module, datamodule=data)
    return trainer


def fit_quadratic(mixin, rounds, local_steps=5, data=None, federation=None, module_kwargs=None, **kwargs):
    """Final weight of an algorithm on the quadratic problem, K full gradient steps per round, in double precision.

    ``kwargs`` are the algorithm's arguments, ``module_kwargs`` those of `QuadraticModule` (lr, momentum, start ...).
    """
    cls = type(f"{mixin.__name__}Quadratic", (mixin, QuadraticModule), {})
    module = cls(**kwargs, **(module_kwargs or {}))
    federation = federation or Federation(local_steps=local_steps)
    fit(module, data or Quadratic(), rounds, federation)
    return module
