import math

import pytest
import torch
from torch.nn import functional as F

from flightning.algorithms import FedAvgMixin, FedCD
from flightning.algorithms.fine_classifier import RebalancedSet
from flightning.callbacks import Federation
from flightning.classifier import ProjectedClassifier
from flightning.errors import ConfigurationError
from flightning.functional.losses import decoupled_distillation, hierarchical_prototype_contrast
from flightning.functional.prototypes import (
    adaptive_row_weights,
    align_prototypes,
    assign,
    cluster_means,
    pool_prototypes,
    unset_classes,
)
from tests.classification import BatchNormNet, assert_resumes, make_data, make_module, run

C, M, D = 3, 2, 4
OFF = {
    "mu": 1.0,
    "lambda_": 0.0,
    "gamma": 0.0,
    "hpc": False,
    "rebalance": "none",
    "classifier": "fedavg",
    "M": 1,
    "bias": True,
}
ABLATIONS = {
    "-hpc": {"hpc": False},
    "-dkd": {"lambda_": 0.0},
    "-bpr": {"gamma": 0.0},
    "-acla": {"classifier": "fedavg"},
    "/kd": {"distillation": "plain"},
    "/cla": {"classifier": "counts"},
}


class ProjectedFedAvg(FedAvgMixin, ProjectedClassifier): ...


class Probe(FedCD):
    """Keep what every local step saw."""

    def on_federation_start(self):
        super().on_federation_start()
        self.steps, self.uploads = [], []

    def regularization(self, batch):
        terms = super().regularization(batch)
        kept = {"z": self.penultimate.detach().clone(), "y": batch[1], "prototypes": self.prototypes.detach().clone()}
        kept["rows"] = self._head.fine.weight.detach().clone()
        kept["download"], kept["round"] = self.received, self.round_index
        kept["terms"] = {n: t.item() for n, t in terms.items()}
        kept["task"] = self.task.item()
        kept["num_samples"] = self.client.num_samples
        self.steps.append(kept)
        return terms

    def task_loss(self, loss, batch):
        self.task = super().task_loss(loss, batch)
        return self.task

    def on_client_start(self, download):
        super().on_client_start(download)
        self.received = {n: t.clone() for n, t in download.items() if n != "weights"}
        # all clients of a round receive the same classifier
        self.teacher = self.global_weights[f"{self.feature_layer}.weight"].clone()

    def on_client_end(self):
        upload = super().on_client_end()
        self.uploads.append({n: upload[n].clone() for n in ("prototypes", "counts") if n in upload})
        return upload


def probe(rounds=3, **kwargs):
    options = {"M": M, "projection": D, **kwargs}
    return run(Probe, rounds, **options)


def finite(module):
    return all(torch.isfinite(w).all() for w in module.state_dict().values())


def test_everything_off_is_fedavg_bit_for_bit():
    fedavg, _ = run(ProjectedFedAvg, 3)
    module, rounds = run(FedCD, 3, **OFF)
    found = {n.replace(".fine", ""): w for n, w in module.state_dict().items() if n != "prototypes"}
    assert found.keys() == fedavg.state_dict().keys()
    assert all(torch.equal(found[n], w) for n, w in fedavg.state_dict().items())
    assert rounds[-1]["round/extra_bytes_up"] == rounds[-1]["round/extra_bytes_down"] == 0


def contrast(x, label, cluster, prototypes, present, alpha=0.2, tau=0.7):
    label, cluster = torch.tensor([label]), torch.tensor([cluster])
    options = {"alpha": alpha, "tau": tau, "present": present}
    return hierarchical_prototype_contrast(x[None], label, cluster, prototypes, **options)


