"""Look into a module by the names of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

from flightning.errors import ConfigurationError, nearest

__all__ = [
    "arrange_convolutions",
    "batch_norm_names",
    "block_names",
    "last_linear",
    "truncated_forward",
    "truncated_input",
]

_POOLINGS = (_MaxPoolNd, _AvgPoolNd, _AdaptiveMaxPoolNd, _AdaptiveAvgPoolNd)


class _Reached(BaseException):
    """Carries a value out of a forward pass; no `Exception`, so that no handler in a user's net swallows it."""

    def __init__(self, layer: nn.Module, value: Any) -> None:
        self.layer, self.value = layer, value


def truncated_forward(module: nn.Module, layer_name: str, *args: Any, **kwargs: Any) -> Tensor:
    """Run a module up to and including one of its layers and return that layer's output.

    Nothing behind the layer is run. A layer that is called several times is left after its first call.

    Args:
        module: The module whose forward pass is cut short.
        layer_name: Name of the layer in ``named_modules()``.
        *args: Inputs of the module.
        **kwargs: Keyword inputs of the module.

    Returns:
        The layer's output, the first element if it is a tuple as that of an ``nn.LSTM``.

    Raises:
        ConfigurationError: If there is no such layer, the forward pass does not use it, or its output is no tensor.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> truncated_forward(net, "1", torch.zeros(5, 4)).shape
        torch.Size([5, 3])
    """
    layer = _layer(module, layer_name)

    def leave(layer: nn.Module, inputs: Any, output: Any) -> NoReturn:
        raise _Reached(layer, output)

    return _run_until(module, layer_name, layer, layer.register_forward_hook(leave), args, kwargs)


def truncated_input(module: nn.Module, layer_name: str, *args: Any, **kwargs: Any) -> Tensor:
    """Run a module up to one of its layers and return that layer's first positional input.

    Neither the layer nor anything behind it is run.

    Args:
        module: The module whose forward pass is cut short.
        layer_name: Name of the layer in ``named_modules()``.
        *args: Inputs of the module.
        **kwargs: Keyword inputs of the module.

    Raises:
        ConfigurationError: If there is no such layer, the forward pass does not use it, or its input is no tensor.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> truncated_input(net, last_linear(net), torch.zeros(5, 4)).shape
        torch.Size([5, 3])
    """
    layer = _layer(module, layer_name)

    def leave(layer: nn.Module, inputs: Any) -> NoReturn:
        raise _Reached(layer, inputs)

    return _run_until(module, layer_name, layer, layer.register_forward_pre_hook(leave), args, kwargs)


def last_linear(module: nn.Module) -> str:
    """Name of the ``nn.Linear`` that was registered last, in most classifiers the head.

    Args:
        module: The module to look into.

    Raises:
        ConfigurationError: If there is none.

    Example:
        >>> last_linear(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), nn.Softmax(dim=1)))
        '2'
    """
    names: list[str] = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    if not names:
        raise ConfigurationError(
            f"`{type(module).__name__}` has no `nn.Linear` whose input could serve as the features. "
            "Give the name of a layer, as printed by `named_modules()`."
        )
    return names[-1]


def block_names(network: nn.Module, blocks: str | Sequence[str]) -> list[str]:
    """Names of the layers of a network that count as its layers one after the other.

    Args:
        network: The network to look into.
        blocks: ``param_blocks`` (each layer with its activation and pooling: what the network gives as ``blocks``),
            ``modules`` (each layer with parameters of its own and each pooling), or the names themselves.

    Raises:
        ConfigurationError: If the network has no ``blocks`` or no layer of a given name.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 2))
        >>> block_names(net, "modules"), block_names(net, ["2", "4"])
        (['0', '2', '4'], ['2', '4'])
    """
    modules = list(network.named_modules())
    if blocks == "modules":
        return [n for n, m in modules if isinstance(m, _POOLINGS) or any(True for _ in m.parameters(recurse=False))]
    if blocks == "param_blocks":
        own = getattr(network, "blocks", None)
        if not isinstance(own, list):
            raise ConfigurationError(
                f"`{type(network).__name__}` does not tell its `blocks`: name its layers in order, for instance "
                "`blocks: [conv1, conv2, fc]`, or take `blocks: modules`."
            )
        return [name for name, _ in own]
    for name in blocks:
        _layer(network, name)
    return list(blocks)


def batch_norm_names(module: nn.Module) -> set[str]:
    """Names of all parameters and buffers that belong to a batch normalization, whatever it is called.

    Args:
        module: The module to look into.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.GroupNorm(1, 3))
        >>> sorted(batch_norm_names(net))
        ['1.bias', '1.num_batches_tracked', '1.running_mean', '1.running_var', '1.weight']
    """
    names: set[str] = set()
    # A layer that is used under two names is in `state_dict()` under both.
    for prefix, child in module.named_modules(remove_duplicate=False):
        if isinstance(child, _BatchNorm):
            dot = f"{prefix}." if prefix else ""
            names.update(dot + name for name, _ in child.named_parameters(recurse=False))
            names.update(dot + name for name, _ in child.named_buffers(recurse=False))
    return names


def _layer(module: nn.Module, name: str) -> nn.Module:
    layers: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
    if name not in layers:
        known = nearest(name, [n for n in layers if n])
        raise ConfigurationError(f"`{type(module).__name__}` has no layer `{name}`. {known}")
    return layers[name]


def _run_until(
    module: nn.Module, name: str, layer: nn.Module, handle: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Run the module until the hook of a layer raises, and return what it carries."""
    try:
        module(*args, **kwargs)
    except _Reached as reached:
        if reached.layer is not layer:
            raise
        value = reached.value
    else:
        raise ConfigurationError(
            f"the forward pass of `{type(module).__name__}` never calls its layer `{name}`. Name a layer that it uses."
        )
    finally:
        handle.remove()
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    if not isinstance(value, Tensor):
        raise ConfigurationError(
            f"layer `{name}` of `{type(module).__name__}` gives a `{type(value).__name__}` where a tensor is needed. "
            "Name another layer."
        )
    return value


def arrange_convolutions(module: nn.Module, channels_last: bool) -> None:
    """Put the weights of two-dimensional convolutions into one memory order or the other, in place.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 5), nn.Flatten(), nn.Linear(4, 2))
        >>> arrange_convolutions(net, channels_last=True)
        >>> net(torch.ones(1, 3, 5, 5)).shape, net[0].weight.is_contiguous(memory_format=torch.channels_last)
        (torch.Size([1, 2]), True)
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            layer.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
