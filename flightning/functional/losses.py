"""Losses of the papers on features, prototypes and logits; constants are detached, half precision is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "decoupled_distillation",
    "decoupled_divergences",
    "distillation",
    "hierarchical_log_weights",
    "hierarchical_prototype_contrast",
    "mean_map_distance",
    "model_contrastive",
    "prototype_contrast",
    "prototype_cross_entropy",
    "representation_distance",
    "supervised_contrastive",
]


def model_contrastive(z: Tensor, z_global: Tensor, z_previous: Sequence[Tensor], tau: float = 0.5) -> Tensor:
    r"""Compute MOON's contrast between the global and the client's previous models.

    .. math::
        -\frac1n \sum_i \log \frac{e^{\cos(z_i, z^{glob}_i) / \tau}}
        {e^{\cos(z_i, z^{glob}_i) / \tau} + \sum_b e^{\cos(z_i, z^{prev,b}_i) / \tau}}

    Li et al., "Model-Contrastive Federated Learning", CVPR 2021, Eq. 3.

    Args:
        z: Features (n, d) of the model in training.
        z_global: Features of the global model on the same samples; a constant.
        z_previous: Features of the previous local models on the same samples; constants. With none, as in the first
            round of a client, the loss and its gradient are exactly 0.
        tau: Temperature, > 0.

    Returns:
        The mean over the batch.

    Example:
        >>> z = torch.tensor([[1.0, 0.0]])
        >>> model_contrastive(z, z, [z], tau=0.5)
        tensor(0.6931)
    """
    z = _precise(z)
    others = [_precise(other).detach() for other in (z_global, *z_previous)]
    logits = torch.stack([F.cosine_similarity(z, other, dim=1) for other in others], dim=1) / tau
    return F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.long))


def prototype_cross_entropy(
    features: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    present: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    r"""Compute FedProc's contrast :math:`-\frac1n\sum_i\log\mathrm{softmax}_c(\bar z_i\cdot\bar P_c/T)[y_i]`.

    Mu et al., "FedProc: Prototypical Contrastive Federated Learning on Non-IID data", 2021. The bar is the
    projection onto the unit sphere.

    Args:
        features: Features (n, d).
        labels: Classes (n,) of the samples.
        prototypes: One global prototype per class (C, d); constants.
        present: Which classes (C,) have a prototype; by default those that are not all zero. The other classes are
            no negatives, and their samples contribute 0 to the mean.
        temperature: Temperature :math:`T`, > 0; 1 in the paper.

    Returns:
        The mean over the batch.

    Example:
        >>> z = torch.tensor([[2.0, 0.0]])
        >>> prototype_cross_entropy(z, torch.tensor([0]), torch.eye(2))  # log(1 + 1 / e)
        tensor(0.3133)
    """
    features, prototypes = _precise(features), _precise(prototypes).detach()
    if present is None:
        present = prototypes.ne(0).any(dim=1)
    logits = F.normalize(features, dim=1) @ F.normalize(prototypes, dim=1).T / temperature
    own = F.one_hot(labels, len(prototypes)).bool()
    # The own class stays, so that no row is all -inf: its gradient would be NaN even when masked afterwards.
    logits = logits.masked_fill(~(present | own), -torch.inf)
    return (F.cross_entropy(logits, labels, reduction="none") * present[labels]).mean()


def supervised_contrastive(features: Tensor, labels: Tensor, temperature: float = 0.07) -> Tensor:
    r"""Pull samples of one class together on the unit sphere, as VHL does with real and virtual samples.

    .. math::
        \frac{1}{|A|} \sum_{i \in A} \frac{-1}{|P(i)|} \sum_{p \in P(i)}
        \log \frac{e^{\bar z_i \cdot \bar z_p / T}}{\sum_{a \ne i} e^{\bar z_i \cdot \bar z_a / T}}

    with :math:`P(i)` the other samples of the class of :math:`i` and :math:`A` the samples for which there are any.
    Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, Eq. 2. For features that take no gradient, such
    as those of virtual samples, pass them detached.

    Args:
        features: Features (n, d).
        labels: Classes (n,).
        temperature: Temperature :math:`T`, > 0.

    Returns:
        The mean over :math:`A`, 0 with zero gradient if :math:`A` is empty.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> supervised_contrastive(z, torch.tensor([0, 0, 1]), temperature=1.0)  # log(1 + 1 / e)
        tensor(0.3133)
    """
    features = _precise(features)
    count = len(features)
    if count < 2:
        return 0.0 * features.sum()
    z = F.normalize(features, dim=1)
    itself = torch.eye(count, dtype=torch.bool, device=z.device)
    logits = z @ z.T / temperature
    log_probability = logits - logits.masked_fill(itself, -torch.inf).logsumexp(dim=1, keepdim=True)
    positives = (labels[:, None] == labels[None, :]) & ~itself
    number = positives.sum(dim=1)
    losses = -(log_probability * positives).sum(dim=1) / number.clamp_min(1)
    return losses.sum() / (number > 0).sum().clamp_min(1)


def distillation(student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Compute :math:`T^2 \, \mathrm{KL}(p^{teacher} \Vert p^{student})` per sample, at temperature :math:`T`.

    Args:
        student_logits: Logits (n, C) in training.
        teacher_logits: Logits (n, C) to imitate; constants.
        temperature: Temperature :math:`T`, > 0, that divides both logits.

    Returns:
        One divergence per sample (n,).

    Example:
        >>> distillation(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
        tensor([0.])
    """
    student = F.log_softmax(_precise(student_logits) / temperature, dim=1)
    teacher = F.log_softmax(_precise(teacher_logits).detach() / temperature, dim=1)
    return temperature**2 * F.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=1)


