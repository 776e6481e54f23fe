"""Match the hidden units of networks with a Beta-Bernoulli process prior, which lets the global layer grow (FedMA)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flightning.errors import ConfigurationError
from flightning.functional.matching import ChainLayer, Weights, expand, reorder, rows_of

__all__ = ["Prior", "grow_models", "match_growing", "restrict"]


@dataclass(frozen=True)
class Prior:
    """What is believed about global units before any client is seen, and how long they are assigned.

    Args:
        gamma: Mass of the Beta-Bernoulli process, > 0; larger values found more units.
        sigma: Deviation of a client's unit from the global one, > 0.
        sigma_0: Deviation of global units from 0, > 0.
        sweeps: How often each client is assigned, >= 1.
        max_width: Most global units; at least as many as the widest client has.

    Raises:
        ConfigurationError: If one of them is too small.
    """

    gamma: float = 7.0
    sigma: float = 1.0
    sigma_0: float = 1.0
    sweeps: int = 5
    max_width: int = 700

    def __post_init__(self) -> None:
        for name in ("gamma", "sigma", "sigma_0"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(
                    f"`{name}={getattr(self, name)}` must be above 0: leave it out for the default."
                )
        for name in ("sweeps", "max_width"):
            if getattr(self, name) < 1:
                raise ConfigurationError(
                    f"`{name}={getattr(self, name)}` must be at least 1: leave it out for the default."
                )


def match_growing(rows: Sequence[Tensor], prior: Prior = Prior()) -> list[Tensor]:
    r"""Assign the units of all clients to global units, of which there may be more than any client has (BBP-MAP).

    With :math:`S_i = \sum w / \sigma^2` and :math:`s_i = 1/\sigma_0^2 + m_i / \sigma^2` over the :math:`m_i` units
    assigned to global unit :math:`i` by the other of the :math:`K` clients, unit :math:`w` gains

    .. math::
        \frac{\lVert S_i + w/\sigma^2 \rVert^2}{s_i + 1/\sigma^2} - \frac{\lVert S_i \rVert^2}{s_i}
        + 2 \log \frac{m_i}{K - m_i}

    by joining :math:`i`, and the same with :math:`S = 0`, :math:`s = 1/\sigma_0^2` and
    :math:`2 \log \frac{\gamma}{K} - 2 \log j` by founding the :math:`j`-th new one. Each client is assigned by the
    Hungarian algorithm, in turn, several times. Wang et al., ICLR 2020, section 2; Yurochkin et al., ICML 2019.

    Args:
        rows: Units (J_k, f) of each client.
        prior: The prior.

    Returns:
        For each client the global unit (J_k,) of each of its own. Numbers run from 0 without gaps; those of the widest
        client come first, in its order.

    Example:
        >>> near = [torch.tensor([[0.0], [9.0]]), torch.tensor([[9.1], [-9.0]])]
        >>> [a.tolist() for a in match_growing(near, Prior(gamma=1.0))]
        [[0, 1], [1, 2]]
    """
    from scipy.optimize import linear_sum_assignment

    clients = sorted(range(len(rows)), key=lambda k: -len(rows[k]))
    own, broad = 1 / prior.sigma**2, 1 / prior.sigma_0**2
    scaled = [own * r.double() for r in rows]
    most = max(prior.max_width, *(len(r) for r in rows))
    assigned: dict[int, Tensor] = {clients[0]: torch.arange(len(rows[clients[0]]))}
    for turn in range(prior.sweeps * len(clients)):
        k = clients[turn % len(clients)]
        if turn == 0:
            continue
        assigned.pop(k, None)
        assigned = _without_gaps(assigned)
        if not assigned:
            assigned[k] = torch.arange(len(rows[k]))
            continue
        known = torch.cat(list(assigned.values()))
        width = int(known.max()) + 1
        counts = torch.bincount(known, minlength=width).double()
        sums = scaled[k].new_zeros(width, rows[k].shape[1])
        sums.index_add_(0, known.to(sums.device), torch.cat([scaled[j] for j in assigned]))
        join = _gain(sums, (broad + own * counts).to(sums), scaled[k], own)
        # nobody but k is left out and k is none of the counted, so that the difference is at least 1
        join += 2 * (counts / (len(rows) - counts)).log().to(join)
        new = min(len(rows[k]), most - width)
        found = _gain(sums.new_zeros(1, sums.shape[1]), sums.new_tensor([broad]), scaled[k], own)
        price = 2 * math.log(prior.gamma / len(rows)) - 2 * torch.arange(1, new + 1).double().log()
        gains = torch.cat([join, found + price.to(join)], dim=1)
        assigned[k] = torch.as_tensor(linear_sum_assignment(gains.cpu().numpy(), maximize=True)[1])
    first = list(dict.fromkeys(torch.cat([assigned[k] for k in clients]).tolist()))
    numbers = torch.zeros(max(first) + 1, dtype=torch.long)
    numbers[first] = torch.arange(len(first))
    return [numbers[assigned[k]] for k in range(len(rows))]


def _gain(sums: Tensor, precision: Tensor, units: Tensor, weight: float) -> Tensor:
    """Gain (J, G) of the posterior by adding each unit to each global one."""
    own = sums.square().sum(dim=1)
    together = own + units.square().sum(dim=1)[:, None] + 2 * units @ sums.T
    return together / (precision + weight) - own / precision


def _without_gaps(assigned: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Number the global units that have somebody from 0, in their order."""
    if not assigned:
        return {}
    used = torch.unique(torch.cat(list(assigned.values())))
    return {k: torch.searchsorted(used, a) for k, a in assigned.items()}


