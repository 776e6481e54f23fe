r"""CCVR: after training, retrain the classifier on features drawn from the clients' class-wise Gaussians.

Luo et al., "No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data", NeurIPS 2021,
Algorithm 1. https://arxiv.org/abs/2106.05001
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from flightning.algorithms.base import FederatedMixin
from flightning.algorithms.observe import evaluating
from flightning.callbacks.federation import Federation
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import num_bytes
from flightning.functional.gaussians import ClassStatistics, class_statistics, pool_statistics, sample_features
from flightning.functional.layers import truncated_input
from flightning.functional.seeding import resolve_seed, torch_generator

__all__ = ["CCVR"]

_CCVR = 41


class CCVR(Callback):
    """Calibrate the last `Linear` of the global model, once.

    In `fit` at its end: the calibrated model is left in the module and written to ``ccvr.ckpt`` beside the other
    checkpoints, and ``ccvr/accuracy_before`` and ``ccvr/accuracy`` on the validation samples enter the log of the last
    round. In `validate` and `test`, on a finished checkpoint, before the evaluation. The features stay as they are.

    Args:
        virtual_per_class: Features drawn for each class; classes with fewer than two samples in all get none.
        epochs: Passes over the drawn features. ``0`` changes nothing.
        lr: Learning rate of SGD with momentum 0.9.
        batch_size: Features of a step.
        jitter: Added to the variances.
        seed: Seed of draws and order; ``None`` takes that of `seed_everything`, or 0.

    Example:
        >>> CCVR(virtual_per_class=500).virtual_per_class
        500
    """

    def __init__(
        self,
        virtual_per_class: int = 200,
        epochs: int = 20,
        lr: float = 0.01,
        batch_size: int = 64,
        jitter: float = 1e-6,
        seed: int | None = None,
    ) -> None:
        for name, value, default in (("virtual_per_class", virtual_per_class, 200), ("batch_size", batch_size, 64)):
            if value < 1:
                raise ConfigurationError(f"`{name}={value}` must be at least 1: the default is {default}.")
        for name, number, effect in (("epochs", epochs, "changes nothing"), ("jitter", jitter, "adds nothing")):
            if number < 0:
                raise ConfigurationError(f"`{name}={number}` must be at least 0: 0 {effect}.")
        if lr <= 0:
            raise ConfigurationError(f"`lr={lr}` must be above 0: the default is 0.01.")
        self.virtual_per_class, self.epochs, self.lr, self.batch_size = virtual_per_class, epochs, lr, batch_size
        self.jitter, self.seed = jitter, resolve_seed(seed)
        self._is_done = False

    # --- when ---------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin."""
        self._is_done = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Calibrate the final global model, log what it brings and keep it."""
        self._calibrate_and_log(trainer, cast(FederatedMixin, pl_module))
        self._is_done = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Calibrate where the checkpoint had all rounds already: then Lightning neither starts nor ends training."""
        if self._is_done or trainer.ckpt_path is None:
            return
        module, data = cast(FederatedMixin, pl_module), trainer.datamodule  # type: ignore[attr-defined]
        federation = next(c for c in trainer.callbacks if isinstance(c, Federation))  # type: ignore[attr-defined]
        module.start_federation(data.num_clients, federation.buffers)
        self._calibrate_and_log(trainer, module)

    def _calibrate_and_log(self, trainer: Trainer, module: FederatedMixin) -> None:
        module.load_global_weights()
        before = _accuracy(trainer, module)
        bytes_up, bytes_down = self.calibrate(trainer, module)
        metrics = {"ccvr/bytes_up": float(bytes_up), "ccvr/bytes_down": float(bytes_down)}
        metrics["round"] = float(trainer.current_epoch)
        if before is not None:
            metrics |= {"ccvr/accuracy_before": before, "ccvr/accuracy": cast(float, _accuracy(trainer, module))}
            if trainer.is_global_zero:
                print(f"CCVR: accuracy {before:.4f} before, {metrics['ccvr/accuracy']:.4f} after")
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.current_epoch)
            logger.save()
        folder = next((c.dirpath for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)), None)
        if folder is not None:
            trainer.save_checkpoint(Path(folder) / "ccvr.ckpt", weights_only=False)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Calibrate a finished checkpoint, after `Federation` has started wherever it stands among the callbacks."""
        if trainer.state.fn == "validate":
            self.calibrate(trainer, cast(FederatedMixin, pl_module))

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Calibrate a finished checkpoint, after `Federation` has started wherever it stands among the callbacks."""
        if trainer.state.fn == "test":
            self.calibrate(trainer, cast(FederatedMixin, pl_module))

    # --- how ----------------------------------------------------------------------------------------------------

    def calibrate(self, trainer: Trainer, module: FederatedMixin) -> tuple[int, int]:
        """Retrain the classifier of the live weights.

        Returns:
            Bytes that the clients send (count, mean and half of a symmetric covariance per class, in single precision)
            and receive (the new classifier).

        Raises:
            ConfigurationError: If there is no global classifier, or no class with two samples.
        """
        head, data = _classifier(module), trainer.datamodule  # type: ignore[attr-defined]
        classes, clients = int(data.num_classes), [k for k, size in enumerate(data.sizes) if size > 0]
        statistics = (class_statistics(_features(trainer, module, client), classes) for client in clients)
        with evaluating(module):
            pooled = pool_statistics(statistics)
        if not (pooled.counts >= 2).any():
            raise ConfigurationError("no class has two training samples, so `CCVR` knows no covariance: remove it.")
        self._retrain(head, pooled)
        name, live = module.feature_layer, module.live_weights()
        known = [n for n in live if n.startswith(f"{name}.") and n in module.global_weights]
        module.set_global_weights({n: live[n].detach() for n in known})
        d = head.in_features
        return 4 * len(clients) * classes * (1 + d + d * (d + 1) // 2), len(clients) * num_bytes(head.state_dict())

    def _retrain(self, head: nn.Linear, statistics: ClassStatistics) -> None:
        generator = torch_generator(self.seed, _CCVR)
        features, labels = sample_features(statistics, self.virtual_per_class, generator, self.jitter)
        features = features.to(head.weight.dtype)
        wanted = [p.requires_grad for p in head.parameters()]
        optimizer = torch.optim.SGD(head.parameters(), lr=self.lr, momentum=0.9)
        with torch.inference_mode(False), torch.enable_grad():
            for _ in range(self.epochs):
                order = torch.randperm(len(labels), generator=generator).to(labels.device)
                for chosen in torch.split(order, self.batch_size):
                    loss = F.cross_entropy(F.linear(features[chosen], head.weight, head.bias), labels[chosen])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        optimizer.zero_grad()
        for parameter, flag in zip(head.parameters(), wanted, strict=True):
            parameter.requires_grad_(flag)


def _classifier(module: Any) -> nn.Linear:
    if not isinstance(module, FederatedMixin):
        raise ConfigurationError(f"`{type(module).__name__}` has no federated algorithm: CCVR calibrates one that has.")
    if module.has_personal_weights:
        raise ConfigurationError(
            f"`{type(module).__name__}` keeps weights on the clients, so there is no global classifier for `CCVR` to "
            "calibrate: remove the callback."
        )
    head = module.get_submodule(module.feature_layer)
    classes = module.federated_data.num_classes
    if not isinstance(head, nn.Linear) or head.out_features != classes:
        raise ConfigurationError(
            f"the last linear layer `{module.feature_layer}` does not have one output per class ({classes}), so `CCVR` "
            "cannot retrain it: remove the callback, or end the net with `nn.Linear(..., num_classes)`."
        )
    return head


def _pairs(trainer: Trainer, module: FederatedMixin, batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels in the precision and on the device of the module."""
    for batch in batches:
        inputs = trainer.precision_plugin.convert_input(batch)
        # at the end of a fit the module has left the device of the strategy already
        yield module.split_batch(trainer.strategy.batch_to_device(inputs, module.device))


def _features(trainer: Trainer, module: FederatedMixin, client: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Features and labels of a client under the live weights."""
    layer = module.feature_layer[len(module.forward_root_prefix) :]
    batches = trainer.datamodule.client_batches(client)  # type: ignore[attr-defined]
    for inputs, labels in _pairs(trainer, module, batches):
        yield truncated_input(module.forward_root, layer, inputs), labels


def _accuracy(trainer: Trainer, module: FederatedMixin) -> float | None:
    """Accuracy of the live weights on the validation samples; ``None`` without any."""
    batches = trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]
    with evaluating(module):
        hits = [module(inputs).argmax(dim=1) == labels for inputs, labels in _pairs(trainer, module, batches)]
    own = sum(int(h.sum()) for h in hits), sum(len(h) for h in hits)
    # the samples are spread over the processes of the run
    gathered = [own] if module.gather_evaluation is None else module.gather_evaluation(own)
    right, number = (sum(counts) for counts in zip(*gathered, strict=True))
    return right / number if number else None
