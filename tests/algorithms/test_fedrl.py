import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from flightning.algorithms import FedAvg, FedRL, FedRLMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import ConfigurationError
from flightning.functional.layers import block_names
from flightning.nets import LogisticRegression, McMahanCNN, Net, SimpleCNN
from tests.classification import BatchNormNet, assert_resumes, assert_same, make_data, make_module, run, small_net
from tests.problems import fit


class OneWeight(LightningModule):
    """Loss h/2 (w - b)^2 where w is the output of a layer on the input 1."""

    def __init__(self, lr=0.02):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 1, bias=False, dtype=torch.float64))
        nn.init.zeros_(self.net[0].weight)
        self.lr = lr

    def training_step(self, batch, batch_idx):
        h, b = batch[0].unbind(1)
        return (h / 2 * (self.net(torch.ones_like(h)[:, None])[:, 0] - b) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class FedRLOneWeight(FedRLMixin, OneWeight): ...


class Probe(FedRL):
    """Keep the term of each step and which parameters its gradient reaches."""

    def on_federation_start(self):
        super().on_federation_start()
        self.seen = []

    def regularization(self, batch):
        before = dict(self.client.counts)
        terms = super().regularization(batch)
        target = next(n.removeprefix("visits_") for n, c in self.client.counts.items() if c != before[n])
        term = terms.get("review")
        grads = {}
        if term is not None:
            named = self.trainable()
            found = torch.autograd.grad(term, list(named.values()), retain_graph=True, allow_unused=True)
            grads = {n: g for n, g in zip(named, found, strict=True) if g is not None}
        self.seen.append((target, None if term is None else term.item(), grads))
        return terms


def one_client(**kwargs):
    return make_data(classes=((0, 1, 2),), per_class=8, batch_size=4, **kwargs)


def targets(module):
    return [target for target, _, _ in module.seen]


def test_squared_distance_of_one_layer_matches_closed_form_of_fedprox():
    # input 1, squared distance averaged over samples: mu/2 (w - w_t)^2, whose local steps are derived in test_fedprox
    h, b, eta, w, mu, k = (1, 3, 10), (-1, 0.5, 2), 0.02, 0.0, 2.0, 5
    for _ in range(2):
        w += sum(-(1 - (1 - eta * (hi + mu)) ** k) * hi * (w - bi) / (hi + mu) for hi, bi in zip(h, b, strict=True)) / 3
    module = FedRLOneWeight(mu=mu, blocks=["0"], p=2, reduction="sample_mean")
    fit(module, Quadratic(), 2, Federation(local_steps=k))
    assert module.net[0].weight.item() == pytest.approx(w, rel=1e-9)


def test_norm_pulls_with_constant_strength():
    # one sample: mu/2 |w - w_t| pulls by mu/2 toward w_t, by 0 in the first step
    eta, mu, k = 0.02, 0.3, 4
    new = []
    for h, b in ((1, -1), (3, 0.5), (10, 2)):
        w = 0.0
        for _ in range(k):
            w -= eta * (h * (w - b) + mu / 2 * ((w > 0) - (w < 0)))
        new.append(w)
    module = FedRLOneWeight(mu=mu, blocks=["0"])
    fit(module, Quadratic(), 1, Federation(local_steps=k))
    assert module.net[0].weight.item() == pytest.approx(sum(new) / 3, rel=1e-12)


def test_mu_zero_is_fedavg_bit_for_bit():
    assert_same(run(FedRL, mu=0.0)[0], run(FedAvg)[0])


def test_first_batch_of_a_round_contributes_nothing():
    federation = Federation(local_steps=1)
    assert_same(run(FedRL, mu=1.0, federation=federation)[0], run(FedAvg, federation=Federation(local_steps=1))[0])


def test_later_batches_contribute():
    module, _ = run(Probe, 1, one_client(), Federation(local_steps=4), mu=1.0)
    assert [term > 0 for _, term, _ in module.seen] == [False, True, True, True]


def test_m_counts_batches_across_epochs_and_starts_anew_in_each_round():
    # 24 samples in batches of 4: six steps an epoch, M = 3 does not divide the 2 x 5 steps
    data = make_data(classes=((0, 1, 2),), per_class=7, batch_size=4, drop_last=True)
    module, _ = run(Probe, 2, data, Federation(local_epochs=2), net=lambda *a: small_net(*a, hidden=(5, 5)))
    assert targets(module) == (["fc1", "fc2", "head"] * 4)[:10] * 2


def test_epoch_advances_with_passes_over_the_data():
    module, _ = run(Probe, 2, one_client(), Federation(local_epochs=3), advance="epoch")
    assert targets(module) == (["fc1"] * 6 + ["head"] * 6 + ["fc1"] * 6) * 2


def test_round_advances_with_rounds():
    module, _ = run(Probe, 3, one_client(), Federation(local_epochs=1), advance="round")
    assert targets(module) == ["fc1"] * 6 + ["head"] * 6 + ["fc1"] * 6


def test_exclusive_origin_begins_with_the_input_and_never_reaches_the_logits():
    module, rounds = run(Probe, 1, one_client(), Federation(local_epochs=1), origin="exclusive")
    assert targets(module) == ["input", "fc1"] * 3
    assert [term for _, term, _ in module.seen[::2]] == [None] * 3
    assert rounds[0]["round/visits_input"] == 3


def test_gradient_reaches_only_blocks_up_to_m():
    module, _ = run(Probe, 1, one_client(), net=lambda *a: small_net(*a, hidden=(5, 5)), mu=1.0)
    reached = {target: {name.split(".")[1] for name in grads} for target, _, grads in module.seen}
    assert reached == {"fc1": {"fc1"}, "fc2": {"fc1", "fc2"}, "head": {"fc1", "fc2", "head"}}


def test_doubling_mu_doubles_the_gradient():
    # the term is 0 in the first step, so both runs are at the same point in the second
    (_, once, g), (_, twice, gg) = (
        run(Probe, 1, one_client(), Federation(local_steps=2), mu=mu)[0].seen[1] for mu in (0.5, 1.0)
    )
    assert twice == pytest.approx(2 * once, rel=1e-6)
    for name in g:
        torch.testing.assert_close(gg[name], 2 * g[name])


def test_single_block_matches_logits():
    class Logits(FedRL):
        def regularization(self, batch):
            terms = super().regularization(batch)
            mine, theirs = self.net(batch[0]), batch[0] @ self.global_weights["net.head.weight"].T
            distance = torch.linalg.vector_norm(mine - theirs - self.global_weights["net.head.bias"])
            torch.testing.assert_close(terms["review"], 0.35 * distance)
            return terms

    run(Logits, 1, one_client(), net=LogisticRegression, mu=0.7)


def test_teacher_in_evaluation_mode_differs_under_batch_norm_from_the_first_batch_on():
    module, _ = run(Probe, 1, one_client(), Federation(local_steps=1), net=BatchNormNet, mu=1.0)
    assert module.seen[0][1] > 0


def test_teacher_in_training_mode_agrees_in_the_first_batch_and_keeps_its_statistics():
    module = make_module(Probe, net=BatchNormNet, mu=1.0, teacher="train_frozen_stats", advance="round")
    kept = []
    module.on_client_end = lambda: (kept.append(module.global_weights["net.fc1.1.running_mean"].clone()), {})[1]
    run(module, 1, one_client(), Federation(local_steps=2))
    assert module.seen[0][1] == pytest.approx(0.0, abs=1e-6)
    assert torch.equal(kept[0], torch.zeros(5))


def test_visits_of_every_block_are_logged():
    # three clients with 12 samples, 3 batches x 2 epochs each: fc1, head, fc1, ... = 3 + 3 visits
    _, rounds = run(FedRL, 2)
    assert [(r["round/visits_fc1"], r["round/visits_head"]) for r in rounds] == [(9, 9), (9, 9)]
    assert rounds[1]["round/review"] > 0


def test_nothing_extra_is_sent():
    _, rounds = run(FedRL, 2)
    assert [(r["round/extra_bytes_up"], r["round/extra_bytes_down"]) for r in rounds] == [(0, 0)] * 2


def test_resumes_in_the_middle(tmp_path):
    assert_resumes(FedRL, tmp_path, advance="round", mu=0.5)


@pytest.mark.parametrize(
    ("net", "blocks", "names"),
    [
        (McMahanCNN((1, 28, 28), 10), "param_blocks", ["conv1", "conv2", "fc1", "head"]),
        (SimpleCNN((3, 32, 32), 10), "param_blocks", ["conv1", "conv2", "fc1", "fc2", "head"]),
        (McMahanCNN((1, 28, 28), 10), "modules", ["conv1.0", "conv1.1", "conv2.0", "conv2.1", "fc1.1", "head"]),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), ["1", "0"], ["1", "0"]),
    ],
)
def test_what_counts_as_a_layer(net, blocks, names):
    assert block_names(net, blocks) == names


