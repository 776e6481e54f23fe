"""What the contract promises to an algorithm, and what it refuses."""

import copy

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import nn
from torchmetrics.aggregation import MeanMetric

from flightning.algorithms import FedAvg, FedAvgMixin, FederatedMixin, FedProxMixin
from flightning.algorithms.composition import ATTRIBUTES
from flightning.callbacks import Federation
from flightning.classifier import Classifier
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import CompositionError, ConfigurationError
from tests.classification import BatchNormNet, RoundMemory, make_data, make_module, run, weights_of
from tests.problems import QuadraticModule, fit

# --- composition ------------------------------------------------------------------------------------------------------


def test_a_mixin_after_the_module_is_refused():
    match = (
        r"`Wrong` puts `QuadraticModule` before the mixin .*: write the mixins first, `class Wrong\(FedProxMixin, Qu"
    )
    with pytest.raises(CompositionError, match=match):
        type("Wrong", (QuadraticModule, FedProxMixin), {})


def test_a_mixin_behind_a_ready_made_class_still_comes_before_the_module():
    other = type("Other", (FederatedMixin,), {})
    order = type("Both", (FedAvg, other), {}).__mro__
    assert order.index(other) < order.index(Classifier)


def test_a_module_without_training_step_behind_the_mixin_is_refused():
    class AllInOne(FedProxMixin, pl.LightningModule):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            return self.layer(batch).sum()

    match = r"`AllInOne` has no module with a `training_step` behind .*`class AllInOne\(FedProxMixin, Model\)`"
    with pytest.raises(CompositionError, match=match):
        AllInOne()


def test_overriding_the_step_of_a_module_behind_is_allowed():
    class Tuned(FedAvg):
        def training_step(self, batch, batch_idx):
            return 2 * super().training_step(batch, batch_idx)

    assert isinstance(make_module(Tuned), FedAvg)


class Owner(FederatedMixin):
    owns = frozenset({"drift correction"})


class Rival(FederatedMixin):
    owns = frozenset({"drift correction"})


def test_two_owners_of_one_power_are_refused():
    with pytest.raises(CompositionError, match="cannot combine `Owner` and `Rival`: both own the drift correction"):
        type("Both", (Owner, Rival, BoringModel), {})


def test_a_child_of_an_owner_is_no_rival_of_its_parent():
    class Child(Owner):
        pass

    assert type("Fine", (Child, BoringModel), {})


class Pull(FederatedMixin):
    def __init__(self, mu=0.5, **kwargs):
        super().__init__(**kwargs)
        self.mu = mu


def test_one_argument_of_two_mixins_is_refused_unless_the_class_takes_it():
    with pytest.raises(
        CompositionError, match="`Both` combines `Pull` and `FedProxMixin`, which both have an argument `mu`: one value"
    ):
        type("Both", (Pull, FedProxMixin, BoringModel), {})

    class Shared(Pull, FedProxMixin, BoringModel):
        def __init__(self, mu, **kwargs):
            super().__init__(mu=mu, **kwargs)

    assert Shared(mu=0.25).mu == 0.25


def test_an_argument_that_a_child_takes_in_place_of_its_parent_is_no_conflict():
    child = type("Child", (Pull,), {"__init__": lambda self, mu=1.0, **kwargs: Pull.__init__(self, mu, **kwargs)})
    assert type("Fine", (child, BoringModel), {})().mu == 1.0


def test_different_reductions_of_one_upload_are_refused():
    first = type("First", (FederatedMixin,), {"reductions": {"h": "sum"}})
    second = type("Second", (FederatedMixin,), {"reductions": {"h": "mean"}})
    with pytest.raises(CompositionError, match="reduce the upload `h` by different rules"):
        type("Both", (first, second, BoringModel), {})


def test_unknown_reductions_are_refused():
    with pytest.raises(
        CompositionError, match="`Odd` reduces `h` by `median`: choose one of mean, uniform, sum, stack"
    ):
        type("Odd", (FederatedMixin,), {"reductions": {"h": "median"}})


def test_reductions_of_all_mixins_are_merged():
    first = type("First", (FederatedMixin,), {"reductions": {"a": "sum"}})
    second = type("Second", (FederatedMixin,), {"reductions": {"b": "stack"}})
    both = type("Both", (first, second, BoringModel), {})
    assert both.reductions == {"weights": "mean", "a": "sum", "b": "stack"}


def test_the_aggregation_rule_comes_before_mixins_that_use_its_result():
    rule = type("Rule", (FederatedMixin,), {"owns": frozenset({"aggregation rule"}), "aggregate": lambda s, u: None})
    user = type("User", (FederatedMixin,), {"aggregate": lambda s, u: None})
    assert type("Fine", (rule, user, BoringModel), {})
    with pytest.raises(CompositionError, match=r"puts `User` before `Rule`.*write `Rule` first"):
        type("Wrong", (user, rule, BoringModel), {})


