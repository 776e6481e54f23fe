"""Made-up data: problems with known answers, and data whose heterogeneity is set by a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flightning.datamodules.base import FederatedDataModule
from flightning.datamodules.in_memory import InMemoryData
from flightning.datamodules.partitioners import Natural, Partitioner
from flightning.datamodules.settings import require
from flightning.datamodules.sources import TensorSource
from flightning.functional.feature_skew import fcube
from flightning.functional.seeding import numpy_generator

__all__ = ["FCube", "Quadratic", "Synthetic"]

#: Keeps the stream apart from those of other parts that use the same seed.
_STREAM = int.from_bytes(b"synth", "big")


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


class Synthetic(FederatedDataModule):
    r"""The logistic data of the FedProx paper, ``Synthetic(alpha, beta)``.

    Client :math:`k` labels by its own model, :math:`y = \arg\max(W_k x + b_k)` with entries of :math:`W_k, b_k` from
    :math:`N(u_k, 1)` and :math:`u_k \sim N(0, \alpha)`, and has its own inputs, :math:`x \sim N(v_k, \Sigma)` with
    :math:`\Sigma_{jj} = j^{-1.2}`, entries of :math:`v_k` from :math:`N(B_k, 1)` and :math:`B_k \sim N(0, \beta)`.
    :math:`\alpha` and :math:`\beta` are standard deviations, as in the authors' code. Sizes are lognormal above 50. A
    tenth of each client's samples is for testing.

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, section 5.1.

    Args:
        alpha: Standard deviation of :math:`u_k`. It changes no sample: :math:`u_k` adds the same number to the logits
            of all classes, so that the models differ as much with 0 as with any other value.
        beta: How much their inputs differ.
        iid: Give all clients the same model and the same inputs.
        num_features: Size of :math:`x`.
        num_classes: Number of classes.
        num_clients: Number of clients.
        partition: Rule that deals the samples; ``None`` is ``Natural()``, the clients they were made for.
        **kwargs: Arguments of `FederatedDataModule`.

    Example:
        >>> data = Synthetic(alpha=1, beta=1, seed=0)
        >>> data.setup()
        >>> len(data.parts), data.input_shape, bool(data.sizes.min() >= 45)
        (30, (60,), True)
    """

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 1.0,
        iid: bool = False,
        num_features: int = 60,
        num_classes: int = 10,
        num_clients: int = 30,
        partition: Partitioner | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_clients=num_clients, partition=Natural() if partition is None else partition, **kwargs)
        for name, value in (("alpha", alpha), ("beta", beta)):
            require(value >= 0, name, value, "must be >= 0", "use 0, 0.5 or 1 as in the paper")
        require(num_features >= 1, "num_features", num_features, "must be >= 1", "use 60 as in the paper")
        require(num_classes >= 2, "num_classes", num_classes, "must be >= 2", "use 10 as in the paper")
        self.alpha, self.beta, self.iid = alpha, beta, iid
        self.num_classes, self.input_shape = num_classes, (num_features,)

    def load(self) -> tuple[TensorSource, TensorSource]:
        """Draw all clients; the seed decides."""
        rng = numpy_generator(self.seed, _STREAM)
        features, classes, clients = self.input_shape[0], self.num_classes, self.num_clients
        sizes = rng.lognormal(4, 2, clients).astype(np.int64) + 50
        deviation = np.arange(1.0, features + 1) ** -0.6
        u, b_mean = rng.normal(0, self.alpha, clients), rng.normal(0, self.beta, clients)
        shared = rng.normal(0, 1, (features, classes)), rng.normal(0, 1, classes)
        inputs, labels = [], []
        for k, size in enumerate(sizes):
            if self.iid:
                (weight, bias), center = shared, np.zeros(features)
            else:
                weight, bias = rng.normal(u[k], 1, (features, classes)), rng.normal(u[k], 1, classes)
                center = rng.normal(b_mean[k], 1, features)
            x = rng.normal(center, deviation, (size, features))
            inputs.append(x)
            labels.append((x @ weight + bias).argmax(axis=1))
        owners = np.repeat(np.arange(clients), sizes)
        # the samples of a client are drawn independently, so its last ones are as good a test set as any
        is_test = np.concatenate([np.arange(size) >= round(0.9 * size) for size in sizes])
        x_all, y_all = torch.tensor(np.concatenate(inputs), dtype=torch.float32), torch.tensor(np.concatenate(labels))
        train, test = (
            TensorSource(x_all[torch.from_numpy(chosen)], y_all[torch.from_numpy(chosen)], owners[chosen])
            for chosen in (~is_test, is_test)
        )
        return train, test


class FCube(FederatedDataModule):
    """Points in a cube, labelled by a plane; each of four clients sees two opposite octants (NIID-Bench).

    All clients hold both labels equally often and one plane is right for all: only the features differ.

    Args:
        num_samples: Number of training points; a quarter as many are for testing.
        partition: Rule that deals the points; ``None`` is ``Natural()``, the four clients.
        **kwargs: Arguments of `FederatedDataModule`.

    Example:
        >>> data = FCube(seed=0)
        >>> data.setup()
        >>> data.num_clients, int(data.sizes.sum())
        (4, 4000)
    """

    num_classes = 2
    input_shape = (3,)

    def __init__(self, num_samples: int = 4000, partition: Partitioner | None = None, **kwargs: Any) -> None:
        super().__init__(partition=Natural() if partition is None else partition, **kwargs)
        require(num_samples >= 8, "num_samples", num_samples, "must be >= 8", "use 4000 as in NIID-Bench")
        self.num_samples = num_samples

    def load(self) -> tuple[TensorSource, TensorSource]:
        """Draw the points; the seed decides."""
        rng = numpy_generator(self.seed, _STREAM)
        train, test = (
            TensorSource(torch.from_numpy(x), torch.from_numpy(y), ids)
            for x, y, ids in (fcube(count, rng) for count in (self.num_samples, self.num_samples // 4))
        )
        return train, test
