r"""FedDF: start from the mean of the clients' weights and imitate the ensemble of their models on unlabelled data.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020, Algorithm 1.
https://arxiv.org/abs/2006.07242
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flightning.algorithms.base import Weights
from flightning.algorithms.composition import check_whole_models
from flightning.algorithms.observe import without_noise
from flightning.algorithms.server_data import ServerDataMixin, shuffled
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError, check_choice
from flightning.functional.aggregation import Payload, average
from flightning.functional.losses import distillation
from flightning.functional.seeding import numpy_generator, torch_generator

__all__ = ["FedDF", "FedDFMixin"]

_SPLIT, _ORDER = 26, 27
#: Divergence below which the student is left alone: Adam would turn rounding errors into steps of full size.
_EQUAL = 1e-7


class FedDFMixin(ServerDataMixin):
    r"""Minimise :math:`\mathrm{KL}(\mathrm{softmax}(\frac{1}{m} \sum_k z_k) \Vert p)` over samples of the server.

    The student starts from FedAvg's mean and is trained by Adam with a cosine schedule, in evaluation mode: BatchNorm
    uses the averaged statistics. A part of the server's samples, with labels, chooses the step whose student is kept.
    The samples are those of ``data.shared_fraction``; the labels of the others are never looked at.

    Args:
        steps: Most steps of the distillation in a round. ``0`` is FedAvg.
        lr: First rate of Adam, > 0.
        batch_size: Samples of a step.
        eval_every: Steps between two looks at the validation accuracy.
        patience: Steps without a better one after which the distillation stops.
        validation_fraction: Share of the server's samples that are kept for validation, in [0, 1). With ``0`` all steps
            are taken and the last student is kept.
        temperature: Temperature of the divergence, > 0.
        ensemble: Imitate the mean of the logits (``avg_logits``), or each model, with the mean of the divergences
            (``avg_losses``).
        **kwargs: Arguments of the module behind the mixin.
    """

    reductions: ClassVar[Mapping[str, str]] = {"weights": "stack"}
    owns = frozenset({"aggregation rule"})
    default_shared_fraction = 0.1

    def __init__(
        self,
        steps: int = 10_000,
        lr: float = 1e-3,
        batch_size: int = 128,
        eval_every: int = 100,
        patience: int = 1000,
        validation_fraction: float = 0.2,
        temperature: float = 1.0,
        ensemble: Literal["avg_logits", "avg_losses"] = "avg_logits",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if steps < 0:
            raise ConfigurationError(f"`steps={steps}` must be at least 0: use 0 for FedAvg.")
        for name, value in (("lr", lr), ("temperature", temperature)):
            if value <= 0:
                raise ConfigurationError(f"`{name}={value}` must be above 0: leave it out for the default.")
        for name, count in (("batch_size", batch_size), ("eval_every", eval_every), ("patience", patience)):
            if count < 1:
                raise ConfigurationError(f"`{name}={count}` must be at least 1: leave it out for the default.")
        if not 0 <= validation_fraction < 1:
            raise ConfigurationError(
                f"`validation_fraction={validation_fraction}` must lie in [0, 1): 0.2 keeps a fifth of the server's "
                "samples, 0 takes all steps."
            )
        check_choice("ensemble", ensemble, ("avg_logits", "avg_losses"))
        self.steps, self.distill_lr, self.distill_batch_size = steps, lr, batch_size
        self.eval_every, self.patience, self.validation_fraction = eval_every, patience, validation_fraction
        self.temperature, self.ensemble = temperature, ensemble

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_whole_models(cls, "FedDFMixin")

    def aggregate(self, uploads: Payload) -> None:
        """Fuse the models: their mean, then the distillation."""
        models: dict[int, Weights] = uploads["weights"]
        new = average(models, self.cohort_weights)
        if self.steps:
            new |= self._distil(new, list(models.values()))
        super().aggregate({**uploads, "weights": new})

    def _distil(self, start: Weights, models: list[Weights]) -> Weights:
        order = numpy_generator(self.federated_data.seed, _SPLIT).permutation(self.shared)
        held_out = round(self.validation_fraction * len(order))
        inputs = self.shared_inputs(order[held_out:])
        teachers = torch.stack([self.outputs_of(inputs, model) for model in models])
        teachers = teachers.mean(dim=0, keepdim=True) if self.ensemble == "avg_logits" else teachers
        self.load_weights(start)
        validation = self.split_batch(self.shared_batch(order[:held_out])) if held_out else None
        kept, taken = self._imitate(inputs, teachers, validation)
        self.round_metrics["round/distillation_steps"] = float(taken)
        return kept

    def _imitate(
        self, inputs: Tensor, teachers: Tensor, validation: tuple[Tensor, Tensor] | None
    ) -> tuple[Weights, int]:
        """Train the live weights; return those of the best look at the validation samples and the steps taken."""
        keys = self.federated_data.seed, self.round_index, _ORDER
        batches = shuffled(len(inputs), self.distill_batch_size, self.steps, torch_generator(*keys))
        optimizer = torch.optim.Adam(self.trainable().values(), lr=self.distill_lr)
        best, best_step, kept, taken = self._accuracy(validation), 0, self._snapshot(), 0
        for taken in range(1, self.steps + 1):
            if not self._step(optimizer, inputs, teachers, next(batches).to(inputs.device), taken - 1):
                break
            if taken % self.eval_every == 0 and validation is not None:
                accuracy = self._accuracy(validation)
                if accuracy >= best:
                    # an equal accuracy is kept, as the later student is nearer to the ensemble, but is no progress
                    best_step = taken if accuracy > best else best_step
                    best, kept = accuracy, self._snapshot()
                if taken - best_step >= self.patience:
                    break
        optimizer.zero_grad()
        return (self._snapshot() if validation is None else kept), taken

    def _step(self, optimizer: torch.optim.Adam, inputs: Tensor, teachers: Tensor, chosen: Tensor, done: int) -> bool:
        for group in optimizer.param_groups:
            group["lr"] = self.distill_lr * (1 + math.cos(math.pi * done / self.steps)) / 2
        with without_noise(self), self.trainer.precision_plugin.forward_context():
            student = self(inputs[chosen])
            losses = [distillation(student, teacher[chosen], self.temperature) for teacher in teachers]
            loss = torch.stack(losses).mean()
        if loss < _EQUAL:
            return False
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return True

    def _snapshot(self) -> Weights:
        return {n: w.detach().clone() for n, w in self.trainable().items()}

    def _accuracy(self, validation: tuple[Tensor, Tensor] | None) -> float:
        if validation is None:
            return 0.0
        inputs, targets = validation
        return float((self.outputs_of(inputs).argmax(dim=1) == targets).float().mean())


class FedDF(FedDFMixin, Classifier):
    """FedDF on the built-in classifier."""