def decoupled_divergences(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    r"""Split the divergence of two predictions into that of the target and that among the other classes.

    With :math:`b = (p_c, 1 - p_c)` and :math:`\hat p` the softmax without class :math:`c`:
    TCKD :math:`= \mathrm{KL}(b^T \Vert b^S)`, NCKD :math:`= \mathrm{KL}(\hat p^T \Vert \hat p^S)` and
    :math:`\mathrm{KL}(p^T \Vert p^S) =` TCKD :math:`+ (1 - p^T_c)` NCKD.
    Zhao et al., "Decoupled Knowledge Distillation", CVPR 2022, Eq. 5.

    Args:
        student_logits: Logits (n, C) in training, C >= 2.
        teacher_logits: Logits (n, C) to imitate; constants.
        targets: Target classes (n,).

    Returns:
        TCKD and NCKD, each (n,).

    Raises:
        ValueError: If there are fewer than two classes.

    Example:
        >>> same = torch.tensor([[2.0, 0.0, 1.0]])
        >>> decoupled_divergences(same, same, torch.tensor([0]))
        (tensor([0.]), tensor([0.]))
    """
    if student_logits.shape[1] < 2:
        raise ValueError(f"decoupled distillation needs at least two classes, got {student_logits.shape[1]}.")
    student_binary, student_rest = _target_and_rest(_precise(student_logits), targets)
    teacher_binary, teacher_rest = _target_and_rest(_precise(teacher_logits).detach(), targets)
    tckd = F.kl_div(student_binary, teacher_binary, reduction="none", log_target=True).sum(dim=1)
    nckd = F.kl_div(student_rest, teacher_rest, reduction="none", log_target=True).sum(dim=1)
    return tckd, nckd


def decoupled_distillation(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor, xi: float) -> Tensor:
    r"""Compute FedCD's guided distillation :math:`\mathrm{TCKD} + \xi \, \mathrm{NCKD}` per sample.

    Args:
        student_logits: Logits (n, C) in training, C >= 2.
        teacher_logits: Logits (n, C) to imitate; constants.
        targets: Target classes (n,).
        xi: Weight :math:`\xi` of the other classes; 0 imitates the target's probability only.

    Returns:
        One value per sample (n,).

    Raises:
        ValueError: If there are fewer than two classes.

    Example:
        >>> same = torch.tensor([[2.0, 0.0, 1.0]])
        >>> decoupled_distillation(same, same, torch.tensor([0]), xi=0.5)
        tensor([0.])
    """
    tckd, nckd = decoupled_divergences(student_logits, teacher_logits, targets)
    return tckd + xi * nckd


def hierarchical_prototype_contrast(
    features: Tensor,
    labels: Tensor,
    assignments: Tensor,
    prototypes: Tensor,
    *,
    alpha: float = 0.1,
    tau: float = 1.0,
    present: Tensor | None = None,
    importance: Tensor | None = None,
) -> Tensor:
    r"""Contrast each sample with its own prototype, the others of its class and those of other classes (FedCD).

    With :math:`\psi(z, P) = e^{\cos(z, P) / \tau}`, class :math:`c` and assigned prototype :math:`t` of the sample:

    .. math::
        -\frac{1}{\sum I} \sum I \log \frac{\psi(z, P_{c,t})}{\psi(z, P_{c,t})
        + \alpha \sum_{m \ne t} \psi(z, P_{c,m}) + (1 - \alpha) \sum_{j \ne c} \sum_m \psi(z, P_{j,m})}

    Gradients flow to the features and to the prototypes.

    Args:
        features: Features (n, d).
        labels: Classes (n,), the :math:`c` of each sample.
        assignments: Prototype (n,) within the class, the :math:`t` of each sample.
        prototypes: Prototypes (C, M, d).
        alpha: Weight :math:`\alpha` in [0, 1] of the same class's other prototypes.
        tau: Temperature, > 0.
        present: Which prototypes (C, M) are set; by default all. The others enter no sum, and a sample that is
            assigned to one of them counts neither in the sum nor in its normaliser.
        importance: Weight :math:`I \ge 0` of each sample (n,); by default 1.

    Returns:
        The weighted mean; 0 if all weights are 0.

    Example:
        >>> z, p = torch.tensor([[1.0, 0.0]]), torch.eye(2).view(2, 1, 2)
        >>> label, first = torch.tensor([0]), torch.tensor([0])
        >>> hierarchical_prototype_contrast(z, label, first, p, alpha=0.0)  # log(1 + 1 / e)
        tensor(0.3133)
    """
    num_classes, per_class, _ = prototypes.shape
    if present is None:
        present = torch.ones(num_classes, per_class, dtype=torch.bool, device=prototypes.device)
    return prototype_contrast(
        features,
        labels * per_class + assignments,
        prototypes.flatten(0, 1),
        hierarchical_log_weights(present, alpha),
        tau=tau,
        importance=present[labels, assignments] if importance is None else importance * present[labels, assignments],
    )


def hierarchical_log_weights(present: Tensor, alpha: float) -> Tensor:
    r"""Logarithms of the weights with which prototypes enter the sum of :func:`hierarchical_prototype_contrast`.

    Args:
        present: Which prototypes (C, M) are set; the others have weight 0.
        alpha: Weight :math:`\alpha` of the same class's other prototypes.

    Returns:
        A table (C M, C M): in the row of the own prototype 0 for itself, the weights of the others beside it.

    Example:
        >>> hierarchical_log_weights(torch.ones(2, 1, dtype=torch.bool), alpha=0.5)
        tensor([[ 0.0000, -0.6931],
                [-0.6931,  0.0000]])
    """
    num_classes, per_class = present.shape
    classes = torch.arange(num_classes, device=present.device).repeat_interleave(per_class)
    same, other = torch.tensor([alpha, 1 - alpha], device=present.device).log()
    table = torch.where(classes[:, None] == classes, same, other).masked_fill(~present.flatten(), -torch.inf)
    # The own prototype always stays: a row of nothing but -inf would have a NaN gradient.
    return table.fill_diagonal_(0.0)


def prototype_contrast(
    features: Tensor, owners: Tensor, prototypes: Tensor, log_weights: Tensor, *, tau: float, importance: Tensor
) -> Tensor:
    """Contrast each sample with its own prototype and, by a table of weights, all others.

    Args:
        features: Features (n, d).
        owners: The own prototype (n,) of each sample.
        prototypes: Prototypes (N, d).
        log_weights: Logarithm of the weight (N, N) of each prototype (column) by the own prototype (row).
        tau: Temperature, > 0.
        importance: Weight of each sample (n,).

    Returns:
        The mean by importance; 0 if all are 0.

    Example:
        >>> z, table = torch.tensor([[1.0, 0.0]]), torch.zeros(2, 2)
        >>> prototype_contrast(z, torch.tensor([0]), torch.eye(2), table, tau=1.0, importance=torch.ones(1))
        tensor(0.3133)
    """
    features, prototypes = _precise(features), _precise(prototypes)
    logits = F.normalize(features, dim=1) @ F.normalize(prototypes, dim=1).T / tau
    positive = logits.gather(1, owners[:, None])[:, 0]
    losses = (logits + log_weights.to(logits)[owners]).logsumexp(dim=1) - positive
    importance = importance.to(logits)
    return (importance * losses).sum() / importance.sum().clamp_min(torch.finfo(logits.dtype).tiny)


def mean_map_distance(features: Tensor, target: Tensor) -> Tensor:
    r"""Compute rFedAvg's :math:`\lVert \frac1n \sum_i z_i - \delta \rVert^2`.

    Args:
        features: Features (n, d) of a batch.
        target: Mean feature :math:`\delta` (d,) of the other clients; a constant.

    Raises:
        ValueError: If the sizes of features and target differ.

    Example:
        >>> mean_map_distance(torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([0.0, 0.0]))
        tensor(5.)
    """
    if features.shape[1:] != target.shape:
        raise ValueError(
            f"`target` must have the shape of one sample's features {tuple(features.shape[1:])}, "
            f"got {tuple(target.shape)}."
        )
    return (_precise(features).mean(dim=0) - _precise(target).detach()).square().sum()


def representation_distance(
    local: Tensor,
    teacher: Tensor,
    p: Literal[1, 2] = 1,
    reduction: Literal["batch_fro", "sample_mean", "sample_sum", "mse"] = "batch_fro",
) -> Tensor:
    r"""Compute FedRL's distance between what a layer gives in the local and in the global model.

    With :math:`d_i` the difference of sample :math:`i`: ``batch_fro`` is
    :math:`(\sum_i \lVert d_i \rVert^2)^{p/2}`, ``sample_mean`` and ``sample_sum`` are mean and sum of
    :math:`\lVert d_i \rVert^p`, and ``mse`` is the mean of all squared entries (:math:`p = 2` only).
    The gradient is 0 where the two are equal.

    Args:
        local: Output (n, ...) of the layer in the model that is trained.
        teacher: The same of the frozen model; a constant.
        p: ``1`` for norms, ``2`` for their squares.
        reduction: How entries and samples become one number.

    Example:
        >>> local, teacher = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.zeros(2, 2)
        >>> representation_distance(local, teacher), representation_distance(local, teacher, 2, "sample_mean")
        (tensor(5.), tensor(12.5000))
    """
    difference = (_precise(local) - _precise(teacher).detach()).flatten(start_dim=1)
    if reduction == "mse":
        return difference.square().mean()
    # vector_norm has the sub-gradient 0 at 0, where sqrt has none
    if reduction == "batch_fro":
        return difference.square().sum() if p == 2 else torch.linalg.vector_norm(difference)
    each = difference.square().sum(dim=1) if p == 2 else torch.linalg.vector_norm(difference, dim=1)
    return each.mean() if reduction == "sample_mean" else each.sum()


def _precise(x: Tensor) -> Tensor:
    """Raise half precision to float32: exponentials and sums of many terms need it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _target_and_rest(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of (target, not target) and, renormalised, of the classes that are not the target."""
    others = torch.arange(logits.shape[1] - 1, device=logits.device)
    rest = logits.gather(1, others + (others >= targets[:, None]))
    target = logits.gather(1, targets[:, None])
    binary = torch.cat([target, rest.logsumexp(dim=1, keepdim=True)], dim=1)
    return binary.log_softmax(dim=1), rest.log_softmax(dim=1)
