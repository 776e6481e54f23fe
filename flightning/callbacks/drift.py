"""How far clients move away from the global weights and from each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from torch import Tensor

from flightning.algorithms.base import Client, FederatedMixin
from flightning.callbacks.federation import Federation
from flightning.callbacks.listener import RoundListener
from flightning.callbacks.run_report import run_folder
from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Reducer
from flightning.plots import feature_figure, save_figure
from flightning.strategies.processes import Processes

__all__ = ["Drift"]

_FEWEST = 3
"""Samples whose distances t-SNE can look at: each needs two others."""


class Drift(RoundListener):
    r"""Log how far the clients of a round drift, and draw their features.

    With the updates :math:`\Delta_k = w_k - w^t` of the :math:`m` clients of a round:

    - ``drift/norm``, ``drift/norm_std``, ``drift/norm_max``: mean, deviation and maximum of
      :math:`\lVert \Delta_k \rVert`;
    - ``drift/cosine``: mean cosine between two clients' updates,
      :math:`(\lVert \sum_k \Delta_k / \lVert \Delta_k \rVert \rVert^2 - m) / (m (m - 1))`, so that no update has to be
      kept;
    - ``drift/distance/<layer>``: mean of :math:`\lVert \Delta_k \rVert` over the parameters of a layer.

    The picture shows t-SNE of the features (inputs of the last `Linear`) of single clients: their own training samples
    under their own weights at the end of their local steps, coloured by class and marked by client. It is saved as
    ``tsne/round_<n>.png`` in the run's folder; of fewer than three samples there is none.

    Args:
        every: Rounds between two logs of the drift.
        tsne_every: Rounds between two pictures; ``0`` draws none.
        tsne_clients: Clients in a picture, the first of the cohort by number.
        tsne_samples: Samples of each of them.

    Example:
        >>> Drift(every=5).every
        5
        >>> Drift(every=0)
        Traceback (most recent call last):
            ...
        flightning.errors.ConfigurationError: `every=0` must be at least 1: 1 logs every round.
    """

    def __init__(self, every: int = 1, tsne_every: int = 0, tsne_clients: int = 3, tsne_samples: int = 100) -> None:
        if every < 1:
            raise ConfigurationError(f"`every={every}` must be at least 1: 1 logs every round.")
        if tsne_every < 0:
            raise ConfigurationError(f"`tsne_every={tsne_every}` must be at least 0: 0 draws no pictures.")
        for name, value, least in (("tsne_clients", tsne_clients, 1), ("tsne_samples", tsne_samples, 2)):
            if value < least:
                raise ConfigurationError(f"`{name}={value}` must be at least {least}.")
        self.every, self.tsne_every = every, tsne_every
        self.tsne_clients, self.tsne_samples = tsne_clients, tsne_samples
        self._features: dict[int, dict[str, Tensor]] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse pictures of a network without features, before any work is done."""
        if self.tsne_every and isinstance(pl_module, FederatedMixin):
            _ = pl_module.feature_layer

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a round."""
        finished = trainer.current_epoch + 1
        self._measures = finished % self.every == 0
        self._draws = self.tsne_every > 0 and finished % self.tsne_every == 0
        self._reducer = Reducer({"units": "sum", "squares": "stack", "features": "stack"})
        self._features = {}

    @torch.no_grad()
    def on_client_trained(self, module: FederatedMixin, client: Client) -> None:
        """Take in the update of a client."""
        upload: dict[str, Any] = self._update(module) if self._measures else {}
        if self._draws and client.id in sorted(module.cohort)[: self.tsne_clients]:
            upload["features"] = self._sample_features(module)
        if upload:
            self._reducer.add(client.id, client.weight, upload)

    def _update(self, module: FederatedMixin) -> dict[str, Any]:
        received = module.global_weights
        updates = {n: w.detach().to(received[n].dtype) - received[n] for n, w in module.trainable().items()}
        squares = torch.stack([torch.linalg.vector_norm(u).double() for u in updates.values()]).square()
        length = float(squares.sum().sqrt())
        units = {n: u.div_(length) for n, u in updates.items()} if length else {}
        return {"units": units, "squares": squares}

    def _sample_features(self, module: FederatedMixin) -> dict[str, Tensor]:
        batches = list(module.client_features())
        features, targets = (
            torch.cat([batch[i].flatten(1) if i == 0 else batch[i] for batch in batches]) for i in (0, 1)
        )
        chosen = np.linspace(0, len(targets) - 1, min(self.tsne_samples, len(targets))).round().astype(int)
        return {"features": features[chosen].flatten(1).float(), "targets": targets[chosen]}

    def on_cohort_trained(self, module: FederatedMixin, processes: Processes) -> None:
        """Bring the updates together and hand the numbers to the log of the round."""
        processes.merge(self._reducer)
        reduced = self._reducer.result()
        self._features = reduced.get("features", {})
        if reduced.get("squares"):
            squares = torch.stack([s.cpu() for s in reduced["squares"].values()])
            module.round_metrics.update(_drift(squares, reduced.get("units", {}), _layers(module)))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the picture."""
        if not trainer.is_global_zero or sum(len(f["targets"]) for f in self._features.values()) < _FEWEST:
            return
        federation = next(c for c in trainer.callbacks if isinstance(c, Federation))  # type: ignore[attr-defined]
        federation.finished_metrics()  # the picture is no part of the round: its clocks stop here
        finished = trainer.current_epoch + 1
        figure = _picture(self._features, getattr(trainer.datamodule, "class_names", None), finished)  # type: ignore[attr-defined]
        path = run_folder(trainer) / "tsne" / f"round_{finished:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_figure(figure, path)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                import wandb

                logger.experiment.log({"drift/tsne": wandb.Image(str(path)), "round": finished})
            elif isinstance(logger, TensorBoardLogger):
                logger.experiment.add_figure("drift/tsne", figure, finished)


def _layers(module: FederatedMixin) -> list[str]:
    prefix = module.forward_root_prefix
    return [name.removeprefix(prefix).rpartition(".")[0] or name for name in module.trainable()]


def _drift(squares: Tensor, units: Mapping[str, Tensor], layers: list[str]) -> dict[str, float]:
    """Numbers of a round from squared lengths (client by parameter) and the sum of unit vectors."""
    norms = squares.sum(dim=1).sqrt()
    metrics = {
        "drift/norm": float(norms.mean()),
        "drift/norm_std": float(norms.std(correction=0)),
        "drift/norm_max": float(norms.max()),
    }
    moved = int((norms > 0).sum())
    if moved > 1:
        total = sum(float(u.square().sum()) for u in units.values())
        metrics["drift/cosine"] = (total - moved) / (moved * (moved - 1))
    for layer in dict.fromkeys(layers):
        own = [i for i, name in enumerate(layers) if name == layer]
        metrics[f"drift/distance/{layer}"] = float(squares[:, own].sum(dim=1).sqrt().mean())
    return metrics


def _picture(features: Mapping[int, Mapping[str, Tensor]], class_names: Any, finished: int) -> Any:
    from sklearn.manifold import TSNE

    points = torch.cat([f["features"].cpu() for f in features.values()]).numpy()
    targets = torch.cat([f["targets"].cpu() for f in features.values()]).numpy()
    clients = np.repeat(list(features), [len(f["targets"]) for f in features.values()])
    perplexity = min(30.0, max(1.0, (len(points) - 1) / 3))
    placed = TSNE(perplexity=perplexity, init="random", random_state=0).fit_transform(points)
    return feature_figure(placed, targets, clients, class_names, f"Features of clients after round {finished}")
