"""FedCD's classifier, M rows per class, and the rebalanced set on which it is trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flightning.functional.layers import last_linear
from flightning.functional.prototypes import read_out

__all__ = ["FineClassifier", "RebalancedSet", "refine_classifier"]


class FineClassifier(nn.Module):
    """A linear layer with M rows per class, whose logits are gathered into those of the classes.

    Args:
        linear: The layer that it replaces; with one row per class its weights are taken over.
        per_class: Rows M per class.
        readout: How they are gathered, see :func:`flightning.functional.prototypes.read_out`.
        bias: Whether rows have a bias; the paper's have none.

    Example:
        >>> FineClassifier(nn.Linear(4, 10), 3, "logit_sum", bias=False)(torch.zeros(2, 4)).shape
        torch.Size([2, 10])
    """

    def __init__(self, linear: nn.Linear, per_class: int, readout: str, bias: bool) -> None:
        super().__init__()
        self.per_class, self.readout = per_class, readout
        self.fine = nn.Linear(linear.in_features, linear.out_features * per_class, bias=bias)
        if per_class == 1:
            with torch.no_grad():
                self.fine.weight.copy_(linear.weight)
                if bias and linear.bias is not None:
                    self.fine.bias.copy_(linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Logits of the classes."""
        return read_out(self.fine(features), self.per_class, self.readout)

    def with_rows(self, features: Tensor, rows: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """Logits of the classes by other rows, or by its own unseen by hooks."""
        weight, bias = (self.fine.weight, self.fine.bias) if rows is None else (rows, bias)
        features = features.to(weight.dtype)  # rows may be references in single precision
        return read_out(F.linear(features, weight, bias), self.per_class, self.readout)


def refine_classifier(module: nn.Module, per_class: int, readout: str, bias: bool) -> str:
    """Replace the last `Linear` of a module by a `FineClassifier` and return its name."""
    name = last_linear(module)
    parent, _, child = name.rpartition(".")
    linear = module.get_submodule(name)
    setattr(module.get_submodule(parent), child, FineClassifier(linear, per_class, readout, bias))  # type: ignore[arg-type]
    return name


class RebalancedSet:
    r"""Global prototypes as data points beside the samples of a client, :math:`D_k^+` of the paper.

    A sample has importance 1 and prototype :math:`P_{c,m}` has :math:`n_{c,m}`. The loss of a batch estimates the mean
    over the set: :math:`[\frac{n_k}{|b|} \sum_{i \in b} \ell_i + \sum n_{c,m} \ell_{c,m}] / (n_k + \sum n_{c,m})`.

    Args:
        prototypes: Global prototypes (C, M, d).
        counts: Their importance (C, M).
        num_samples: Samples :math:`n_k` of the client.
        generator: Draws prototypes into batches like samples, each with the probability of a sample; ``None`` puts all
            of them into every batch.

    Example:
        >>> data = RebalancedSet(torch.ones(2, 1, 3), torch.tensor([[2.0], [4.0]]), num_samples=6)
        >>> data.weigh(batch_size=2)
        >>> data.share, data.weights, data.importance(2)
        (tensor(0.5000), tensor([0.1667, 0.3333]), tensor([0.2500, 0.2500, 0.1667, 0.3333]))
    """

    def __init__(
        self, prototypes: Tensor, counts: Tensor, num_samples: int, generator: torch.Generator | None = None
    ) -> None:
        num_classes, per_class = prototypes.shape[:2]
        self.points, self.counts = prototypes.flatten(0, 1), counts.flatten()
        self.labels = torch.arange(num_classes, device=counts.device).repeat_interleave(per_class)
        self.owners = torch.arange(len(self.points), device=counts.device)
        self.num_samples, self.generator = num_samples, generator
        self._known: dict[int, Tensor] = {}
        self._set_weights(num_samples, self.counts)

    def weigh(self, batch_size: int) -> None:
        """Set the importance of the batch as a whole, ``share``, and of each prototype, ``weights``; together 1."""
        if self.generator is not None:
            drawn = torch.rand(len(self.counts), generator=self.generator) < batch_size / self.num_samples
            self._set_weights(batch_size, self.counts * drawn.to(self.counts))

    def _set_weights(self, own: int, counts: Tensor) -> None:
        total = own + counts.sum()
        self.share, self.weights = own / total, counts / total
        self._known.clear()

    def importance(self, batch_size: int) -> Tensor:
        """Importance of each sample of the batch, then of each prototype."""
        if batch_size not in self._known:
            samples = (self.share / batch_size).expand(batch_size)
            self._known[batch_size] = torch.cat([samples, self.weights])
        return self._known[batch_size]