@pytest.mark.parametrize("name", ["client", "download", "trainable", "cohort", "server_state"])
def test_layers_with_names_of_the_contract_are_refused(name):
    class Module(QuadraticModule):
        def __init__(self):
            super().__init__()
            setattr(self, name, nn.Linear(1, 1))

    with pytest.raises(CompositionError, match=rf"has a layer or attribute called `{name}`.*`own_{name}`"):
        type("Fed", (FedAvgMixin, Module), {})()


def test_attributes_that_the_mixin_would_overwrite_are_refused():
    class Module(QuadraticModule):
        def __init__(self):
            super().__init__()
            self.num_clients = 7

    with pytest.raises(CompositionError, match="has a layer or attribute called `num_clients`"):
        type("Fed", (FedAvgMixin, Module), {})()


def test_the_attributes_that_are_reserved_are_those_that_are_set():
    plain, federated = Classifier(), make_module(FedAvg)
    own = {n for n in vars(federated) if not n.startswith("_")} - set(vars(plain))
    assert set(ATTRIBUTES) <= own


# --- order of events --------------------------------------------------------------------------------------------------


class Telling(FedAvgMixin):
    """Writes down each hook."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.events = []

    def on_federation_start(self):
        self.events.append("federation")

    def on_round_start(self):
        self.events.append("round start")

    def download(self, client):
        self.events.append(f"download {client}")
        return super().download(client)

    def on_client_start(self, download):
        self.events.append(f"start {self.client.id}")

    def regularization(self, batch):
        self.events.append("step")
        return {}

    def correct_gradients(self):
        self.events.append("correct")

    def on_client_end(self):
        self.events.append(f"end {self.client.id}")
        return super().on_client_end()

    def aggregate(self, uploads):
        self.events.append("aggregate")
        super().aggregate(uploads)

    def after_aggregation(self):
        self.events.append(f"after {self.client.id}")
        return {}

    def collect(self, uploads):
        self.events.append("collect")

    def on_round_end(self):
        self.events.append("round end")


def test_hooks_run_in_the_documented_order():
    module = type("Fed", (Telling, QuadraticModule), {})()
    federation = Federation(local_steps=2)
    fit(module, Quadratic((1.0, 2.0), (0.0, 1.0)), 2, federation)
    (a, b), (c, d) = federation.plan(0).cohort, federation.plan(1).cohort

    def of_client(k):
        return [f"download {k}", f"start {k}", *["step", "correct"] * 2, f"end {k}"]

    second = ["start", "after"]
    first_round = ["round start", *of_client(a), *of_client(b), "aggregate"]
    exchange = [f"{e} {k}" for k in (c, d) for e in second] + ["collect"]
    last_round = ["round start", *of_client(c), *of_client(d), "aggregate", "round end"]
    assert module.events == ["federation", *first_round, *exchange, "round end", *last_round]


def test_gradients_are_corrected_after_clipping():
    class Corrected(FedAvgMixin, QuadraticModule):
        def correct_gradients(self):
            seen.append(self.w.grad.item())
            self.w.grad += 5.0

    seen = []
    module = Corrected()
    fit(module, Quadratic((10.0,), (2.0,)), 1, Federation(local_steps=1), gradient_clip_val=0.1)
    assert seen == pytest.approx([-0.1], rel=1e-5)
    assert module.w.item() == pytest.approx(-0.02 * (5 - 0.1), rel=1e-5)


# --- what an algorithm sees -------------------------------------------------------------------------------------------


def test_the_client_and_its_numbers():
    class Telling(FedAvgMixin, QuadraticModule):
        def on_client_end(self):
            c = self.client
            seen[c.id] = c.num_samples, c.weight, c.steps_per_epoch, c.share, c.steps, c.step_sizes
            assert sorted(self.cohort) == [0, 1, 2]
            assert self.cohort_weights == {0: 1.0, 1: 2.0, 2: 5.0}
            assert (self.num_clients, self.num_rounds, self.round_index) == (3, 1, 0)
            return super().on_client_end()

    seen = {}
    fit(Telling(), Quadratic(copies=[1, 2, 5], batch_size=2), 1, Federation(local_epochs=2))
    assert seen == {
        0: (1, 1.0, 1, 1 / 8, 2, [0.02] * 2),
        1: (2, 2.0, 1, 2 / 8, 2, [0.02] * 2),
        2: (5, 5.0, 3, 5 / 8, 6, [0.02] * 6),
    }


def test_clients_start_at_the_global_weights():
    class Checking(FedAvg):
        def on_client_start(self, download):
            live = weights_of(self)
            assert all(torch.equal(self.global_weights[n], live[n]) for n in live)
            assert all(self.global_weights[n].data_ptr() != p.data_ptr() for n, p in self.trainable().items())

    run(Checking, 2, net=BatchNormNet)


def test_client_batches_are_all_samples_in_stored_order():
    class Reading(FedAvg):
        def on_client_end(self):
            seen[self.client.id] = torch.cat([batch[0] for batch in self.client_batches()])
            return super().on_client_end()

    seen, data = {}, make_data()
    fit(make_module(Reading), data, 1)
    for client, inputs in seen.items():
        assert torch.equal(inputs, data.train_source.inputs[data.parts[client]])


def test_task_losses_leave_no_trace():
    class Measuring(FedAvg):
        def on_client_start(self, download):
            before = weights_of(self)
            losses = [(loss.item(), n) for loss, n in self.task_losses()]
            assert sum(n for _, n in losses) == self.client.num_samples
            after = weights_of(self)
            assert all(torch.equal(before[n], after[n]) for n in before)
            assert self.training

    run(Measuring, 1, net=BatchNormNet)


def test_task_losses_leave_metrics_of_the_module_alone():
    class Metered(Classifier):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.own_metric = MeanMetric()

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.own_metric.update(loss.detach())
            return loss

    class Measuring(FedAvgMixin, Metered):
        def on_client_start(self, download):
            super().on_client_start(download)
            before = self.own_metric.update_count
            for _ in self.task_losses():
                pass
            assert self.own_metric.update_count == before

    module, _ = run(Measuring, 1, federation=Federation(local_steps=1))
    assert module.own_metric.update_count == 3


def test_a_frozen_pass_has_the_statistics_that_were_received():
    # `buffers: reset` sends none: client and teacher begin with mean 0 and variance 1
    class Teaching(FedAvg):
        def on_federation_start(self):
            super().on_federation_start()
            self.watch_layers("net")

        def regularization(self, batch):
            if self.client.steps == 0:
                fresh = copy.deepcopy(self.net).eval()
                fresh.fc1[1].reset_running_stats()
                torch.testing.assert_close(self.frozen_forward(), fresh(batch[0]).detach())
            return super().regularization(batch)

    run(Teaching, 2, net=BatchNormNet, federation=Federation(buffers="reset"))


def test_features_are_the_input_of_the_last_linear():
    class Featured(FedAvg):
        def on_federation_start(self):
            super().on_federation_start()
            self.watch_layers(self.feature_layer, "net")

        def regularization(self, batch):
            own = self.net.features(batch[0])
            assert torch.equal(self.penultimate, own)
            frozen = self.frozen_features()
            assert not frozen.requires_grad
            if self.client.steps == 0:  # still at the global weights
                assert torch.allclose(frozen, own)
            else:
                assert not torch.allclose(frozen, own)
            assert torch.allclose(
                self.frozen_forward(), self.net.head(frozen) if self.client.steps == 0 else self.frozen_forward()
            )
            return {}

    run(Featured, 1)
    assert make_module(FedAvg).feature_size == 5


def test_a_batch_that_is_no_pair_needs_split_batch():
    with pytest.raises(ConfigurationError, match=r"a batch is a `dict`, but `FedAvg` needs inputs and targets: "):
        make_module(FedAvg).split_batch({"x": torch.zeros(1)})


def test_updates_that_enter_the_mean_are_counted():
    class Counting(FedAvg):
        def on_client_end(self):
            upload = super().on_client_end()
            if self.client.id == 0:
                upload["weights"] = {n: w * float("nan") for n, w in upload["weights"].items()}
            return upload

        def aggregate(self, uploads):
            seen.append(self.num_updates)
            super().aggregate(uploads)

    seen = []
    run(Counting, 1)
    assert seen == [2]


def test_setup_bytes_are_logged_once():
    class Costly(FedAvg):
        def on_federation_start(self):
            super().on_federation_start()
            self.setup_bytes += 123

    memory = RoundMemory()
    fit(make_module(Costly), make_data(), 2, logger=memory)
    assert [memory.rounds[r]["round/setup_bytes"] for r in (1, 2)] == [123, 0]


def test_low_precision_weights_are_averaged_in_single_precision():
    module = make_module(FedAvg).to(torch.bfloat16)
    fit(module, make_data(), 1, precision="bf16-true")
    assert {w.dtype for w in module.global_weights.values()} == {torch.float32}


def test_hyperparameters_of_all_classes_are_kept():
    class Prox(FedProxMixin, QuadraticModule):
        pass

    assert dict(Prox(mu=0.3, lr=0.5).hparams) == {"mu": 0.3, "lr": 0.5}