def grow_models(
    models: Sequence[Weights], chain: Sequence[ChainLayer], weights: Sequence[float], prior: Prior
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]], list[list[Tensor]]]:
    """Match models layer by layer, and average the units of each hidden layer over the clients that have them.

    Args:
        models: Weights of each client's model.
        chain: Their layers.
        weights: Weight of each client in the averages.
        prior: The prior of :func:`match_growing`.

    Returns:
        The hidden layers of the global model, in double precision; the models, whose last layer reads from all global
        units; for each client the global units of its own, layer by layer.
    """
    wide = [dict(m) for m in models]
    places: list[list[Tensor]] = [[] for _ in models]
    merged: dict[str, Tensor] = {}
    for index, layer in enumerate(chain[:-1]):
        found = match_growing([rows_of(m, layer) for m in wide], prior)
        units = 1 + max(int(a.max()) for a in found)
        for name in (layer.weight, *layer.vectors):
            merged[name] = _merge([m[name] for m in wide], found, weights, units)
        for k, own in enumerate(found):
            places[k].append(own)
            wide[k] = expand(wide[k], chain, index, own.to(wide[k][layer.weight].device), units)
    return merged, wide, places


def _merge(tensors: Sequence[Tensor], places: Sequence[Tensor], weights: Sequence[float], units: int) -> Tensor:
    """Weighted mean of each global unit over the clients that have it."""
    total = tensors[0].new_zeros(units, *tensors[0].shape[1:], dtype=torch.float64)
    mass = torch.zeros(units, dtype=torch.float64, device=total.device)
    for tensor, own, weight in zip(tensors, places, weights, strict=True):
        own = own.to(total.device)
        total.index_add_(0, own, tensor.double(), alpha=weight)
        mass.index_add_(0, own, torch.full((len(own),), float(weight), dtype=torch.float64, device=mass.device))
    return total / mass.view(-1, *[1] * (total.dim() - 1))


def restrict(weights: Weights, chain: Sequence[ChainLayer], places: Sequence[Tensor]) -> dict[str, Tensor]:
    """The part of a global model that consists of a client's own units.

    Args:
        weights: Global weights by name.
        chain: The layers.
        places: The client's global units of each hidden layer.

    Example:
        >>> from flightning.functional.matching import chain_layers
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
        >>> part = restrict(net.state_dict(), chain_layers(net), [torch.tensor([2, 0])])
        >>> part["0.weight"].shape, torch.equal(part["2.weight"], net[2].weight[:, [2, 0]])
        (torch.Size([2, 1]), True)
    """
    part = dict(weights)
    for index, own in enumerate(places):
        part = reorder(part, chain, index, own.to(part[chain[index].weight].device))
    return part
