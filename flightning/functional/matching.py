"""Match the hidden units of networks, which can be permuted without changing what a network computes (FedMA).

A *chain* is a network whose layers with units run one after the other. Its weights are dicts by name. Reordering the
units of a layer reorders the rows of its weight and bias, the entries of BatchNorm behind it, and the inputs of the
next layer; where a convolution is flattened, each unit stands for a block of inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flightning.errors import ConfigurationError

__all__ = ["ChainLayer", "chain_layers", "expand", "is_chain", "match_models", "match_rows", "reorder", "rows_of"]

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class ChainLayer:
    """Names of what belongs to the units of one layer.

    Args:
        weight: Its weight, one row per unit.
        vectors: Bias, and parameters and statistics of BatchNorm behind it.
    """

    weight: str
    vectors: tuple[str, ...]


def chain_layers(network: nn.Module, prefix: str = "") -> list[ChainLayer]:
    """Layers with units, in the order in which they were registered.

    Args:
        network: The network.
        prefix: What the names of its weights begin with.

    Raises:
        ConfigurationError: If a layer with parameters is neither linear, nor a convolution, nor BatchNorm.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
        >>> [layer.weight for layer in chain_layers(net)], chain_layers(net)[0].vectors[:2]
        (['0.weight', '3.weight'], ('0.bias', '1.weight'))
    """
    layers: list[ChainLayer] = []
    for name, module in network.named_modules():
        own = [f"{prefix}{name}.{n}" for n, _ in [*module.named_parameters(recurse=False)]]
        if not own and not isinstance(module, _BatchNorm):
            continue
        if isinstance(module, _BatchNorm) and layers:
            statistics = [f"{prefix}{name}.{n}" for n, b in module.named_buffers(recurse=False) if b.dim()]
            layers[-1] = ChainLayer(layers[-1].weight, (*layers[-1].vectors, *own, *statistics))
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            layers.append(ChainLayer(f"{prefix}{name}.weight", tuple(n for n in own if n.endswith(".bias"))))
        else:
            raise ConfigurationError(
                f"the units of `{type(module).__name__}` (layer `{name}`) cannot be matched: use a net of linear "
                "layers, convolutions and BatchNorm, such as `MLP`, `SimpleCNN` or `McMahanCNN`."
            )
    return layers


def reorder(weights: Weights, chain: Sequence[ChainLayer], index: int, order: Tensor) -> dict[str, Tensor]:
    """Reorder, choose or repeat the units of one layer of a chain.

    Args:
        weights: Weights by name.
        chain: The layers.
        index: Which layer, not the last.
        order: Old unit of each new one.

    Example:
        >>> net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> new = reorder(net.state_dict(), chain_layers(net), 0, torch.tensor([1, 0]))
        >>> torch.equal(new["2.weight"], net[2].weight.flip(1))
        True
    """
    layer, following = chain[index], chain[index + 1].weight
    new = dict(weights)
    units = len(weights[layer.weight])
    for name in (layer.weight, *layer.vectors):
        new[name] = weights[name][order]
    new[following] = weights[following][:, _blocks(order, weights[following].shape[1] // units)]
    return new


def expand(weights: Weights, chain: Sequence[ChainLayer], index: int, places: Tensor, units: int) -> dict[str, Tensor]:
    """Let the next layer read from more units: those at ``places`` are this network's, from the others it takes 0."""
    following = chain[index + 1].weight
    old = weights[following]
    block = old.shape[1] // len(places)
    wide = old.new_zeros(len(old), units * block, *old.shape[2:])
    wide[:, _blocks(places, block)] = old
    return {**weights, following: wide}


def _blocks(order: Tensor, size: int) -> Tensor:
    """Inputs of the next layer that belong to units, where each unit stands for a block of them."""
    return (order[:, None] * size + torch.arange(size, device=order.device)).flatten()


def rows_of(weights: Weights, layer: ChainLayer) -> Tensor:
    """What describes the units of a layer: incoming weights and bias, one row per unit, in double precision."""
    bias = [n for n in layer.vectors if n.endswith(".bias")][:1]
    parts = [weights[layer.weight].flatten(start_dim=1), *(weights[n][:, None] for n in bias)]
    return torch.cat([p.double() for p in parts], dim=1)


def match_rows(reference: Tensor, rows: Tensor) -> Tensor:
    """Assign rows to those of a reference so that the sum of squared distances is least (Hungarian algorithm).

    Args:
        reference: Rows (J, f) whose order is kept.
        rows: Rows (J, f) to be reordered.

    Returns:
        Indices (J,) such that ``rows[indices]`` is in the order of the reference.

    Example:
        >>> match_rows(torch.tensor([[0.0], [5.0]]), torch.tensor([[4.0], [1.0]]))
        tensor([1, 0])
    """
    from scipy.optimize import linear_sum_assignment

    cost = reference.square().sum(1)[:, None] + rows.square().sum(1) - 2 * reference @ rows.T
    return torch.as_tensor(linear_sum_assignment(cost.cpu().numpy())[1], device=rows.device)


def match_models(
    models: Sequence[Weights], chain: Sequence[ChainLayer], reference: int
) -> tuple[list[dict[str, Tensor]], float]:
    """Reorder the hidden units of all models after those of one of them, layer by layer.

    Args:
        models: Weights of each model, of one shape.
        chain: Their layers.
        reference: The model whose order is kept.

    Returns:
        The reordered models, and the share of units that changed their place.

    Example:
        >>> net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> weights, chain = net.state_dict(), chain_layers(net)
        >>> twin = reorder(weights, chain, 0, torch.tensor([1, 0]))
        >>> matched, moved = match_models([weights, twin], chain, reference=0)
        >>> all(torch.equal(matched[1][n], weights[n]) for n in weights), moved
        (True, 1.0)
    """
    matched, moved, units = [dict(m) for m in models], 0, 0
    for index, layer in enumerate(chain[:-1]):
        wanted = rows_of(matched[reference], layer)
        for k in [k for k in range(len(matched)) if k != reference]:
            order = match_rows(wanted, rows_of(matched[k], layer))
            matched[k] = reorder(matched[k], chain, index, order)
            moved += int((order != torch.arange(len(order), device=order.device)).sum())
            units += len(order)
    return matched, moved / units if units else 0.0


def is_chain(network: nn.Module, inputs: Tensor, generator: torch.Generator) -> bool:
    """Whether reordering units as in a chain leaves the outputs of a network as they are.

    It is tried: with random weights, in double precision, each layer is reordered. Skip connections fail.

    Args:
        network: The network; it is copied.
        inputs: A few inputs.
        generator: Source of weights and orders.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
        >>> is_chain(net, torch.ones(1, 1, 4, 4), torch.Generator().manual_seed(0))
        True
    """
    twin = copy.deepcopy(network).cpu().double().eval()
    inputs = inputs.cpu().double()
    chain = chain_layers(twin)
    with torch.no_grad():
        for tensor in twin.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1 - 0.5 * (tensor.dim() > 1))
        before, weights = twin(inputs), dict(twin.state_dict())
        for index, layer in enumerate(chain[:-1]):
            units, width = len(weights[layer.weight]), weights[chain[index + 1].weight].shape[1]
            if width % units or any(len(weights[n]) != units for n in layer.vectors):
                return False
            weights = reorder(weights, chain, index, torch.randperm(units, generator=generator))
        twin.load_state_dict(weights)
        return torch.allclose(twin(inputs), before)
