"""Layer-wise attention over client models (FedAtt, CDFDM); a layer is one parameter tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flightning.errors import check_choice

__all__ = ["READINGS", "Attention", "attention", "attentive_step", "layer_distances"]

#: How the attention of the shared model is read from CDFDM's "similar to the preceding step".
READINGS = ("separate", "joint", "layers", "one")


class Attention(NamedTuple):
    """Result of :func:`attention`."""

    clients: Tensor
    r"""Weights :math:`\alpha` (K, L) of client k at layer i."""
    shared: Tensor
    r"""Weights :math:`\beta` (L,) of the shared model; zeros where there is none."""


def layer_distances(reference: Sequence[Tensor], models: Sequence[Sequence[Tensor]]) -> Tensor:
    r"""Compute :math:`s_k^i = \lVert g^i - \ell_k^i \rVert`, the Euclidean norm of the flattened difference.

    Args:
        reference: The tensors :math:`g^i`.
        models: For each model the tensors :math:`\ell_k^i` in the same order.

    Returns:
        Distances (K, L) in double precision.

    Example:
        >>> layer_distances([torch.zeros(2), torch.zeros(1)], [[torch.tensor([3.0, 4.0]), torch.ones(1)]])
        tensor([[5., 1.]], dtype=torch.float64)
    """
    rows = [
        torch.stack([torch.linalg.vector_norm(g.double() - w.double()) for g, w in zip(reference, model, strict=True)])
        for model in models
    ]
    return torch.stack(rows)


def attention(
    distances: Tensor,
    shared_distances: Tensor | None = None,
    *,
    temperature: float = 1.0,
    sign: int = 1,
    reading: str = "separate",
) -> Attention:
    r"""Turn distances into weights, layer by layer: :math:`\alpha_k^i = \mathrm{softmax}_k(\pm s_k^i / T)`.

    Chai et al., "Cross-Domain Federated Data Modeling on Non-IID Data", 2022, Eq. 4. The weight of the shared model
    is, by ``reading``: ``separate`` :math:`\beta^i = e^{s_M^i} / (\sum_k e^{s_k^i} + e^{s_M^i})`; ``joint`` one
    softmax over clients and shared model; ``layers`` a softmax of :math:`s_M` over the layers; ``one`` always 1.

    Args:
        distances: Distances (K, L) of the clients.
        shared_distances: Distances :math:`s_M` (L,) of the shared model.
        temperature: Temperature :math:`T`, > 0; 1 in the papers. Infinity makes all clients equal.
        sign: ``1``: farther models weigh more, as in the papers; ``-1``: nearer ones do.
        reading: How :math:`\beta` is made.

    Example:
        >>> attention(torch.tensor([[1.0], [1.0]])).clients.flatten()
        tensor([0.5000, 0.5000])
        >>> attention(torch.zeros(2, 1), torch.zeros(1)).shared  # one of three equal models
        tensor([0.3333])
    """
    check_choice("reading", reading, READINGS)
    scores = sign * distances / temperature
    clients = scores.softmax(dim=0)
    if shared_distances is None:
        return Attention(clients, torch.zeros_like(distances[0]))
    shared_scores = sign * shared_distances / temperature
    everyone = torch.cat([scores, shared_scores[None]]).softmax(dim=0)
    if reading == "joint":
        return Attention(everyone[:-1], everyone[-1])
    shared = {"separate": everyone[-1], "layers": shared_scores.softmax(dim=0), "one": torch.ones_like(shared_scores)}
    return Attention(clients, shared[reading])


def attentive_step(
    weight: Tensor,
    clients: Sequence[Tensor],
    alpha: Tensor,
    step: float,
    pull: tuple[Tensor, Tensor] | None = None,
    normalise: bool = False,
) -> Tensor:
    r"""Compute :math:`g - \lambda [\sum_k \alpha_k (g - \ell_k) + \mu\beta (g - M)]` for one tensor.

    Args:
        weight: The global tensor :math:`g`.
        clients: The clients' tensors :math:`\ell_k`.
        alpha: Their weights (K,).
        step: Step size :math:`\lambda`.
        pull: The strength :math:`\mu\beta` and the shared tensor :math:`M`; ``None`` for no pull.
        normalise: Divide the step by :math:`1 + \mu\beta`, so that ``step=1`` is a convex combination.

    Returns:
        The new tensor in double precision.

    Example:
        >>> attentive_step(torch.zeros(1), [torch.ones(1), -torch.ones(1)], torch.tensor([0.75, 0.25]), step=1.0)
        tensor([0.5000], dtype=torch.float64)
    """
    g = weight.double()
    direction = sum((a * (g - w.double()) for a, w in zip(alpha, clients, strict=True)), torch.zeros_like(g))
    if pull is not None:
        strength, shared = pull
        direction = direction + strength * (g - shared.double())
        step = step / (1 + float(strength)) if normalise else step
    return g - step * direction