@pytest.mark.parametrize(("kind", "temperature"), [("decoupled", 1.0), ("decoupled", 2.0), ("plain", 2.0)])
def test_losses_match_their_equations(kind, temperature):
    # a step of the last round: everything recomputed sample by sample
    options = {"alpha": 0.2, "tau": 0.7, "xi": 1.5, "lambda_": 0.3, "gamma": 0.6}
    module, _ = probe(rounds=3, distillation=kind, temperature=temperature, **options)
    step = [s for s in module.steps if s["round"] == 2][-1]
    z, y, own, rows = step["z"], step["y"], step["prototypes"], step["rows"]
    points, counts = step["download"]["prototypes"], step["download"]["counts"]
    mu = 1 - 2 / 3
    total = step["num_samples"] + counts.sum()
    gid = hpc = dcl = 0.0
    samples = [(z[i], int(y[i]), None, step["num_samples"] / len(z)) for i in range(len(z))]
    samples += [(points[c, m], c, m, counts[c, m]) for c in range(C) for m in range(M)]
    for x, c, m, importance in samples:
        t = int(F.cosine_similarity(x[None], points[c]).argmax()) if m is None else m
        hpc += importance / total * contrast(x, c, t, own, points.ne(0).any(-1))
        logits, teacher = ((x @ w.T).view(C, M).sum(1)[None] for w in (rows, module.teacher))
        dcl += importance / total * F.cross_entropy(logits, torch.tensor([c]))
        student, teacher = logits / temperature, teacher / temperature
        if kind == "plain":
            divergence = (teacher.softmax(1) * (teacher.log_softmax(1) - student.log_softmax(1))).sum()
        else:
            divergence = decoupled_distillation(student, teacher, torch.tensor([c]), 1.5)[0]
        gid += importance / total * temperature**2 * divergence
    assert step["task"] == pytest.approx(float(mu * dcl), rel=1e-4)
    assert step["terms"]["hpc"] == pytest.approx(float((1 - mu) * hpc), rel=1e-4)
    assert step["terms"]["gid"] == pytest.approx(float(0.3 * gid), rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("unseen", ["keep", "zero"])
def test_the_first_round_contrasts_samples_with_their_cluster(unseen):
    # no global prototypes yet: samples alone, each with the k-means cluster that is nearest; absent classes are masked,
    # or have prototypes at 0, whose cosine with everything is 0
    module, _ = probe(rounds=1, mu=0.25, alpha=0.2, tau=0.7, unseen=unseen)
    step = module.steps[0]
    own, losses = step["prototypes"], []
    for x, c in zip(step["z"], step["y"].tolist(), strict=True):
        distances = (own[c] - x).norm(dim=1).where(own[c].ne(0).any(1), torch.tensor(math.inf))
        present = own.ne(0).any(-1) if unseen == "keep" else torch.ones(C, M, dtype=torch.bool)
        losses.append(contrast(x, c, int(distances.argmin()), own, present))
    assert not own.ne(0).any(-1).all()
    assert step["terms"]["hpc"] == pytest.approx(0.75 * float(torch.stack(losses).mean()), rel=1e-4)


def test_batch_prototypes_go_through_the_global_classifier():
    module, _ = probe(rounds=2, gamma=0.6)
    step = [s for s in module.steps if s["round"] == 1][-1]
    losses = []
    for c in step["y"].unique():
        mean = step["z"][step["y"] == c].mean(0)
        logits = (module.teacher @ mean).view(C, M).sum(1)
        losses.append(F.cross_entropy(logits[None], c[None]))
    assert step["terms"]["bpr"] == pytest.approx(0.6 * float(torch.stack(losses).mean()), rel=1e-4)


def test_logged_terms_sum_to_the_loss():
    _, rounds = probe(rounds=2)
    for r in rounds:
        parts = [r[f"round/{n}"] for n in ("task", "hpc", "bpr", "gid")]
        assert r["round/loss"] == pytest.approx(sum(parts), rel=1e-6)
    assert rounds[0]["round/hpc"] == 0  # mu_0 = 1: the first round has no contrast


class Gradients(FedCD):
    def regularization(self, batch):
        terms = super().regularization(batch)
        named = self.trainable()
        if self.round_index == 1:
            self.reached = {}
            for name, term in terms.items():
                found = torch.autograd.grad(term, list(named.values()), retain_graph=True, allow_unused=True)
                self.reached[name] = {n for n, g in zip(named, found, strict=True) if g is not None and g.any()}
        return terms


def test_each_loss_trains_what_it_should():
    module, _ = run(Gradients, 2, M=M, projection=D)
    rows, features = "net.head.fine.weight", "net.projection.0.weight"
    assert rows not in module.reached["bpr"]
    assert "prototypes" not in module.reached["bpr"]
    assert rows not in module.reached["hpc"]
    assert {"prototypes", features} <= module.reached["hpc"]
    assert "prototypes" not in module.reached["gid"]
    assert rows in module.reached["gid"]
    assert features in module.reached["bpr"]


def test_server_pools_prototypes_by_samples():
    module, _ = probe(rounds=3)
    last = module.uploads[-3:]
    own, counts = (torch.stack([u[n] for u in last]) for n in ("prototypes", "counts"))
    expected = (own * counts[..., None]).sum(0) / counts.sum(0)[..., None]
    seen = counts.sum(0) > 0
    torch.testing.assert_close(module.server_state.prototypes[seen], expected[seen])
    assert torch.equal(module.server_state.counts, counts.sum(0))
    assert counts.sum() == 36  # every sample of the three clients is in one fine class


ROWS, BIAS = "net.head.fine.weight", "net.head.fine.bias"


class Server(FedCD):
    """Keep what the last aggregation saw."""

    def aggregate(self, uploads):
        self.before = self.server_state.prototypes.double()
        self.sent = [torch.stack(list(uploads[n].values())).double() for n in ("prototypes", "counts")]
        heads = list(uploads["weights.classifier"].values())
        self.rows = torch.stack([w[ROWS] for w in heads]).double()
        self.bias = torch.stack([w[BIAS] for w in heads]).double() if BIAS in heads[0] else None
        super().aggregate(uploads)


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_server_matches_first_clusters_then_pools_prototypes_then_rows(rounds):
    module, _ = run(Server, rounds, M=3, projection=D, federation=Federation(local_epochs=30))
    own, counts = module.sent
    if rounds == 1:
        own, counts = align_prototypes(own, counts, "hungarian", torch.Generator())
        assert not torch.equal(own, module.sent[0])
        assert not torch.equal(counts.sum(0), module.sent[1].sum(0))
    pooled = pool_prototypes(own, counts, module.before)
    torch.testing.assert_close(module.server_state.prototypes, pooled.float())
    assert torch.equal(module.server_state.counts, counts.sum(0).float())
    share = adaptive_row_weights(module.rows, pooled.flatten(0, 1))
    assert (share - 1 / 3).abs().max() > 1e-3  # what old prototypes, or none, would not give
    torch.testing.assert_close(module.global_weights[ROWS], torch.einsum("kj,kjd->jd", share, module.rows).float())


@pytest.mark.parametrize("rounds", [1, 2])
def test_rows_are_averaged_by_samples_of_the_fine_class(rounds):
    federation = Federation(local_epochs=30)
    module, _ = run(Server, rounds, M=3, projection=D, classifier="counts", federation=federation)
    own, counts = module.sent
    if rounds == 1:  # in the order of the pooled prototypes
        counts = align_prototypes(own, counts, "hungarian", torch.Generator())[1]
        assert not torch.equal(counts, module.sent[1])
    share = (counts / counts.sum(0)).nan_to_num(1 / 3).flatten(1)  # equally where nobody has a sample
    expected = torch.einsum("kj,kjd->jd", share, module.rows).float()
    torch.testing.assert_close(module.global_weights[ROWS], expected)


def test_the_bias_takes_part_in_the_quality_of_a_row():
    module, _ = run(Server, 2, M=M, projection=D, bias=True, federation=Federation(local_epochs=30))
    points = module.server_state.prototypes.flatten(0, 1).double()
    share, without = (adaptive_row_weights(module.rows, points, bias) for bias in (module.bias, None))
    assert (share - without).abs().max() > 1e-3
    torch.testing.assert_close(module.global_weights[BIAS], (share * module.bias).sum(0).float())


@pytest.mark.parametrize("unseen", ["keep", "zero"])
def test_prototypes_of_a_class_that_the_cohort_lacks(unseen):
    # one client per round, and every client lacks one class
    federation = Federation(local_epochs=1, participation=1)
    module, _ = run(Server, 4, M=M, projection=D, federation=federation, unseen=unseen)
    absent = module.sent[1].sum(dim=(0, 2)) == 0
    assert absent.sum() == 1
    assert module.before[absent].any()
    expected = module.before.float() if unseen == "keep" else torch.zeros_like(module.server_state.prototypes)
    assert torch.equal(module.server_state.prototypes[absent], expected[absent])


@pytest.mark.parametrize("alignment", ["hungarian", "kmeans"])
def test_a_class_that_the_first_cohort_lacks_begins_when_somebody_has_it(alignment):
    # one client per round: whoever comes first lacks a class
    unset = []
    for rounds in (1, 4):
        federation = Federation(local_epochs=1, participation=1)
        module, _ = run(FedCD, rounds, M=M, projection=D, federation=federation, alignment=alignment)
        unset.append(int(unset_classes(module.server_state.prototypes).sum()))
    assert unset == [1, 0]


def test_prototypes_at_zero_are_not_thrown_far_away():
    # the slope of x / |x| at 0 is 1 / 0: unseen prototypes are 0 and not masked
    federation = Federation(local_epochs=1, participation=1)
    module, _ = run(Probe, 4, M=M, projection=D, federation=federation, unseen="zero", mu=0.5)
    assert all(u["prototypes"].abs().max() < 10 for u in module.uploads)


class Counted(FedCD):
    """Count the fine classes of a client before and after its local steps."""

    def on_client_start(self, download):
        super().on_client_start(download)
        self.points = download.get("prototypes")
        self.counted = {"start": self.count()}

    def on_client_end(self):
        upload = super().on_client_end()
        self.counted |= {"end": self.count()}
        if self.points is not None:
            self.found = [*getattr(self, "found", []), (upload["counts"], self.counted)]
        return upload

    def count(self):
        if self.points is None:
            return None
        z, y = self._features()
        return cluster_means(z, y, assign(z, y, self.points), self.points.shape)[1]


@pytest.mark.parametrize("when", ["start", "end"])
def test_counts_are_taken_when_they_should_be(when):
    module, _ = run(Counted, 3, M=M, projection=D, counts_at=when, federation=Federation(local_epochs=10))
    assert any(not torch.equal(c["start"], c["end"]) for _, c in module.found)
    assert all(torch.equal(counts, c[when]) for counts, c in module.found)


@pytest.mark.parametrize(("slots", "counts"), [("mask", [1, 0]), ("duplicate", [1, 1])])
def test_a_class_with_fewer_samples_than_prototypes(slots, counts):
    module, _ = run(Server, 1, data=make_data(per_class=1, batch_size=2), M=M, projection=D, missing_slots=slots)
    own, numbers = module.sent
    assert numbers[0, 0].tolist() == counts  # client 0 has one sample of class 0
    assert torch.equal(own[0, 0, 1], own[0, 0, 0] if slots == "duplicate" else torch.zeros(D).double())


def test_prototypes_drawn_like_samples_come_as_often_as_one():
    counts = torch.tensor([[3.0, 1.0], [0.0, 4.0]])
    data = RebalancedSet(torch.ones(2, 2, D), counts, num_samples=20, generator=torch.Generator().manual_seed(0))
    drawn = torch.zeros(4)
    for _ in range(2000):
        data.weigh(batch_size=5)
        assert float(data.share + data.weights.sum()) == pytest.approx(1)
        assert data.importance(5).sum().item() == pytest.approx(1)
        drawn += data.weights > 0
    # each with probability 5 / 20; that without samples weighs nothing
    assert (drawn / 2000).tolist() == pytest.approx([0.25, 0.25, 0, 0.25], abs=0.04)


def test_a_batch_with_a_drawn_prototype_is_weighed_by_its_size():
    # 5 of 20 samples, and now and then a prototype that counts 3: 5 / 8 of the loss are the samples'
    generator = torch.Generator().manual_seed(0)
    data = RebalancedSet(torch.ones(1, 1, D), torch.tensor([[3.0]]), num_samples=20, generator=generator)
    shares = set()
    for _ in range(50):
        data.weigh(batch_size=5)
        shares.add(float(data.share))
    assert shares == {1.0, 0.625}


@pytest.mark.parametrize(("rebalance", "are_drawn"), [("append", False), ("dataset", True)])
def test_prototypes_are_in_every_batch_or_drawn_into_some(rebalance, are_drawn):
    class Weighed(Probe):
        def regularization(self, batch):
            if self._rebalanced is not None:
                own = self._rebalanced.weights[self._rebalanced.counts > 0]
                self.found = [*getattr(self, "found", []), *(own > 0).tolist()]
            return super().regularization(batch)

    module, _ = run(Weighed, 2, M=M, projection=D, rebalance=rebalance)
    assert any(module.found)
    assert all(module.found) != are_drawn


def test_counts_of_an_absent_class_are_zero():
    module, _ = probe(rounds=2, federation=Federation(local_epochs=1, seed=3))
    for upload in module.uploads:
        assert (upload["counts"].sum(1) == 0).sum() == 1
    assert finite(module)


def test_bytes_are_those_of_prototypes_and_counts():
    _, rounds = probe(rounds=2)
    extra = 3 * 4 * (C * M * D + C * M)
    assert [r["round/extra_bytes_up"] for r in rounds] == [extra, extra]
    assert [r["round/extra_bytes_down"] for r in rounds] == [0, extra]
    weights = make_module(FedCD, M=M, projection=D).state_dict()
    sent = sum(w.numel() for n, w in weights.items() if n != "prototypes")
    assert rounds[1]["round/bytes_up"] == extra + 3 * 4 * sent


def test_new_rows_are_between_those_of_the_clients():
    class Rows(Probe):
        def aggregate(self, uploads):
            self.clients = torch.stack([w["net.head.fine.weight"] for w in uploads["weights.classifier"].values()])
            super().aggregate(uploads)

    module, _ = run(Rows, 2, M=M, projection=D)
    new = module.global_weights["net.head.fine.weight"]
    assert (new >= module.clients.min(0).values - 1e-6).all()
    assert (new <= module.clients.max(0).values + 1e-6).all()


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_prototypes_do_not_decay(kind):
    # no contrast at mu = 1: the gradient is 0, and weight decay alone would shrink them
    class Decay(Probe):
        def configure_optimizers(self):
            return getattr(torch.optim, kind)(self.parameters(), lr=0.1, weight_decay=0.3)

    module, _ = run(Decay, 2, M=M, projection=D, mu=1.0)
    second = [s for s in module.steps if s["round"] == 1]
    torch.testing.assert_close(second[-1]["prototypes"], second[0]["prototypes"])


def test_prototypes_outside_of_the_optimizer_stay_as_they_are():
    class Frozen(Probe):
        def configure_optimizers(self):
            return torch.optim.AdamW(self.net.parameters(), lr=0.1, weight_decay=0.5)

    module, _ = run(Frozen, 2, M=M, projection=D)
    second = [s for s in module.steps if s["round"] == 1]
    assert torch.equal(second[-1]["prototypes"], second[0]["prototypes"])


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])  # the second moves as far with twice the gradient
def test_prototypes_follow_their_rate(kind):
    class Stepped(Probe):
        def configure_optimizers(self):
            return getattr(torch.optim, kind)(self.parameters(), lr=0.01)

    moved = []
    for rate in (1.0, 2.0):
        one, _ = run(Stepped, 2, M=M, projection=D, mu=0.5, prototype_lr=rate, federation=Federation(local_steps=1))
        moved.append(one.uploads[-1]["prototypes"] - one.steps[-1]["prototypes"])
    torch.testing.assert_close(moved[1], 2 * moved[0], atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("name", ABLATIONS)
def test_ablations_run_and_change_the_result(name):
    whole, _ = run(FedCD, 3, M=M, projection=D)
    module, _ = run(FedCD, 3, **{"M": M, "projection": D, **ABLATIONS[name]})
    assert finite(module)
    assert not torch.equal(module.net.head.fine.weight, whole.net.head.fine.weight)


@pytest.mark.parametrize(
    "option",
    [
        {"readout": "prob_sum"},
        {"readout": "logit_mean"},
        {"rebalance": "dataset"},
        {"alignment": "index"},
        {"alignment": "kmeans"},
        {"missing_slots": "duplicate"},
        {"unseen": "zero"},
        {"counts_at": "end"},
        {"temperature": 4.0},
        {"first_round": 1},
        {"bias": True},
        {"bias": True, "classifier": "counts"},
        {"M": 1},
        {"hpc": False, "counts_at": "end"},
    ],
    ids=str,
)
def test_every_decision_runs_with_partial_participation(option):
    federation = Federation(local_epochs=1, participation=2)
    module, rounds = run(FedCD, 3, federation=federation, **{"M": M, "projection": D, **option})
    assert finite(module)
    assert all(math.isfinite(r["round/loss"]) for r in rounds)


def test_first_round_one_ends_without_the_task():
    _, rounds = probe(rounds=2, first_round=1)
    assert rounds[1]["round/task"] == 0
    assert rounds[0]["round/hpc"] > 0


def test_means_of_features_without_contrast_are_those_of_the_trained_model():
    module, _ = probe(rounds=2, hpc=False)
    assert "hpc" not in module.steps[-1]["terms"]
    assert all((u["prototypes"][u["counts"] == 0] == 0).all() for u in module.uploads)
    assert not module.prototypes.requires_grad


def test_means_that_are_sent_are_those_of_the_fine_classes():
    class Means(FedCD):
        def on_client_start(self, download):
            super().on_client_start(download)
            self.points = download.get("prototypes")

        def on_client_end(self):
            upload = super().on_client_end()
            if self.points is not None:
                z, y = self._features()
                means, _ = cluster_means(z, y, assign(z, y, self.points), self.points.shape)
                self.pairs = [*getattr(self, "pairs", []), (upload["prototypes"], means)]
            return upload

    module, _ = run(Means, 2, M=M, projection=D, hpc=False)
    assert len(module.pairs) == 3
    for sent, means in module.pairs:
        torch.testing.assert_close(sent, means)


def test_prototypes_drawn_by_the_size_of_a_part_of_a_batch_are_refused():
    class Sharded(FedCD):
        def on_federation_start(self):
            self.federated_data.batch_shard = (0, 2)
            super().on_federation_start()

    with pytest.raises(
        ConfigurationError, match=r"`rebalance='dataset'` draws .* under `ddp` .*: set `rebalance: append`"
    ):
        run(Sharded, 1, M=M, projection=D, rebalance="dataset")


def test_fewer_samples_than_prototypes():
    module, _ = run(FedCD, 3, data=make_data(per_class=[1, 2, 1], batch_size=2), M=3, projection=D)
    assert finite(module)
    assert module.server_state.counts.sum() == 8


def test_one_client():
    module, _ = run(FedCD, 3, data=make_data(classes=((0, 1, 2),)), M=M, projection=D)
    assert finite(module)


def test_batch_norm_net_and_plain_linear_head():
    module, _ = run(FedCD, 3, net=BatchNormNet, projection=None)
    assert finite(module)
    assert (module.net.fc1[1].running_var > 0).all()


def test_a_class_that_no_client_has_stays_unset():
    data = make_data(classes=((0, 1), (1, 0)), num_classes=3)
    module, _ = run(FedCD, 3, data=data, M=M, projection=D)
    assert not module.server_state.prototypes[2].any()
    assert finite(module)


@pytest.mark.parametrize("option", [{}, {"rebalance": "dataset", "hpc": False}])
def test_resume_is_bit_identical(tmp_path, option):
    assert_resumes(FedCD, tmp_path, M=M, projection=D, **option)


def test_state_does_not_alias_live_prototypes():
    module, _ = run(FedCD, 2, M=M, projection=D)
    assert module.server_state.prototypes.data_ptr() != module.prototypes.data_ptr()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"alpha": 1.5}, "`alpha=1.5` must lie between 0 and 1"),
        ({"mu": -1.0}, "`mu=-1.0` must lie between 0 and 1"),
        ({"tau": 0.0}, "`tau=0.0` must lie between"),
        ({"M": 0}, "`M=0` must lie between 1"),
        ({"lambda_": -1.0}, "`lambda_=-1.0` must lie between 0"),
        ({"classifier": "mean"}, "`classifier='mean'` must be one of `adaptive`"),
        ({"readout": "max"}, "`readout='max'` must be one of"),
        ({"first_round": 2}, "`first_round=2` must be one of"),
    ],
)
def test_refusals(option, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(FedCD, **option)
