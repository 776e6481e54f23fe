"""Evaluate the mean client where clients keep weights of their own.

Where some weights are personal (SOLO, FedBN) there is no single model to test. Every evaluation step is then run once
with each client's weights, so that Lightning's own means become means over clients, and the standard deviation over
clients is logged beside each of them as ``<name>_std``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor

from flightning.algorithms.local_logs import LocalLogs
from flightning.algorithms.observe import LayerTaps
from flightning.algorithms.shared_metrics import SharedMetrics
from flightning.algorithms.state import ClientStates

__all__ = ["PersonalEvaluation"]


class PersonalEvaluation(LocalLogs):
    """Run evaluation steps for every client with weights of its own."""

    global_weights: dict[str, Tensor]
    client_states: ClientStates
    num_clients: int
    _taps: LayerTaps

    if TYPE_CHECKING:  # defined by the federated mixin

        @property
        def federated_data(self) -> Any: ...  # noqa: D102
        def is_personal(self, name: str) -> bool: ...  # noqa: D102
        def load_weights(self, weights: Mapping[str, Tensor]) -> None: ...  # noqa: D102
        def load_global_weights(self) -> None: ...  # noqa: D102
        def _call_user_step(self, name: str, step: Callable[..., Any], args: tuple[Any, ...]) -> Any: ...

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._evaluated: int | None = None
        self._batch_size = 1
        self._silent = False
        self._client_sums: dict[str, dict[int, tuple[float, float]]] = {}
        #: Gathers a value from all processes that share the batches of an evaluation; set by the round engine.
        self.gather_evaluation: Callable[[Any], list[Any]] | None = None
        self._shared = SharedMetrics()

    @property
    def has_personal_weights(self) -> bool:
        """Whether clients keep weights of their own."""
        return any(self.is_personal(n) for n in self.global_weights)

    def validation_step(self, *args: Any) -> Any:
        """Validate the global model, or every client's own."""
        return self._evaluate("validation_step", super().validation_step, args)

    def test_step(self, *args: Any) -> Any:
        """Test the global model, or every client's own."""
        return self._evaluate("test_step", super().test_step, args)

    def on_validation_epoch_end(self) -> None:
        """Log what processes share, and the spread over clients."""
        self._log_shared()
        super().on_validation_epoch_end()
        self._log_spread()

    def on_test_epoch_end(self) -> None:
        """Log what processes share, and the spread over clients."""
        self._log_shared()
        super().on_test_epoch_end()
        self._log_spread()

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log as Lightning does, and remember which client the value belongs to."""
        if self._silent:
            return
        if self.gather_evaluation is not None and self._shares_logs and isinstance(value, Tensor | float | int):
            options = self._shared.bind(self, name, value, args, kwargs)
            self._shared.add(self._full_name(name, options), float(value), self._batch_size, options)
        else:
            super().log(name, value, *args, **kwargs)
        if self._evaluated is not None and isinstance(value, Tensor | float | int):
            size = kwargs.get("batch_size") or self._batch_size
            total, count = self._client_sums.setdefault(name, {}).get(self._evaluated, (0.0, 0.0))
            self._client_sums[name][self._evaluated] = total + float(value) * size, count + size

    @property
    def _shares_logs(self) -> bool:
        return self._current_fx_name in ("validation_step", "test_step")

    def _full_name(self, name: str, options: dict[str, Any]) -> str:
        results = self.trainer._results
        loader = None if results is None else results.dataloader_idx
        return (
            name if loader is None or options.get("add_dataloader_idx") is False else f"{name}/dataloader_idx_{loader}"
        )

    def _log_shared(self) -> None:
        if self.gather_evaluation is not None:
            shared, self._shared = self._shared, SharedMetrics()
            for name, value, options in shared.combined(self.gather_evaluation(shared.entries)):
                super().log(name, value, **options)

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Log nothing inside this block."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def evaluate_batch(self, stage: str, batch: Any) -> None:
        """Log more about a batch that was just evaluated.

        Args:
            stage: ``val`` or ``test``, with which logged names begin.
            batch: The batch; outputs of watched layers are at hand.
        """

    def personal_weights(self, client: int) -> dict[str, Tensor]:
        """What a client keeps of the model, for its evaluation."""
        kept: dict[str, Tensor] = self.client_states.load(client, self.device).get("weights", {})
        # a client that was not asked for its weights may keep shared ones, too
        return {n: w for n, w in kept.items() if self.is_personal(n)}

    def client_models(self) -> Iterator[int]:
        """Put the weights of one client with samples after the other into the module, the global ones at the end."""
        for client in self.federated_data.sizes.nonzero()[0].tolist():
            self.load_weights({**self.global_weights, **self.personal_weights(client)})
            yield client
        self.load_global_weights()

    def _evaluate(self, name: str, step: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self.has_personal_weights or self.gather_evaluation is not None:
            self._batch_size = extract_batch_size(args[0])
        if not self.has_personal_weights:
            return self._evaluate_once(name, step, args)
        output = None
        for client in self.client_models():
            self._evaluated = client
            output = self._evaluate_once(name, step, args)
        self._evaluated = None
        return output

    def _evaluate_once(self, name: str, step: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        with self._taps.listening():
            output = self._call_user_step(name, step, args)
            self.evaluate_batch("val" if name == "validation_step" else "test", args[0])
        return output

    def _log_spread(self) -> None:
        own, self._client_sums = self._client_sums, {}
        sums: dict[str, dict[int, tuple[float, float]]] = {}
        for theirs in [own] if self.gather_evaluation is None else self.gather_evaluation(own):
            for name, clients in theirs.items():
                for client, (total, count) in clients.items():
                    before = sums.setdefault(name, {}).get(client, (0.0, 0.0))
                    sums[name][client] = before[0] + total, before[1] + count
        for name, clients in sums.items():
            means = torch.tensor([total / count for total, count in clients.values()], dtype=torch.float64)
            super().log(f"{name}_std", means.std(correction=0).float())