class Plain(LightningModule):
    """A module whose layers are its own."""

    def __init__(self, inplace=False):
        super().__init__()
        self.body, self.act, self.out = nn.Linear(4, 5), nn.ReLU(inplace=inplace), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.act(self.body(x)))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class FedRLPlain(FedRLMixin, Plain): ...


def test_any_module_with_named_blocks():
    _, rounds = run(FedRLPlain(blocks=["act", "out"]), 1)
    assert rounds[0]["round/visits_act"] == 9
    assert rounds[0]["round/review"] > 0


def test_module_that_does_not_tell_its_blocks_is_refused():
    with pytest.raises(ConfigurationError, match=r"`FedRLPlain` does not tell its `blocks`: name its layers in order"):
        run(FedRLPlain(), 1)


def test_overwritten_output_is_refused():
    with pytest.raises(ConfigurationError, match=r"output of layer `body` was overwritten .* set `inplace=False`"):
        run(FedRLPlain(blocks=["body"], inplace=True), 1)


def test_unknown_block_is_refused():
    with pytest.raises(ConfigurationError, match=r"no layer `bodyy`. Did you mean `body`"):
        run(FedRLPlain(blocks=["bodyy"]), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu": -1}, r"`mu=-1` must be at least 0: use 0 for plain FedAvg"),
        ({"advance": "step"}, r"`advance='step'` must be one of `batch`, `epoch`, `round`"),
        ({"p": 3}, r"`p=3` must be one of `1`, `2`"),
        ({"reduction": "mse"}, r"`reduction='mse'` is a mean of squares, but `p=1` asks for a norm: set `p: 2`"),
        ({"blocks": "layers"}, r"`blocks='layers'` must be one of `param_blocks`, `modules`"),
        ({"teacher": "train"}, r"`teacher='train'` must be one of `eval`, `train_frozen_stats`"),
        ({"origin": "one"}, r"`origin='one'` must be one of `inclusive`, `exclusive`"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_module(FedRL, **options)


def test_a_layer_that_a_pass_calls_twice_is_refused():
    class Repeating(Net):
        def __init__(self, input_shape, num_classes):
            super().__init__(input_shape, num_classes)
            self.fc1 = nn.Linear(input_shape[0], input_shape[0])
            self.head = nn.Linear(input_shape[0], num_classes)

        def forward(self, inputs):
            return self.head(torch.relu(self.fc1(torch.relu(self.fc1(inputs)))))

    with pytest.raises(ConfigurationError, match=r"layer `net.fc1` was called 2 times in 1 forward passes"):
        run(FedRL, 1, net=Repeating)
