"""Made-up data with known answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flightning.datamodules.in_memory import InMemoryData

__all__ = ["Quadratic"]


class Quadratic(InMemoryData):
    r"""Clients with :math:`f_i(w) = \frac{h_i}{2} (w - b_i)^2`: one sample each, the pair :math:`(h_i, b_i)`.

    The sum of all :math:`f_i` is least at :math:`w^* = \sum_i h_i b_i / \sum_i h_i`; FedAvg with :math:`K` full
    gradient steps of size :math:`\eta` ends elsewhere, at :math:`\sum_i (1 - a_i) b_i / \sum_i (1 - a_i)` with
    :math:`a_i = (1 - \eta h_i)^K`. Every correction of client drift can be checked against these two numbers.

    Args:
        curvatures: The :math:`h_i`.
        centers: The :math:`b_i`.
        copies: How often each client holds its sample, so that clients can have different sizes.
        **kwargs: Arguments of `FederatedDataModule`.

    Example:
        >>> round(Quadratic().optimum, 7)
        1.4642857
    """

    def __init__(
        self,
        curvatures: Sequence[float] = (1.0, 3.0, 10.0),
        centers: Sequence[float] = (-1.0, 0.5, 2.0),
        copies: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        pairs = torch.tensor([*zip(curvatures, centers, strict=True)], dtype=torch.float64)
        counts = torch.tensor(copies or [1] * len(pairs))
        owners = torch.repeat_interleave(torch.arange(len(pairs)), counts)
        parts = [(owners == i).nonzero()[:, 0].numpy() for i in range(len(pairs))]
        options: dict[str, Any] = {"num_clients": len(pairs), "batch_size": int(counts.max()), **kwargs}
        super().__init__((pairs[owners], owners), parts=parts, **options)
        h, b = pairs.unbind(1)
        self.optimum = float((h * b).sum() / h.sum())
