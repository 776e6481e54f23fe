r"""FD: exchange mean logits per label in place of weights.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under Non-IID
Private Data", 2018, section 2. https://arxiv.org/abs/1811.11479
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flightning.algorithms.base import FederatedMixin
from flightning.algorithms.observe import evaluating
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError, check_choice
from flightning.functional.aggregation import Payload
from flightning.functional.prototypes import class_means

__all__ = ["FD", "FDMixin"]


class FDMixin(FederatedMixin):
    r"""Add :math:`\gamma \, \mathrm{CE}(\mathrm{softmax}(\hat F_{k,y}), p)`: imitate the other clients' mean logits.

    A client sends the mean logits :math:`\bar F_{k,c}` of its samples of each label, a C x C table with zeros for
    labels that it lacks. The server sends back the means over the *other* clients that have the label,
    :math:`\hat F_{k,c} = (\sum_i \bar F_{i,c} - \bar F_{k,c}) / (M_c - 1)`, from the last table of each. Weights stay
    on the clients; evaluation is the mean over them.

    Args:
        gamma: Weight of the distillation, at least 0. ``0`` is SOLO.
        logits: Whether means are over a pass with the trained model (``clean``) or over its training steps
            (``training``).
        **kwargs: Arguments of the module behind the mixin.
    """

    reductions: ClassVar[Mapping[str, str]] = {"logits": "stack"}
    keeps_optimizer = True

    def __init__(self, gamma: float = 1.0, logits: Literal["clean", "training"] = "clean", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if gamma < 0:
            raise ConfigurationError(f"`gamma={gamma}` must be at least 0: use 0 for SOLO.")
        check_choice("logits", logits, ("clean", "training"))
        self.gamma, self.averaging = gamma, logits
        self.add_server_state("tables", dict)
        self._totals = torch.empty(0), torch.empty(0)

    def is_shared(self, name: str) -> bool:
        """No weight is shared."""
        return False

    def on_federation_start(self) -> None:
        """Watch the logits."""
        super().on_federation_start()
        if self.averaging == "training" and self.federated_data.batch_shard[1] > 1:
            raise ConfigurationError(
                "`logits='training'` averages over the batches of a client, and under `ddp` every process sees a part "
                "of each: set `logits: clean`, or `trainer.strategy` to `client_parallel`."
            )
        self._root = self.forward_root_prefix.rstrip(".")
        self.watch_layers(self._root)

    def on_round_start(self) -> None:
        """Sum the tables up once, however many clients take their own off."""
        super().on_round_start()
        if self.server_state.tables:
            stack = torch.stack(list(self.server_state.tables.values()))
            self._totals = stack.double().sum(dim=0), _owned(stack).sum(dim=0)

    def download(self, client: int) -> Payload:
        """Send the mean logits of the other clients, once there are any."""
        payload, tables = super().download(client), self.server_state.tables
        if self.gamma and len(tables) > (client in tables):
            total, owners = self._totals
            if client in tables:
                own = tables[client]
                total, owners = total - own, owners - _owned(own)
            # where nobody else has the label the total is the own row plus zeros, and the difference exactly 0
            payload["logits"] = (total / owners.clamp_min(1)[:, None]).to(next(iter(tables.values())))
        return payload

    def on_client_start(self, download: Payload) -> None:
        """Take the targets."""
        super().on_client_start(download)
        self._targets: Tensor | None = download.get("logits")
        self._sums = torch.zeros(self.federated_data.num_classes, self.federated_data.num_classes + 1)

    def regularization(self, batch: Any) -> dict[str, Tensor]:
        """Cross-entropy with the others' mean prediction for the label; nothing where nobody else has it."""
        terms = super().regularization(batch)
        logits, labels = self.layer_output(self._root), self.split_batch(batch)[1]
        if self.averaging == "training":
            means, counts = class_means(logits.detach().float().cpu(), labels.cpu(), len(self._sums))
            self._sums = self._sums + torch.cat([means * counts[:, None], counts[:, None]], dim=1)
        if self._targets is not None:
            known = self._targets.ne(0).any(dim=1)[labels]
            losses = F.cross_entropy(logits, self._targets[labels].softmax(dim=1), reduction="none")
            terms["distillation"] = self.gamma * (known * losses).mean()
        return terms

    def on_client_end(self) -> Payload:
        """Send the mean logits of each label."""
        upload = super().on_client_end()
        if self.gamma:
            upload["logits"] = self._clean_means() if self.averaging == "clean" else self._training_means()
        return upload

    def _clean_means(self) -> Tensor:
        with evaluating(self):
            pairs = [(self(inputs).float(), labels) for inputs, labels in map(self.split_batch, self.client_batches())]
        logits, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return class_means(logits, labels, self.federated_data.num_classes)[0]

    def _training_means(self) -> Tensor:
        return (self._sums[:, :-1] / self._sums[:, -1:].clamp_min(1)).to(self.device)

    def aggregate(self, uploads: Payload) -> None:
        """Keep the last table of every client."""
        super().aggregate(uploads)
        self.server_state.tables = {**self.server_state.tables, **uploads.get("logits", {})}


def _owned(tables: Tensor) -> Tensor:
    """Which labels a client has, of one table (C, C) or of many."""
    return tables.ne(0).any(dim=-1).long()


class FD(FDMixin, Classifier):
    """FD on the built-in classifier."""
