r"""SCAFFOLD: correct the drift of each client by control variates.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, Algorithm 1 and
Eqs. 3-5. https://arxiv.org/abs/1910.06378
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch

from flightning.algorithms.base import FederatedMixin, Weights
from flightning.algorithms.local_optimizer import LocalOptimizer
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError, check_choice
from flightning.functional.aggregation import Payload

__all__ = ["SCAFFOLD", "SCAFFOLDMixin"]


class SCAFFOLDMixin(FederatedMixin):
    r"""Step along :math:`g_k(y) - c_k + c`, where :math:`c_k` estimates the client's gradient and :math:`c` their mean.

    Both means, of weights and of control variates, follow `federation.weighting`; ``uniform`` is the paper's.

    Args:
        option: How a client renews :math:`c_k`: ``II`` from its own movement, :math:`c_k - c + (x - y) / (A \eta)`, or
            ``I`` as the gradient of all its data at :math:`x`, one more pass. With Nesterov momentum or an adaptive
            client optimizer it is always ``I``.
        placement: Whether the correction enters the gradient (``inside``, and so the momentum), or the weights after
            each step with the plain learning rate (``outside``, as in published benchmarks; biased with momentum).
        denominator: Divisor of option ``II`` inside: ``A``, the sum of heavy-ball weights, or ``K``, the number of
            local steps; they are equal without momentum, and with it ``K`` is refused. Outside it is always ``K``.
        server_lr: Step of the server, the paper's :math:`\eta_g`, above 0; ``1`` takes the mean itself.
        **kwargs: Arguments of the module behind the mixin.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> class SCAFFOLDBoring(SCAFFOLDMixin, BoringModel): ...
        >>> SCAFFOLDBoring(option="I").hparams.placement
        'inside'
    """

    reductions: ClassVar[Mapping[str, str]] = {"control": "sum"}
    owns = frozenset({"drift correction"})

    def __init__(
        self,
        option: Literal["I", "II"] = "II",
        placement: Literal["inside", "outside"] = "inside",
        denominator: Literal["A", "K"] = "A",
        server_lr: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("option", option, ("I", "II"))
        check_choice("placement", placement, ("inside", "outside"))
        check_choice("denominator", denominator, ("A", "K"))
        if server_lr <= 0:
            raise ConfigurationError(f"`server_lr={server_lr}` must be above 0: use 1 to take the mean of the clients.")
        self.option, self.placement, self.denominator, self.server_lr = option, placement, denominator, server_lr
        self.add_server_state("control", self.zeros_like_parameters)
        self.add_client_state("control", self.zeros_like_parameters)

    def on_federation_start(self) -> None:
        """Choose what works with the client's optimizer."""
        super().on_federation_start()
        if self.trainer.state.fn != "fit":
            return
        local = LocalOptimizer(self.trainer.optimizers[0], self.trainable())
        if self.option == "II" and not local.is_heavy_ball:
            warnings.warn(
                f"`option='II'` cannot read a gradient from the steps of `{local.name}`, so `option='I'` is used, with "
                "one more pass over the data of a client: set it, or use SGD without `nesterov` and `maximize`.",
                stacklevel=2,
            )
            self.option = "I"
        if (self.option, self.placement, self.denominator) == ("II", "inside", "K") and local.momentum:
            raise ConfigurationError(
                f"`denominator='K'` lets control variates grow without bound under `momentum={local.momentum}`: use "
                "`denominator='A'`, momentum 0, or `placement='outside'`."
            )
        if self.placement == "outside":
            local.optimizer.register_step_post_hook(lambda *_: self._correct_weights())

    def download(self, client: int) -> Payload:
        """Send the server's control variate, too."""
        control = self.server_state.control
        return {**super().download(client), "control": {n: control[n] for n in self.shared_parameters()}}

    def on_client_start(self, download: Payload) -> None:
        """Prepare :math:`c - c_k`, which is the same in all local steps."""
        super().on_client_start(download)
        if "control" in download:  # else it is the second exchange of a round, without training
            live, own = self.shared_parameters(), self.client_state.control
            self._local, self._live = LocalOptimizer(self.trainer.optimizers[0], live), live
            self._correction = torch._foreach_sub([download["control"][n] for n in live], [own[n] for n in live])
            self._gradient = self._local.full_gradient(self.task_losses(), live) if self.option == "I" else {}

    def correct_gradients(self) -> None:
        """Line 10: add :math:`c - c_k` to the gradient."""
        super().correct_gradients()
        if self.placement == "inside":
            pairs = [(p.grad, c) for p, c in zip(self._live.values(), self._correction, strict=True)]
            used = [(g, c) for g, c in pairs if g is not None]
            torch._foreach_add_([g for g, _ in used], [c for _, c in used])

    @torch.no_grad()
    def _correct_weights(self) -> None:
        groups = self._local.optimizer.param_groups
        rates = [-float(groups[self._local.group_of[n]]["lr"]) for n in self._live]
        torch._foreach_add_(list(self._live.values()), torch._foreach_mul(self._correction, rates))

    def _renewed(self) -> Weights:
        """Line 12: the new :math:`c_k`, where a local step was taken."""
        sizes = self._training_client.step_sizes
        if not sizes:
            return {}
        if self.option == "I":
            return self._gradient
        plain = self.placement == "outside" or self.denominator == "K"
        seen = self._local.mean_gradient(self.global_weights, self._live, self._local.travels(sizes, plain=plain))
        return {n: seen[n] - c for n, c in zip(self._live, self._correction, strict=True) if n in seen}

    def on_client_end(self) -> Payload:
        """Lines 12 and 13: renew :math:`c_k` and send its change, weighted by the client's share of the objective."""
        old, share = self.client_state.control, self._training_client.share
        self.client_state.control = new = {**old, **self._renewed()}
        return {**super().on_client_end(), "control": {n: share * (new[n] - old[n]) for n in self._live}}

    def aggregate(self, uploads: Payload) -> None:
        r"""Lines 16 and 17: move by :math:`\eta_g` toward the mean, and keep :math:`c` the mean of all :math:`c_k`."""
        old, changes, mean = self.server_state.control, uploads["control"], uploads["weights"]
        self.server_state.control = {**old, **{n: (old[n] + d).to(old[n].dtype) for n, d in changes.items()}}
        moved = {n: self.global_weights[n].to(mean[n].dtype).lerp(mean[n], self.server_lr) for n in changes}
        super().aggregate({**uploads, "weights": {**mean, **moved}})


class SCAFFOLD(SCAFFOLDMixin, Classifier):
    """SCAFFOLD on the built-in classifier."""
