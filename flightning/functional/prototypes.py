"""Several prototypes per class: assignment, start, pooling over clients, and the classifier rows behind them (FedCD).

Shapes: C classes, M prototypes per class, d features, K clients. A prototype that is all zero was never set.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flightning.errors import check_choice
from flightning.functional.clustering import align, kmeans

__all__ = [
    "ALIGNMENTS",
    "READOUTS",
    "adaptive_row_weights",
    "align_prototypes",
    "assign",
    "assign_by",
    "class_means",
    "cluster_means",
    "count_row_weights",
    "initial_prototypes",
    "pool_prototypes",
    "read_out",
    "scoring",
    "unset_classes",
]

#: From fine-grained to class logits: the paper's sum, its mean, or the logarithm of summed probabilities.
READOUTS = ("logit_sum", "logit_mean", "prob_sum")
#: Whose cluster m is whose in the first round.
ALIGNMENTS = ("hungarian", "index", "kmeans")


def read_out(fine_logits: Tensor, per_class: int, how: str = "logit_sum") -> Tensor:
    r"""Turn logits of fine-grained classes into logits of classes.

    ``logit_sum`` is :math:`xW` with the 0-1 matrix :math:`W`: all rows of a class get the same gradient, so that they
    differ by their start alone. ``prob_sum`` is the logarithm of :math:`\mathrm{softmax}(x)W` up to a constant.

    Args:
        fine_logits: Logits (n, C M), the M of a class side by side.
        per_class: M.
        how: One of `READOUTS`.

    Example:
        >>> read_out(torch.tensor([[1.0, 2.0, 3.0, 5.0]]), 2), read_out(torch.zeros(1, 4), 2, "prob_sum")
        (tensor([[3., 8.]]), tensor([[0.6931, 0.6931]]))
    """
    check_choice("readout", how, READOUTS)
    grouped = fine_logits.view(*fine_logits.shape[:-1], -1, per_class)
    if how == "prob_sum":
        return grouped.logsumexp(dim=-1)
    return grouped.sum(dim=-1) if how == "logit_sum" else grouped.mean(dim=-1)


def assign(features: Tensor, labels: Tensor, prototypes: Tensor, cosine: bool = True) -> Tensor:
    r"""Find the prototype of its class nearest to each sample: :math:`t = \arg\max_m \cos(z, P_{c,m})`.

    Args:
        features: Features (n, d).
        labels: Classes (n,).
        prototypes: Prototypes (C, M, d); those that are all zero are nobody's, unless a class has no other.
        cosine: Nearest by angle, as in FedCD's Eq. 2; ``False``: by Euclidean distance, as k-means does.

    Returns:
        Index (n,) within the class.

    Example:
        >>> prototypes = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> assign(torch.tensor([[0.2, 3.0], [5.0, 1.0]]), torch.tensor([0, 0]), prototypes)
        tensor([1, 0])
    """
    return assign_by(features, labels, *scoring(prototypes, cosine))


def scoring(prototypes: Tensor, cosine: bool = True) -> tuple[Tensor, Tensor]:
    """Linear map whose largest value marks the nearest prototype: rows (C, M, d) and offsets (C, M).

    Many batches are assigned to the same prototypes: make it once and use :func:`assign_by`.
    """
    lengths = prototypes.square().sum(dim=-1)
    # ||z - P||^2 is least where z.P - ||P||^2 / 2 is largest; on the unit sphere that is the cosine
    rows, offsets = (
        (F.normalize(prototypes, dim=-1), torch.zeros_like(lengths)) if cosine else (prototypes, -lengths / 2)
    )
    return rows, offsets.masked_fill(lengths == 0, -torch.inf)


def assign_by(features: Tensor, labels: Tensor, rows: Tensor, offsets: Tensor) -> Tensor:
    """Prototype (n,) of its class nearest to each sample, by the result of :func:`scoring`."""
    kind = torch.promote_types(features.dtype, rows.dtype)
    features, rows, base = features.to(kind), rows.to(kind), offsets.to(kind)
    scores = torch.addmm(base.flatten(), features, rows.flatten(0, 1).T).view(-1, *offsets.shape)
    wanted = labels[:, None, None].expand(-1, 1, offsets.shape[1])
    return scores.gather(1, wanted)[:, 0].argmax(dim=1)


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mean feature (C, d) and number (C,) of the samples of each class; zeros where there is none.

    Example:
        >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), 3)
        (tensor([[2.],
                [0.],
                [5.]]), tensor([2., 0., 1.]))
    """
    members = F.one_hot(labels, num_classes).to(features.dtype)
    counts = members.sum(dim=0)
    return members.T @ features / counts.clamp_min(1)[:, None], counts


