"""Look at the layers of the running forward pass, and run the same batch through frozen weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.hooks import RemovableHandle
from torchmetrics import Metric

from flightning.errors import ConfigurationError
from flightning.functional.layers import truncated_forward, truncated_input

__all__ = ["LayerTaps", "evaluating", "frozen_forward", "metrics_kept", "without_noise"]


def _version(output: Any) -> int:
    """How often a tensor was overwritten; tensors of inference mode do not count it."""
    return output._version if isinstance(output, Tensor) and not output.is_inference() else 0


class LayerTaps:
    """Keep the last input and output of chosen layers while a local step runs.

    Args:
        module: Root of the names.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._handles: dict[str, RemovableHandle] = {}
        self._seen: dict[str, tuple[tuple[Any, ...], dict[str, Any], Any]] = {}
        self._versions: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self._open = self._learns = False

    def watch(self, name: str) -> None:
        """Watch the layer of this name (``""`` is the module itself)."""
        if name in self._handles:
            return

        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if self._open:
                counts = torch.is_grad_enabled() or not self._learns
                if name in self._seen and not counts:
                    return  # a second pass for a metric; gradients flow through the first
                if isinstance(output, tuple | list):  # an `nn.LSTM` also returns its state
                    output = output[0]
                self._seen[name] = args, kwargs, output
                self._versions[name] = _version(output)
                self._calls[name] = self._calls.get(name, 0) + counts

        layer = self._module.get_submodule(name)
        self._handles[name] = layer.register_forward_hook(keep, with_kwargs=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep what passes inside this block; forget it at its end, so that no graph outlives its step."""
        self._open, self._learns = True, torch.is_grad_enabled()
        try:
            yield
        finally:
            self._open = False
            self._seen.clear()
            self._calls.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not listen inside this block."""
        was, self._open = self._open, False
        try:
            yield
        finally:
            self._open = was

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Listen to another pass inside this block; afterwards the layers show the pass before it again."""
        seen, versions = dict(self._seen), dict(self._versions)
        try:
            yield
        finally:
            self._seen, self._versions = seen, versions

    def call(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the layer's last call in this step."""
        return self._find(name)[0], self._find(name)[1]

    def input(self, name: str) -> Tensor:
        """First argument of the layer in this step."""
        value: Tensor = self._find(name)[0][0]
        return value

    def output(self, name: str) -> Tensor:
        """Result of the layer in this step."""
        value: Tensor = self._find(name)[2]
        if _version(value) != self._versions[name]:
            raise ConfigurationError(
                f"the output of layer `{name}` was overwritten by a layer behind it, such as `nn.ReLU(inplace=True)`: "
                "set `inplace=False` there, or name the layer that overwrites it."
            )
        return value

    def check_called_once(self, name: str, root: str) -> None:
        """Refuse a layer that a pass of the root calls again: such a pass has several outputs of that layer."""
        calls, passes = self._calls.get(name, 0), self._calls.get(root, 0)
        if calls > passes:
            raise ConfigurationError(
                f"layer `{name}` was called {calls} times in {passes} forward passes, so it is not clear which of its "
                "outputs to compare: give each place in the network a layer of its own, or name another layer."
            )

    def _find(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        if name not in self._seen:
            raise KeyError(
                f"layer `{name}` was not called in this local step: watch it with `watch_layers`, and let "
                "`training_step` call it as a module (`self.net(x)`, not `self.net.forward(x)`)."
            )
        return self._seen[name]

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._seen.clear()


@contextmanager
def without_noise(module: nn.Module) -> Iterator[None]:
    """Let BatchNorm use its running statistics and dropout do nothing inside this block."""
    # not `eval()` of everything: cuDNN refuses the backward pass of an LSTM in evaluation mode
    noisy = [m for m in module.modules() if isinstance(m, _BatchNorm | _DropoutNd) and m.training]
    for layer in noisy:
        layer.training = False
    try:
        yield
    finally:
        for layer in noisy:
            layer.training = True


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every part gets its own mode back, such as a layer that the user froze."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def metrics_kept(module: nn.Module) -> Iterator[None]:
    """Let metrics (torchmetrics) forget what they see inside this block."""
    kept = [
        # states are copied, because a metric adds to them in place
        (m, {**vars(m), **apply_to_collection(m.metric_state, Tensor, lambda t: t.detach().clone())})
        for m in module.modules()
        if isinstance(m, Metric)
    ]
    try:
        yield
    finally:
        for metric, attributes in kept:
            vars(metric).update(attributes)


@torch.no_grad()
def frozen_forward(
    network: nn.Module,
    weights: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    until: str | None = None,
    before: str | None = None,
    training: bool = False,
) -> Tensor:
    """Forward pass with other weights, without gradient; no copy of the network is made.

    Args:
        network: Supplies the structure; its own weights, statistics and modes are left as they are.
        weights: Parameters and buffers by name in ``network``.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        until: Name of the layer after which the pass is cut short; its output is returned. ``None`` runs to the end.
        before: Name of the layer before which it is cut short; that layer's input is returned.
        training: Leave BatchNorm and dropout in the mode of the network; the running statistics in ``weights`` are
            not changed. By default everything is in evaluation mode.
    """
    modes = [m for m in network.modules() if m.training and not training]
    for module in modes:
        module.training = False
    if training:  # BatchNorm would write into what it is given
        trained = {n for n, _ in network.named_parameters()}
        weights = {n: w if n in trained else w.clone() for n, w in weights.items()}
    kind = next((p.dtype for p in network.parameters()), torch.float32)
    if kind in (torch.float16, torch.bfloat16):  # references are kept in single precision
        weights = {n: w.to(kind) if w.is_floating_point() else w for n, w in weights.items()}
    try:
        call = _Call(network, until, before)
        result: Tensor = torch.func.functional_call(call, {f"network.{n}": w for n, w in weights.items()}, args, kwargs)
    finally:
        for module in modes:
            module.training = True
    return result


class _Call(nn.Module):
    """What `functional_call` runs: the network, whole or cut short."""

    def __init__(self, network: nn.Module, until: str | None, before: str | None) -> None:
        super().__init__()
        self.network, self.until, self.before = network, until, before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.before is not None:
            return truncated_input(self.network, self.before, *args, **kwargs)
        if self.until is not None:
            return truncated_forward(self.network, self.until, *args, **kwargs)
        return self.network(*args, **kwargs)
