"""Losses against closed forms, brute force and their own limits."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from flightning.functional.losses import (
    decoupled_distillation,
    decoupled_divergences,
    distillation,
    hierarchical_prototype_contrast,
    mean_map_distance,
    model_contrastive,
    prototype_cross_entropy,
    supervised_contrastive,
)

X, Y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])


def draw(*shape, seed=0, grad=False):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.requires_grad_(grad)


class TestModelContrastive:
    def test_closed_form(self):
        # cos(z, global) = 1, cos(z, previous) = 0, tau = 0.5: log(1 + e^-2)
        assert model_contrastive(X, X, [Y], tau=0.5).item() == pytest.approx(math.log1p(math.exp(-2)))

    def test_two_previous_models_add_two_terms(self):
        # cosines 1, 0, -1 at tau = 1: log(1 + e^-1 + e^-2)
        expected = math.log(1 + math.exp(-1) + math.exp(-2))
        assert model_contrastive(X, X, [Y, -X], tau=1.0).item() == pytest.approx(expected)

    def test_without_previous_model_loss_and_gradient_are_exactly_zero(self):
        z = draw(5, 3, grad=True)
        loss = model_contrastive(z, draw(5, 3, seed=1), [], tau=0.5)
        loss.backward()
        assert loss == 0
        assert torch.equal(z.grad, torch.zeros_like(z))

    def test_previous_equal_to_global_gives_log_two_and_no_gradient(self):
        z, other = draw(5, 3, grad=True), draw(5, 3, seed=1)
        loss = model_contrastive(z, other, [other], tau=0.5)
        loss.backward()
        assert loss.item() == pytest.approx(math.log(2))
        torch.testing.assert_close(z.grad, torch.zeros_like(z), atol=1e-12, rtol=0)

    def test_swapping_global_and_previous_gives_complementary_probabilities(self):
        z, a, b = draw(1, 4), draw(1, 4, seed=1), draw(1, 4, seed=2)
        forth, back = model_contrastive(z, a, [b], tau=0.3), model_contrastive(z, b, [a], tau=0.3)
        assert (torch.exp(-forth) + torch.exp(-back)).item() == pytest.approx(1)

    def test_bound(self):
        # The worst case is opposite to the global and equal to the previous features: log(1 + e^(2 / tau)).
        assert model_contrastive(X, -X, [X], tau=0.5).item() == pytest.approx(math.log1p(math.exp(4)))

    def test_only_z_gets_a_gradient(self):
        z, a, b = (draw(3, 4, seed=s, grad=True) for s in range(3))
        model_contrastive(z, a, [b]).backward()
        assert z.grad is not None
        assert a.grad is None
        assert b.grad is None

    def test_gradcheck(self):
        a, b = draw(3, 4, seed=1), draw(3, 4, seed=2)
        assert gradcheck(lambda z: model_contrastive(z, a, [b], 0.5), draw(3, 4, grad=True))

    def test_batch_of_one_and_half_precision(self):
        loss = model_contrastive(X.bfloat16(), X.bfloat16(), [Y.bfloat16()])
        assert loss.shape == ()
        assert loss.dtype == torch.float32


class TestPrototypeCrossEntropy:
    def test_closed_form_on_the_unit_sphere(self):
        # z = (3, 4) -> (0.6, 0.8); prototypes (5, 0) -> (1, 0), (0, 2) -> (0, 1); class 1: log(1 + e^(0.6 - 0.8))
        z, prototypes = torch.tensor([[3.0, 4.0]]), torch.tensor([[5.0, 0.0], [0.0, 2.0]])
        loss = prototype_cross_entropy(z, torch.tensor([1]), prototypes)
        assert loss.item() == pytest.approx(math.log1p(math.exp(-0.2)))

    def test_temperature_divides_the_cosines(self):
        loss = prototype_cross_entropy(X, torch.tensor([0]), torch.eye(2), temperature=0.5)
        assert loss.item() == pytest.approx(math.log1p(math.exp(-2)))

    def test_classes_without_prototype_are_no_negatives(self):
        # Only class 0 has a prototype: a softmax over one class.
        prototypes = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
        assert prototype_cross_entropy(Y, torch.tensor([0]), prototypes) == 0

    def test_samples_of_a_class_without_prototype_contribute_zero(self):
        z = torch.cat([X, X]).requires_grad_()
        prototypes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
        loss = prototype_cross_entropy(z, torch.tensor([0, 2]), prototypes)
        loss.backward()
        assert loss.item() == pytest.approx(math.log1p(math.exp(-1)) / 2)
        assert torch.equal(z.grad[1], torch.zeros(2))

    def test_no_prototype_at_all_is_zero_with_finite_gradient(self):
        z = draw(3, 2, grad=True)
        loss = prototype_cross_entropy(z, torch.tensor([0, 1, 1]), torch.zeros(2, 2, dtype=torch.float64))
        loss.backward()
        assert loss == 0
        assert torch.equal(z.grad, torch.zeros_like(z))

    def test_mask_overrides_the_values(self):
        present = torch.tensor([True, False])
        assert prototype_cross_entropy(Y, torch.tensor([0]), torch.eye(2), present) == 0

    def test_gradcheck(self):
        prototypes, labels = draw(3, 4, seed=1), torch.tensor([0, 2, 1, 0])
        present = torch.tensor([True, True, False])
        assert gradcheck(lambda z: prototype_cross_entropy(z, labels, prototypes, present), draw(4, 4, grad=True))


def supcon_by_loops(features, labels, temperature):
    z = F.normalize(features, dim=1)
    losses = []
    for i in range(len(z)):
        others = [a for a in range(len(z)) if a != i]
        positives = [p for p in others if labels[p] == labels[i]]
        if positives:
            denominator = sum(torch.exp(z[i] @ z[a] / temperature) for a in others)
            terms = [torch.log(torch.exp(z[i] @ z[p] / temperature) / denominator) for p in positives]
            losses.append(-sum(terms) / len(positives))
    return sum(losses) / len(losses)


class TestSupervisedContrastive:
    def test_closed_form(self):
        # Anchors 0 and 1: positive at cosine 1, negative at 0. Anchor 2 has no positive. T = 0.5: log(1 + e^-2)
        loss = supervised_contrastive(torch.cat([X, X, Y]), torch.tensor([0, 0, 1]), temperature=0.5)
        assert loss.item() == pytest.approx(math.log1p(math.exp(-2)))

    def test_equals_the_formula_written_as_loops(self):
        z, labels = draw(7, 3), torch.tensor([0, 1, 0, 2, 1, 0, 3])
        torch.testing.assert_close(supervised_contrastive(z, labels, 0.2), supcon_by_loops(z, labels, 0.2))

    @pytest.mark.parametrize("labels", [[0, 1, 2], [4]])
    def test_without_positives_loss_and_gradient_are_zero(self, labels):
        z = draw(len(labels), 3, grad=True)
        loss = supervised_contrastive(z, torch.tensor(labels))
        loss.backward()
        assert loss == 0
        assert torch.equal(z.grad, torch.zeros_like(z))

    def test_low_temperature_does_not_overflow(self):
        z = draw(6, 3).float().requires_grad_()
        loss = supervised_contrastive(z, torch.tensor([0, 0, 1, 1, 2, 2]), temperature=0.001)
        loss.backward()
        assert loss.isfinite()
        assert z.grad.isfinite().all()

    def test_gradcheck(self):
        labels = torch.tensor([0, 1, 0, 1, 2])
        assert gradcheck(lambda z: supervised_contrastive(z, labels, 0.5), draw(5, 3, grad=True))


class TestDistillation:
    def test_closed_form(self):
        # p_teacher = (3/4, 1/4), p_student = (1/2, 1/2): 3/4 log(3/2) + 1/4 log(1/2)
        teacher, student = torch.tensor([[math.log(3.0), 0.0]]), torch.zeros(1, 2)
        expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
        torch.testing.assert_close(distillation(student, teacher), torch.tensor([expected]))

    def test_temperature_scales_logits_and_the_square_keeps_the_gradient(self):
        student, teacher = draw(3, 4), draw(3, 4, seed=1)
        torch.testing.assert_close(distillation(student, teacher, 4.0), 16 * distillation(student / 4, teacher / 4))

    def test_teacher_gets_no_gradient(self):
        student, teacher = draw(3, 4, grad=True), draw(3, 4, seed=1, grad=True)
        distillation(student, teacher).sum().backward()
        # Gradient of the divergence by the student's logits: p_student - p_teacher.
        torch.testing.assert_close(student.grad, student.softmax(1).detach() - teacher.softmax(1).detach())
        assert teacher.grad is None


class TestDecoupledDistillation:
    def test_target_part_in_closed_form(self):
        # Teacher: (1/2, 1/4, 1/4), student: (1/3, 1/3, 1/3), target 0.
        # TCKD = 1/2 log(3/2) + 1/2 log(3/4); the other classes are (1/2, 1/2) for both, NCKD = 0.
        teacher, student = torch.tensor([[math.log(2.0), 0.0, 0.0]]), torch.zeros(1, 3)
        tckd, nckd = decoupled_divergences(student, teacher, torch.tensor([0]))
        assert tckd.item() == pytest.approx(0.5 * math.log(1.5) + 0.5 * math.log(0.75), rel=1e-5)
        assert nckd.item() == pytest.approx(0, abs=1e-7)

    def test_other_part_in_closed_form(self):
        # The same with target 1. Others: teacher (2/3, 1/3), student (1/2, 1/2): 2/3 log(4/3) + 1/3 log(2/3)
        # TCKD = 1/4 log(3/4) + 3/4 log(9/8)
        teacher, student = torch.tensor([[math.log(2.0), 0.0, 0.0]]), torch.zeros(1, 3)
        tckd, nckd = decoupled_divergences(student, teacher, torch.tensor([1]))
        assert tckd.item() == pytest.approx(0.25 * math.log(0.75) + 0.75 * math.log(1.125), rel=1e-5)
        assert nckd.item() == pytest.approx(2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3), rel=1e-5)

    def test_parts_add_up_to_the_divergence(self):
        # KL(p_T || p_S) = TCKD + (1 - p_T[c]) NCKD
        student, teacher, targets = draw(20, 7), draw(20, 7, seed=1), torch.arange(20) % 7
        tckd, nckd = decoupled_divergences(student, teacher, targets)
        other = 1 - teacher.softmax(dim=1).gather(1, targets[:, None]).squeeze(1)
        torch.testing.assert_close(tckd + other * nckd, distillation(student, teacher))

    def test_xi_weighs_the_other_classes(self):
        student, teacher, targets = draw(4, 5), draw(4, 5, seed=1), torch.tensor([0, 4, 2, 1])
        tckd, nckd = decoupled_divergences(student, teacher, targets)
        torch.testing.assert_close(decoupled_distillation(student, teacher, targets, xi=8.0), tckd + 8 * nckd)

    def test_two_classes_have_no_others_to_differ_in(self):
        _, nckd = decoupled_divergences(draw(4, 2), draw(4, 2, seed=1), torch.tensor([0, 1, 1, 0]))
        assert torch.equal(nckd, torch.zeros(4, dtype=torch.float64))

    def test_sure_predictions_stay_finite(self):
        student = torch.tensor([[-200.0, 200.0, 0.0]], requires_grad=True)
        loss = decoupled_distillation(student, torch.tensor([[200.0, -200.0, 0.0]]), torch.tensor([0]), xi=0.5).sum()
        loss.backward()
        assert loss.isfinite()
        assert student.grad.isfinite().all()

    def test_teacher_gets_no_gradient(self):
        student, teacher = draw(3, 4, grad=True), draw(3, 4, seed=1, grad=True)
        decoupled_distillation(student, teacher, torch.tensor([0, 1, 2]), xi=0.5).sum().backward()
        assert teacher.grad is None

    def test_gradcheck(self):
        teacher, targets = draw(3, 4, seed=1), torch.tensor([3, 0, 1])
        assert gradcheck(lambda s: decoupled_distillation(s, teacher, targets, 0.5), draw(3, 4, grad=True))

    def test_one_class_is_refused(self):
        with pytest.raises(ValueError, match="at least two classes, got 1"):
            decoupled_distillation(torch.zeros(2, 1), torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), xi=1.0)


def contrast_by_loops(z, labels, assignments, prototypes, alpha, tau, present, importance):
    num_classes, per_class, _ = prototypes.shape

    def psi(i, c, m):
        return present[c, m] * torch.exp(F.cosine_similarity(z[i], prototypes[c, m], dim=0) / tau)

    total = z.new_zeros(())
    for i in range(len(z)):
        c, t = labels[i].item(), assignments[i].item()
        same = sum(psi(i, c, m) for m in range(per_class) if m != t)
        other = sum(psi(i, j, m) for j in range(num_classes) if j != c for m in range(per_class))
        total = total - importance[i] * torch.log(psi(i, c, t) / (psi(i, c, t) + alpha * same + (1 - alpha) * other))
    return total / sum(importance)


class TestHierarchicalPrototypeContrast:
    # Two classes of two prototypes in the plane: class 0 at 0 and 90 degrees, class 1 at 180 and 270 degrees.
    prototypes = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]])

    def test_closed_form(self):
        # z on P[0, 0]: cosines 1 (own), 0 (same class), -1 and 0 (other class); alpha = 0.1, tau = 1:
        # the loss is minus the logarithm of e / (e + 0.1 * 1 + 0.9 * (1/e + 1))
        expected = math.log(1 + (0.1 + 0.9 * (math.exp(-1) + 1)) / math.e)
        loss = hierarchical_prototype_contrast(X, torch.tensor([0]), torch.tensor([0]), self.prototypes, alpha=0.1)
        assert loss.item() == pytest.approx(expected)

    def test_unset_prototypes_enter_no_sum(self):
        # Without P[1, 1] the other class has the cosine -1 only.
        present = torch.tensor([[True, True], [True, False]])
        loss = hierarchical_prototype_contrast(
            X, torch.tensor([0]), torch.tensor([0]), self.prototypes, alpha=0.1, present=present
        )
        assert loss.item() == pytest.approx(math.log(1 + (0.1 + 0.9 * math.exp(-1)) / math.e))

    @pytest.mark.parametrize(("alpha", "tau"), [(0.0, 1.0), (0.1, 0.5), (1.0, 2.0)])
    def test_equals_the_formula_written_as_loops(self, alpha, tau):
        z, prototypes = draw(6, 5), draw(3, 2, 5, seed=1)
        labels, assignments = torch.tensor([0, 1, 2, 2, 1, 0]), torch.tensor([0, 1, 0, 1, 1, 1])
        present = torch.tensor([[True, True], [False, True], [True, True]])
        importance = torch.tensor([1.0, 3.0, 0.5, 1.0, 0.0, 20.0], dtype=torch.float64)
        loss = hierarchical_prototype_contrast(
            z, labels, assignments, prototypes, alpha=alpha, tau=tau, present=present, importance=importance
        )
        expected = contrast_by_loops(z, labels, assignments, prototypes, alpha, tau, present, importance)
        torch.testing.assert_close(loss, expected)

    def test_one_prototype_per_class_has_no_pseudo_negatives(self):
        # M = 1: only the factor 1 - alpha of the other classes is left.
        z, p = X, torch.eye(2).view(2, 1, 2)
        loss = hierarchical_prototype_contrast(z, torch.tensor([0]), torch.tensor([0]), p, alpha=0.25)
        assert loss.item() == pytest.approx(math.log(1 + 0.75 * math.exp(-1)))

    def test_sample_of_an_unset_prototype_does_not_count(self):
        labels, first = torch.tensor([0, 1]), torch.tensor([0, 0])
        present = torch.tensor([[True, True], [False, True]])
        z = torch.cat([X, Y]).requires_grad_()
        both = hierarchical_prototype_contrast(z, labels, first, self.prototypes, present=present)
        alone = hierarchical_prototype_contrast(X, labels[:1], first[:1], self.prototypes, present=present)
        both.backward()
        torch.testing.assert_close(both, alone)
        assert torch.equal(z.grad[1], torch.zeros(2))

    def test_no_weight_at_all_is_zero_with_finite_gradient(self):
        z = draw(2, 2, grad=True)
        zero = torch.zeros(2, dtype=torch.long)
        loss = hierarchical_prototype_contrast(
            z, zero, zero, self.prototypes.double(), present=torch.zeros(2, 2, dtype=torch.bool)
        )
        loss.backward()
        assert loss == 0
        assert torch.equal(z.grad, torch.zeros_like(z))

    @pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
    def test_gradcheck_of_features_and_prototypes(self, alpha):
        labels, assignments = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1])
        present = torch.tensor([[True, True], [True, True], [False, True]])

        def loss(z, p):
            return hierarchical_prototype_contrast(z, labels, assignments, p, alpha=alpha, present=present)

        assert gradcheck(loss, (draw(3, 4, grad=True), draw(3, 2, 4, seed=1, grad=True)))


class TestMeanMapDistance:
    def test_closed_form(self):
        # Mean (2, 1), target (0, -1): 4 + 4
        assert mean_map_distance(torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([0.0, -1.0])) == 8

    def test_gradient_to_a_mean_target_is_the_mean_of_gradients(self):
        # mean_j ||m - d_j||^2 and ||m - mean_j d_j||^2 differ by a constant.
        z, targets = draw(5, 3, grad=True), draw(4, 3, seed=1)
        each = sum(mean_map_distance(z, target) for target in targets) / 4
        (first,) = torch.autograd.grad(each, z)
        (second,) = torch.autograd.grad(mean_map_distance(z, targets.mean(dim=0)), z)
        torch.testing.assert_close(first, second)

    def test_target_gets_no_gradient(self):
        z, target = draw(5, 3, grad=True), draw(3, seed=1, grad=True)
        mean_map_distance(z, target).backward()
        assert target.grad is None

    def test_gradcheck(self):
        assert gradcheck(lambda z: mean_map_distance(z, draw(3, seed=1)), draw(5, 3, grad=True))

    def test_target_of_another_size_is_refused(self):
        with pytest.raises(ValueError, match=r"features \(3,\), got \(1,\)"):
            mean_map_distance(torch.zeros(2, 3), torch.zeros(1))
