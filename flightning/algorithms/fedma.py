r"""FedMA: match the hidden units of the clients' networks, layer by layer, before averaging them.

Wang et al., "Federated Learning with Matched Averaging", ICLR 2020, Algorithm 1. https://arxiv.org/abs/2002.06440
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from flightning.algorithms.base import Weights
from flightning.algorithms.composition import check_whole_models
from flightning.algorithms.width import ElasticWidthMixin
from flightning.classifier import Classifier
from flightning.errors import ConfigurationError, check_choice
from flightning.functional.aggregation import Payload, average
from flightning.functional.growth import Prior, grow_models, restrict
from flightning.functional.matching import ChainLayer, chain_layers, is_chain, match_models
from flightning.functional.prototypes import count_row_weights
from flightning.functional.seeding import torch_generator

__all__ = ["FedMA", "FedMAMixin"]

_CHECK = 30


class FedMAMixin(ElasticWidthMixin):
    r"""Average :math:`\Pi_k w_k`, with permutations :math:`\Pi_k` of hidden units that bring the clients together.

    Layer by layer the units of each client are assigned to those of the client with most samples, by least squared
    distance of incoming weights and bias; the width stays. Where nothing is permuted and ``head="samples"`` it is
    FedAvg. With ``growing`` they are assigned by a Beta-Bernoulli process (BBP-MAP), and units without a partner become
    new units of the global model. Clients still train networks of the original width, each the part of the global
    model that its own units were matched to; the global model is evaluated at its own width, logged as
    ``round/units``. BatchNorm goes with the units. Nets with skip connections are refused.

    Args:
        growing: Whether layers of the global model may grow.
        head: How rows of the last layer are averaged: by the clients' samples of the class (``class_counts``), or by
            all their samples (``samples``).
        independent_start: Whether each client draws its own initial weights in the first round, as in the paper; the
            common ones of other methods are matched already.
        gamma: Where layers grow, the mass of the prior, > 0 (7 in published code); larger values found more units.
        sigma: Where layers grow, the deviation of a client's unit from the global one, > 0 (1 in published code).
        sigma_0: Where layers grow, the deviation of global units from 0, > 0 (1 in published code).
        sweeps: Where layers grow, how often each client's units are assigned, at least 1 (5 in published code).
        max_width: Where layers grow, the most units of a layer (700 in published code).
        **kwargs: Arguments of the module behind the mixin.
    """

    reductions: ClassVar[Mapping[str, str]] = {"weights": "stack", "class_counts": "stack"}
    owns = frozenset({"aggregation rule"})

    def __init__(
        self,
        growing: bool = False,
        head: Literal["class_counts", "samples"] = "class_counts",
        independent_start: bool = True,
        gamma: float | None = None,
        sigma: float | None = None,
        sigma_0: float | None = None,
        sweeps: int | None = None,
        max_width: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("head", head, ("class_counts", "samples"))
        prior = {"gamma": gamma, "sigma": sigma, "sigma_0": sigma_0, "sweeps": sweeps, "max_width": max_width}
        given = {name: value for name, value in prior.items() if value is not None}
        if given and not growing:
            name, value = next(iter(given.items()))
            raise ConfigurationError(f"`{name}={value}` is for layers that grow: set `growing: true` or leave it out.")
        self.head_rule, self.independent_start = head, independent_start
        self.changes_width, self.prior = growing, Prior(**given)  # type: ignore[arg-type]
        self.chain: list[ChainLayer] = []
        self.add_server_state("places", dict)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_whole_models(cls, "FedMAMixin")

    def on_federation_start(self) -> None:
        """Find the layers, and try whether their units can be permuted."""
        super().on_federation_start()
        network, data = self.forward_root, self.federated_data
        self.chain = chain_layers(network, self.forward_root_prefix)
        somebody = int(data.sizes.argmax())
        inputs = self.split_batch(next(iter(data.train_source.batches([data.parts[somebody][:2]]))))[0]
        if not is_chain(network, inputs, torch_generator(_CHECK)):
            raise ConfigurationError(
                f"the layers of `{type(network).__name__}` do not run one after the other, so `FedMA` cannot match "
                "their units: use a net without skip connections, such as `MLP`, `SimpleCNN` or `McMahanCNN`."
            )

    def download(self, client: int) -> Payload:
        """Send a client its part of a model that has grown; to one that was not in the last cohort, somebody else's."""
        payload, places = super().download(client), self.server_state.places
        if places:
            own = places.get(client, places[min(places)])
            payload["weights"] = restrict(payload["weights"], self.chain, own)
        return payload

    def on_client_start(self, download: Payload) -> None:
        """Draw initial weights in the first round; the engine has seeded the generators for this client."""
        super().on_client_start(download)
        if self.independent_start and self.round_index == 0:
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                    module.reset_parameters()

    def on_client_end(self) -> Payload:
        """Send the samples of each class with the weights."""
        upload = super().on_client_end()
        if self.head_rule == "class_counts":
            data = self.federated_data
            labels = torch.from_numpy(data.train_source.labels[data.parts[self._training_client.id]])
            counts = torch.bincount(labels, minlength=data.num_classes)
            upload["class_counts"] = counts.to(self.device, torch.float32)
        return upload

    def aggregate(self, uploads: Payload) -> None:
        """Match, then average; the last layer by classes."""
        models: dict[int, Weights] = uploads["weights"]
        merged, matched = self._grow(models) if self.changes_width else ({}, self._permute(models))
        new = average(dict(zip(models, matched, strict=True)), self.cohort_weights) | merged
        if self.head_rule == "class_counts":
            new |= self._average_head(matched, torch.stack(list(uploads["class_counts"].values())))
        super().aggregate({**uploads, "weights": new})

    def _permute(self, models: dict[int, Weights]) -> list[dict[str, Tensor]]:
        largest = max(models, key=lambda k: (self.federated_data.sizes[k], -k))
        matched, moved = match_models(list(models.values()), self.chain, list(models).index(largest))
        self.round_metrics["round/permuted_units"] = moved
        return matched

    def _grow(self, models: dict[int, Weights]) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        shares = [self.cohort_weights[k] for k in models]
        merged, wide, places = grow_models(list(models.values()), self.chain, shares, self.prior)
        # places of earlier rounds are in a global model that is gone
        self.server_state.places = dict(zip(models, places, strict=True))
        self.round_metrics["round/units"] = float(sum(len(merged[layer.weight]) for layer in self.chain[:-1]))
        return merged, wide

    def _average_head(self, models: list[dict[str, Tensor]], counts: Tensor) -> Weights:
        share, last = count_row_weights(counts.double()), self.chain[-1]
        names = (last.weight, *last.vectors)
        return {n: torch.einsum("kj,kj...->j...", share, torch.stack([m[n].double() for m in models])) for n in names}


class FedMA(FedMAMixin, Classifier):
    """FedMA on the built-in classifier."""
