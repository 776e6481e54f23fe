"""How well the model serves each client: accuracy on local test sets, and its spread over clients."""

from __future__ import annotations

import csv
import os
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from numpy.typing import NDArray
from torch import Tensor

from flightning.algorithms.base import FederatedMixin
from flightning.algorithms.observe import evaluating
from flightning.callbacks.checks import check_datamodule, check_module
from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.local_tests import LocalTests
from flightning.datamodules.skews import GroupedSkew
from flightning.errors import ConfigurationError, check_choice
from flightning.functional.fairness import fairness
from flightning.loggers import RoundCSVLogger
from flightning.strategies.processes import Processes

__all__ = ["ClientEvaluation"]


class ClientEvaluation(Callback):
    """Evaluate clients on their local test sets and log how the accuracy spreads over them.

    Logged: ``clients/accuracy_mean``, ``clients/accuracy_std``, ``clients/accuracy_worst10`` and ``_best10`` (mean of
    the worst and best tenth of the clients), ``clients/jain`` (1 where all are served equally), and where a skew puts
    clients into groups the mean of each group, ``clients/accuracy_group0`` and so on. W&B and TensorBoard get the
    distribution as a histogram, W&B also a table. ``clients.csv`` in the run's folder holds the last
    evaluation. Every client counts the same; the data module's ``client_test`` decides which test sets they have.

    Global weights are evaluated in one pass over the test sets of all clients together.

    Args:
        every: Rounds between two evaluations; the last round is always evaluated.
        weights: ``global`` weights, each client's ``personal`` ones, or ``auto``: personal where the algorithm keeps
            some.

    Example:
        >>> ClientEvaluation(every=5).every
        5
        >>> ClientEvaluation(every=0)
        Traceback (most recent call last):
            ...
        flightning.errors.ConfigurationError: `every=0` must be at least 1: 1 evaluates after every round.
    """

    def __init__(self, every: int = 1, weights: Literal["auto", "global", "personal"] = "auto") -> None:
        if every < 1:
            raise ConfigurationError(f"`every={every}` must be at least 1: 1 evaluates after every round.")
        check_choice("weights", weights, ("auto", "global", "personal"))
        self.every, self.weights = every, weights
        #: Accuracy of each client in the last evaluation; NaN for a client without test samples.
        self.accuracies: NDArray[np.float64] = np.empty(0)
        self._evaluated = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the local test sets, so that what is wrong with them is found before any training."""
        check_module(pl_module)
        tests = self._data(trainer).local_tests
        if not any(len(part) for part in tests.parts):
            raise ConfigurationError(
                "no client has a local test sample: hold a share of each client's own samples out, `client_test: 0.2`."
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget earlier fits."""
        self._evaluated = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse weights that the algorithm does not keep, before the first local step."""
        self._uses_personal_weights(check_module(pl_module))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate together with the validation of a round, so that callbacks can watch the result."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._evaluate_round(trainer, pl_module)
        elif trainer.state.fn == "validate":
            self._evaluate(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate a round that has no validation."""
        self._evaluate_round(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate together with a test."""
        self._evaluate(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the table of clients."""
        if not (trainer.is_global_zero and len(self.accuracies)):
            return
        rows = self._rows(trainer)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                import wandb

                logger.experiment.log({"clients/table": wandb.Table(columns=list(_COLUMNS), data=rows)})

    def _evaluate_round(self, trainer: Trainer, module: LightningModule) -> None:
        finished = trainer.current_epoch + 1
        if self._evaluated == finished or (finished % self.every and finished != trainer.max_epochs):
            return
        self._evaluated = finished
        self._evaluate(trainer, module)
        if trainer.is_global_zero:
            self._log_distribution(trainer, finished)

    def _evaluate(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module, tests = check_module(pl_module), self._data(trainer).local_tests
        processes = Processes.of(trainer.strategy)
        with evaluating(module):
            if self._uses_personal_weights(module):
                hits = _personal_hits(module, tests, self._data(trainer).eval_batch_size, processes)
            else:
                hits = _global_hits(module, tests, self._data(trainer).eval_batch_size, processes)
        processes.sum([hits])
        sizes = np.array([len(part) for part in tests.parts])
        self.accuracies = np.divide(hits.cpu().numpy(), sizes, out=np.full(len(sizes), np.nan), where=sizes > 0)
        numbers = {**fairness(self.accuracies[sizes > 0]), **self._group_means(self._data(trainer))}
        module.log_dict(
            {f"clients/{name}": torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
        )

    def _group_means(self, data: FederatedDataModule) -> dict[str, float]:
        if not isinstance(data.skew, GroupedSkew):
            return {}
        groups = [self.accuracies[group :: data.skew.groups] for group in range(data.skew.groups)]
        return {
            f"accuracy_group{number}": float(np.nanmean(own))
            for number, own in enumerate(groups)
            if not np.isnan(own).all()
        }

    def _uses_personal_weights(self, module: FederatedMixin) -> bool:
        if self.weights == "personal" and not module.has_personal_weights:
            raise ConfigurationError(
                f"`weights='personal'`, but clients of `{type(module).__name__}` keep no weights of their own: set "
                "`weights: global`, or use an algorithm such as `FedBN`."
            )
        return self.weights != "global" and module.has_personal_weights

    def _data(self, trainer: Trainer) -> FederatedDataModule:
        return check_datamodule(trainer.datamodule)  # type: ignore[attr-defined]

    def _rows(self, trainer: Trainer) -> list[list[Any]]:
        data = self._data(trainer)
        names = data.client_names or range(len(self.accuracies))
        sizes = [len(part) for part in data.local_tests.parts]
        return [
            [str(name), size, None if np.isnan(accuracy) else float(accuracy)]
            for name, size, accuracy in zip(names, sizes, self.accuracies, strict=True)
        ]

    def _log_distribution(self, trainer: Trainer, finished: int) -> None:
        known = self.accuracies[~np.isnan(self.accuracies)]
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                import wandb

                logger.experiment.log({"clients/accuracy": wandb.Histogram(known), "round": finished})
            elif isinstance(logger, TensorBoardLogger):
                logger.experiment.add_histogram("clients/accuracy", known, finished)
            elif isinstance(logger, RoundCSVLogger):
                _write(logger.folder / "clients.csv", self._rows(trainer))


_COLUMNS = ("client", "test samples", "accuracy")


def _write(path: Path, rows: list[list[Any]]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", newline="") as file:
        csv.writer(file).writerows([[c.replace(" ", "_") for c in _COLUMNS], *rows])
    os.replace(temporary, path)


def _global_hits(module: FederatedMixin, tests: LocalTests, batch_size: int, processes: Processes) -> Tensor:
    """Right answers of the global weights for each client: one pass over all test sets together."""
    order, owners = np.concatenate(tests.parts), torch.from_numpy(tests.owners)
    starts = range(processes.rank * batch_size, len(order), processes.count * batch_size)
    batches = [order[start : start + batch_size] for start in starts]
    hits = torch.zeros(len(tests.parts), dtype=torch.float64)
    for start, batch in zip(starts, tests.source.batches(batches), strict=True):
        right = _right_answers(module, batch).cpu()
        hits.index_add_(0, owners[start : start + len(right)], right)
    return hits


def _personal_hits(module: FederatedMixin, tests: LocalTests, batch_size: int, processes: Processes) -> Tensor:
    """Right answers of each client's own weights on its own test set."""
    hits = torch.zeros(len(tests.parts), dtype=torch.float64)
    replaced: set[str] = set()
    own_batches = {
        client: [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
        for client, part in enumerate(tests.parts)
        if client % processes.count == processes.rank and len(part)
    }
    batches = tests.source.batches(
        [batch for own in own_batches.values() for batch in own]
    )  # small ones are read together
    module.hold_layers()
    for client, orders in own_batches.items():
        own = module.personal_weights(client)
        # only what differs from the weights that are in the module now
        module.load_weights({**{name: module.global_weights[name] for name in replaced - own.keys()}, **own})
        replaced = set(own)
        hits[client] = sum(float(_right_answers(module, batch).sum()) for batch in islice(batches, len(orders)))
    module.release_layers()
    module.load_global_weights()
    return hits


def _right_answers(module: FederatedMixin, batch: Any) -> Tensor:
    """One for each right answer of a batch."""
    trainer = module.trainer
    batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
    inputs, targets = module.split_batch(batch)
    with trainer.precision_plugin.forward_context():
        logits: Tensor = module(inputs)
    return (logits.argmax(dim=-1) == targets).double()