def cluster_means(features: Tensor, labels: Tensor, assignments: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Mean feature and number of the samples of each (class, prototype).

    Args:
        features: Features (n, d).
        labels: Classes (n,).
        assignments: Prototype of each sample within its class (n,).
        shape: (C, M, d).

    Returns:
        Means (C, M, d), zero where there is no sample, and counts (C, M).

    Example:
        >>> labels, fine = torch.tensor([0, 0, 0]), torch.tensor([1, 1, 0])
        >>> cluster_means(torch.tensor([[1.0], [3.0], [5.0]]), labels, fine, torch.Size([1, 2, 1]))
        (tensor([[[5.],
                 [2.]]]), tensor([[1., 2.]]))
    """
    means, counts = class_means(features, labels * shape[1] + assignments, shape[0] * shape[1])
    return means.view(shape), counts.view(shape[:2])


def initial_prototypes(
    features: Tensor, labels: Tensor, num_classes: int, per_class: int, generator: torch.Generator, fill: bool = False
) -> tuple[Tensor, Tensor]:
    """Cluster the features of each class by k-means.

    Args:
        features: Features (n, d).
        labels: Classes (n,).
        num_classes: C.
        per_class: M.
        generator: Source of the start of k-means.
        fill: Repeat the centroids of a class with fewer samples than M, and their counts, until all M are set;
            otherwise the remaining ones are zero with count 0.

    Returns:
        Prototypes (C, M, d) and counts (C, M); zeros for a class without samples.

    Example:
        >>> x, y = torch.tensor([[1.0], [5.0]]), torch.tensor([1, 1])
        >>> prototypes, counts = initial_prototypes(x, y, 2, 3, torch.Generator().manual_seed(0))
        >>> prototypes[1].flatten(), counts
        (tensor([1., 5., 0.]), tensor([[0., 0., 0.],
                [1., 1., 0.]]))
    """
    prototypes = features.new_zeros(num_classes, per_class, features.shape[1])
    counts = features.new_zeros(num_classes, per_class)
    for label in torch.unique(labels).tolist():
        found = kmeans(features[labels == label], per_class, generator)
        order = torch.arange(per_class, device=features.device)
        if fill:
            used = found.counts.nonzero()[:, 0]
            order = used[order % len(used)]
        prototypes[label] = found.centroids[order].to(prototypes)
        counts[label] = found.counts[order].to(counts)
    return prototypes, counts


def unset_classes(prototypes: Tensor) -> Tensor:
    """Classes (C,) none of whose prototypes (C, M, d) was ever set.

    Example:
        >>> unset_classes(torch.tensor([[[0.0], [2.0]], [[0.0], [0.0]]]))
        tensor([False,  True])
    """
    return ~prototypes.flatten(1).any(dim=1)


def align_prototypes(prototypes: Tensor, counts: Tensor, how: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Put the clusters of all clients into one order, class by class: index m is arbitrary on each client.

    Args:
        prototypes: Prototypes (K, C, M, d).
        counts: Samples (K, C, M) behind them.
        how: ``hungarian``: match to the client with most samples of the class by cosine. ``index``: leave as they are.
            ``kmeans``: cluster the clients' prototypes, each as often as it counts.
        generator: Source of the start of k-means.

    Returns:
        Prototypes and counts in one order; those of ``kmeans`` are of one client that stands for all.

    Example:
        >>> p = torch.stack([torch.eye(2), torch.eye(2).flip(0)])[:, None]
        >>> align_prototypes(p, torch.ones(2, 1, 2), "hungarian", torch.Generator())[0][1, 0]
        tensor([[1., 0.],
                [0., 1.]])
    """
    check_choice("alignment", how, ALIGNMENTS)
    if how == "kmeans":
        clients, num_classes, per_class, size = prototypes.shape
        flat = prototypes.transpose(0, 1).reshape(num_classes * clients * per_class, size)
        repeats = counts.transpose(0, 1).reshape(-1).long()
        labels = torch.arange(num_classes, device=flat.device).repeat_interleave(clients * per_class)
        points, labels = flat.repeat_interleave(repeats, dim=0), labels.repeat_interleave(repeats)
        pooled, numbers = initial_prototypes(points, labels, num_classes, per_class, generator)
        return pooled[None], numbers[None]
    prototypes, counts = prototypes.clone(), counts.clone()
    for label in range(prototypes.shape[1]) if how == "hungarian" else ():
        largest = int(counts[:, label].sum(dim=1).argmax())
        for client in range(len(prototypes)):
            order = align(prototypes[largest, label], prototypes[client, label])
            prototypes[client, label] = prototypes[client, label, order]
            counts[client, label] = counts[client, label, order]
    return prototypes, counts


def pool_prototypes(prototypes: Tensor, counts: Tensor, previous: Tensor) -> Tensor:
    r"""Compute :math:`P_{c,m} = \sum_k \frac{n^k_{c,m}}{n_{c,m}} P^k_{c,m}` (FedCD, Eq. 1).

    Args:
        prototypes: Prototypes (K, C, M, d) of the clients.
        counts: Samples (K, C, M) behind them.
        previous: Prototypes (C, M, d) that stay where no client has a sample.

    Example:
        >>> p = torch.tensor([1.0, 4.0]).view(2, 1, 1, 1)
        >>> pool_prototypes(p, torch.tensor([1.0, 2.0]).view(2, 1, 1), torch.zeros(1, 1, 1))
        tensor([[[3.]]])
    """
    total = counts.sum(dim=0)[..., None]
    mean = (counts[..., None] * prototypes).sum(dim=0) / total.clamp_min(1)
    return torch.where(total > 0, mean, previous)


def adaptive_row_weights(rows: Tensor, prototypes: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""Weigh each client's row j by how sure its classifier is of prototype j (FedCD, Eq. 13 and 14).

    :math:`\nu^j = \mathrm{softmax}_k(q^j_k)` with :math:`q^j_k = \mathrm{softmax}(\phi_k P_j)[j]`.

    Args:
        rows: Classifiers (K, C M, d).
        prototypes: Prototypes (C M, d).
        bias: Their biases (K, C M).

    Returns:
        Weights (K, C M) that sum to 1 over clients; the largest is at most e times the smallest.

    Example:
        >>> adaptive_row_weights(torch.eye(2).expand(4, 2, 2), torch.eye(2))[:, 0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    logits = prototypes @ rows.transpose(1, 2)
    if bias is not None:
        logits = logits + bias[:, None]
    return logits.softmax(dim=2).diagonal(dim1=1, dim2=2).softmax(dim=0)


def count_row_weights(counts: Tensor) -> Tensor:
    r"""Weigh each client's row j by its share :math:`n^k_j / n_j` of the samples; equally where there are none.

    Args:
        counts: Samples (K, C M).

    Example:
        >>> count_row_weights(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
        tensor([[0.2500, 0.5000],
                [0.7500, 0.5000]])
    """
    total = counts.sum(dim=0)
    return torch.where(total > 0, counts / total.clamp_min(1), 1 / len(counts))
