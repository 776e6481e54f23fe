import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from flightning.algorithms import FedAvgMixin, FedProc
from flightning.callbacks import Federation
from flightning.classifier import ProjectedClassifier
from flightning.errors import ConfigurationError
from tests.classification import BatchNormNet, assert_resumes, assert_same, make_data, make_module, run


class HeadedFedAvg(FedAvgMixin, ProjectedClassifier):
    """FedAvg on the network of FedProc."""


HEAD = {"projection": 6}


class Watched(FedProc):
    """Keep task loss, contrast and prototypes of each step by round, and the model that each client ends with."""

    def on_federation_start(self):
        super().on_federation_start()
        self.seen, self.ended = {}, {}

    def task_loss(self, loss, batch):
        scaled = super().task_loss(loss, batch)
        self.ratio = (scaled / loss).item()
        return scaled

    def regularization(self, batch):
        terms = super().regularization(batch)
        self.seen.setdefault(self.round_index, []).append((self.ratio, terms.get("contrast"), self._received))
        return terms

    def on_client_end(self):
        batches = [(self.net.features(x), y) for x, y in self.client_batches()]
        self.ended[self.client.id] = [torch.cat(parts).detach() for parts in zip(*batches, strict=True)]
        return super().on_client_end()


def test_t0_zero_is_fedavg_bit_for_bit():
    module, rounds = run(FedProc, T_0=0, **HEAD)
    assert_same(module, run(HeadedFedAvg, **HEAD)[0])
    assert {r[f"round/extra_bytes_{way}"] for r in rounds for way in ("up", "down")} == {0}


def test_first_round_is_fedavg():
    module, _ = run(Watched, 1, T_0=10, **HEAD)
    assert_same(module, run(HeadedFedAvg, 1, **HEAD)[0])


def test_from_t0_on_it_is_fedavg():
    module, rounds = run(Watched, 3, T_0=1, **HEAD)
    assert_same(module, run(HeadedFedAvg, 3, **HEAD)[0])
    assert {r[f"round/extra_bytes_{way}"] for r in rounds for way in ("up", "down")} == {0}


def test_contrast_comes_first_and_cross_entropy_later():
    # a_t = t / 4; round 0 has no prototypes
    module, _ = run(Watched, 6, T_0=4, **HEAD)
    ratios = [sorted({round(ratio, 6) for ratio, _, _ in module.seen[t]}) for t in range(6)]
    assert ratios == [[1.0], [0.25], [0.5], [0.75], [1.0], [1.0]]
    assert [module.seen[t][0][1] is None for t in range(6)] == [True, False, False, False, True, True]


def test_t0_is_the_number_of_rounds_by_default():
    module, _ = run(Watched, 4, **HEAD)
    assert [round(module.seen[t][0][0], 6) for t in range(4)] == [1.0, 0.25, 0.5, 0.75]


def test_prototypes_are_means_over_all_samples_on_the_unit_sphere():
    module, _ = run(Watched, 1, make_data(per_class=[2, 6, 4]), T_0=10, **HEAD)
    features, labels = (torch.cat(parts) for parts in zip(*module.ended.values(), strict=True))
    sphere = F.normalize(features, dim=1)
    expected = torch.stack([F.normalize(sphere[labels == c].mean(0), dim=0) for c in range(3)])
    torch.testing.assert_close(module.server_state.prototypes["prototypes"], expected)


def test_term_is_the_cross_entropy_of_products_on_the_sphere():
    class Checked(Watched):
        def regularization(self, batch):
            terms = super().regularization(batch)
            if self._received is not None:
                logits = F.normalize(self.net.features(batch[0]), dim=1) @ self._received.T / 0.5
                torch.testing.assert_close(terms["contrast"], 0.5 * F.cross_entropy(logits, batch[1]))
            return terms

    module, _ = run(Checked, 2, temperature=0.5, **HEAD)
    assert module.seen[1][0][1] is not None


def test_class_missing_in_the_cohort_keeps_its_prototype():
    # one client a round; clients hold two of three classes, so the third must stay as it was
    module = make_module(FedProc, T_0=100, **HEAD)
    history = []
    module.on_round_end = lambda: history.append(
        (module.cohort[0], module.server_state.prototypes["prototypes"].clone())
    )
    run(module, 6, federation=Federation(local_steps=2, participation=1))
    missing = {0: 2, 1: 0, 2: 1}
    for (_, before), (client, after) in itertools.pairwise(history):
        assert torch.equal(after[missing[client]], before[missing[client]])
        assert not torch.equal(after, before)


def test_class_that_nobody_has_stays_zero_and_harms_nothing():
    module, rounds = run(FedProc, 3, make_data(num_classes=4, classes=((0, 1), (1, 2), (0, 2))), num_classes=4, **HEAD)
    prototypes = module.server_state.prototypes["prototypes"]
    assert prototypes.norm(dim=1).tolist() == pytest.approx([1, 1, 1, 0])
    assert all(math.isfinite(r["round/loss"]) for r in rounds)


def test_bytes_are_sums_and_counts_up_and_prototypes_down():
    # C = 3 classes, d = 6 features, 3 clients; nothing is needed after the last round or known in the first
    _, rounds = run(FedProc, 3, **HEAD)
    assert [r["round/extra_bytes_up"] for r in rounds] == [3 * (3 * 6 + 3) * 4] * 2 + [0]
    assert [r["round/extra_bytes_down"] for r in rounds] == [0] + [3 * 3 * 6 * 4] * 2


def test_prototypes_leave_batch_norm_alone():
    options = {"net": BatchNormNet, "projection": None}
    assert_same(run(FedProc, 1, T_0=5, **options)[0], run(HeadedFedAvg, 1, **options)[0])


def test_resumes_in_the_middle(tmp_path):
    assert_resumes(FedProc, tmp_path, lambda: Federation(local_epochs=1, participation=2), **HEAD)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"T_0": -1}, r"`T_0=-1` must be at least 0: use 0 for plain FedAvg"),
        ({"temperature": 0}, r"`temperature=0` must be above 0: the paper uses 1"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(FedProc, **options)
