"""The order of events in a round, and every Trainer feature that must go on working."""

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import Dataset

from flightning.algorithms import SOLO, FedAvg, FedAvgMixin
from flightning.callbacks import Federation, LastCheckpoint, planning
from flightning.datamodules import IID, FederatedDataModule
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import ClientError, ConfigurationError
from flightning.functional.cohort import sample_cohort
from tests.classification import BatchNormNet, RoundMemory, assert_same, make_data, make_module, run, weights_of
from tests.problems import QuadraticModule, fit, fit_quadratic, make_trainer

H, B, LR = (1, 3, 10), (-1, 0.5, 2), 0.02


class FedQuadratic(FedAvgMixin, QuadraticModule):
    pass


def gradient_steps(w, client, steps, lr=LR, momentum=0.0, velocity=0.0):
    for _ in range(steps):
        velocity = momentum * velocity + H[client] * (w - B[client])
        w -= lr * velocity
    return w, velocity


def log_quadratic(rounds=1, federation=None, data=None, module=None, **kwargs):
    memory = RoundMemory()
    module = module or FedQuadratic()
    trainer = fit(module, data or Quadratic(), rounds, federation or Federation(local_steps=2), logger=memory, **kwargs)
    return module, [memory.rounds[r] for r in sorted(memory.rounds) if r], trainer


# --- local work -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [{"local_steps": 6}, {"local_epochs": 3}])
def test_steps_and_epochs_count_the_same_work(local):
    # two batches of one sample per client: 3 passes are 6 steps
    data = Quadratic(copies=[2, 2, 2], batch_size=1)
    expected = np.mean([gradient_steps(0.0, c, 6)[0] for c in range(3)])
    module = fit_quadratic(FedAvgMixin, 1, data=data, federation=Federation(**local))
    assert module.w.item() == pytest.approx(expected, rel=1e-12)


def test_epochs_give_larger_clients_more_steps_and_steps_do_not():
    data = {"copies": [1, 2, 5], "batch_size": 1}
    for local, steps in (({"local_epochs": 2}, (2, 4, 10)), ({"local_steps": 3}, (3, 3, 3))):
        federation = Federation(**local, weighting="uniform")
        expected = np.mean([gradient_steps(0.0, c, k)[0] for c, k in enumerate(steps)])
        module = fit_quadratic(FedAvgMixin, 1, data=Quadratic(**data), federation=federation)
        assert module.w.item() == pytest.approx(expected, rel=1e-12)


def test_one_pass_is_the_default():
    assert Federation().local_epochs == 1


def test_the_optimizer_forgets_between_rounds():
    # with momentum: every client starts every round with velocity 0
    w = 0.0
    for _ in range(2):
        w = np.mean([gradient_steps(w, c, 3, momentum=0.9)[0] for c in range(3)])
    module = fit_quadratic(FedAvgMixin, 2, local_steps=3, module_kwargs={"momentum": 0.9})
    assert module.w.item() == pytest.approx(w, rel=1e-12)


def test_a_persistent_optimizer_keeps_the_velocity_of_each_client():
    w, velocities = 0.0, [0.0] * 3
    for _ in range(3):
        ends = [gradient_steps(w, c, 3, momentum=0.9, velocity=velocities[c]) for c in range(3)]
        w, velocities = np.mean([e[0] for e in ends]), [e[1] for e in ends]
    federation = Federation(local_steps=3, persist_client_optimizer=True)
    module = fit_quadratic(FedAvgMixin, 3, federation=federation, module_kwargs={"momentum": 0.9})
    assert module.w.item() == pytest.approx(w, rel=1e-12)


def test_algorithms_choose_whether_the_optimizer_persists_unless_told():
    # SOLO keeps it: three rounds of 2 steps are 6 steps in a row
    from flightning.algorithms import SOLOMixin

    expected = gradient_steps(0.0, 0, 6, momentum=0.9)[0]
    kept = fit_quadratic(SOLOMixin, 3, local_steps=2, module_kwargs={"momentum": 0.9})
    assert kept.client_states.state_dict()[0]["weights"]["w"].item() == pytest.approx(expected, rel=1e-12)
    federation = Federation(local_steps=2, persist_client_optimizer=False)
    reset = fit_quadratic(SOLOMixin, 3, federation=federation, module_kwargs={"momentum": 0.9})
    w = 0.0
    for _ in range(3):
        w = gradient_steps(w, 0, 2, momentum=0.9)[0]
    assert reset.client_states.state_dict()[0]["weights"]["w"].item() == pytest.approx(w, rel=1e-12)


# --- what is logged ---------------------------------------------------------------------------------------------------


def test_numbers_of_a_round_on_the_quadratic():
    _, (row,), _ = log_quadratic()
    # losses before each of the two steps, from w = 0
    losses = []
    for client in range(3):
        w1 = gradient_steps(0.0, client, 1)[0]
        losses.append(np.mean([H[client] / 2 * (w - B[client]) ** 2 for w in (0.0, w1)]))
    assert row["round/loss"] == row["round/task"] == pytest.approx(np.mean(losses), rel=1e-9)
    assert row["round/loss_std"] == pytest.approx(np.std(losses), rel=1e-9)
    assert row["round/loss_min"] == pytest.approx(min(losses), rel=1e-9)
    assert row["round/loss_max"] == pytest.approx(max(losses), rel=1e-9)
    # one weight in double precision to and from each of three clients
    assert row["round/bytes_up"] == row["round/bytes_down"] == 8 * 3
    assert row["round/extra_bytes_up"] == row["round/extra_bytes_down"] == row["round/setup_bytes"] == 0
    assert row["round/clients"] == 3
    assert row["round/bad_updates"] == 0
    assert row["round/lr"] == LR
    parts = [row[f"round/seconds_{p}"] for p in ("training", "aggregation", "evaluation")]
    assert sum(parts) == pytest.approx(row["round/seconds"], rel=1e-6)


def test_task_loss_and_terms_sum_to_the_optimised_loss():
    from flightning.algorithms import FedProxMixin

    class Prox(FedProxMixin, QuadraticModule):
        def on_before_backward(self, loss):
            self.optimised.append(loss.item())

    module = Prox(mu=2.0)
    module.optimised = []
    _, (row,), _ = log_quadratic(module=module, federation=Federation(local_steps=4))
    assert row["round/prox"] > 0
    assert row["round/task"] + row["round/prox"] == pytest.approx(row["round/loss"], rel=1e-12)
    assert row["round/loss"] == pytest.approx(np.mean(module.optimised), rel=1e-9)


def test_bytes_are_exact_above_what_single_precision_holds():
    # 2^24 + 1 is the first whole number that float32 lacks
    federation = Federation(local_steps=1, serialisation_overhead=2**24 + 1 - 8)
    _, (row,), _ = log_quadratic(federation=federation, data=Quadratic((1.0,), (0.0,)))
    assert row["round/bytes_up"] == 2**24 + 1


def test_partial_participation_counts_only_the_cohort():
    _, rows, _ = log_quadratic(4, Federation(local_steps=1, participation=2))
    assert [r["round/bytes_up"] for r in rows] == [16] * 4
    assert [r["round/clients"] for r in rows] == [2] * 4


def test_rounds_are_counted_from_one():
    _, rows, _ = log_quadratic(3)
    assert [r["round"] for r in rows] == [1, 2, 3]


def test_the_algorithm_logs_numbers_of_its_own_once():
    class Counting(FedAvgMixin, QuadraticModule):
        def on_round_end(self):
            super().on_round_end()
            if self.round_index == 0:
                self.round_metrics["round/answer"] = 42.0

    _, rows, _ = log_quadratic(2, module=Counting())
    assert rows[0]["round/answer"] == 42
    assert "round/answer" not in rows[1]


# --- who trains -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["fixed", "bernoulli", "weighted"])
def test_plans_are_a_function_of_seed_and_round(sampler):
    def cohorts(seed):
        federation = Federation(participation=0.5, sampler=sampler, seed=seed)
        data = make_data(classes=[(0, 1)] * 8)
        fit(make_module(FedAvg), data, 1, federation)
        return [federation.plan(r).cohort for r in range(6)]

    assert cohorts(0) == cohorts(0) != cohorts(1)
    assert len({tuple(c) for c in cohorts(0)}) > 1


def test_cohorts_do_not_depend_on_the_algorithm():
    def cohorts(cls):
        federation = Federation(participation=0.5)
        fit(make_module(cls), make_data(), 1, federation)
        return [federation.plan(r).cohort for r in range(3)]

    from flightning.algorithms import FedProx

    assert cohorts(FedAvg) == cohorts(FedProx)


def test_weighting_by_samples_and_uniform():
    for weighting, weights in (("samples", (1, 2, 5)), ("uniform", (1, 1, 1))):
        federation = Federation(local_steps=2, weighting=weighting)
        module = fit_quadratic(FedAvgMixin, 1, data=Quadratic(copies=[1, 2, 5]), federation=federation)
        ends = [gradient_steps(0.0, c, 2)[0] for c in range(3)]
        assert module.w.item() == pytest.approx(np.average(ends, weights=weights), rel=1e-12)


def test_empty_clients_never_train():
    pairs = [(torch.randn(6, 4), torch.arange(6) % 3) for _ in range(2)]
    pairs.insert(1, (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)))
    data = FederatedDataModule.from_clients(pairs, batch_size=4)
    federation = Federation()
    with pytest.warns(UserWarning, match="1 of 3 clients have no samples and are never sampled"):
        fit(make_module(FedAvg), data, 1, federation)
    assert sorted(federation.plan(0).cohort) == [0, 2]


# --- incomplete batches ---------------------------------------------------------------------------------------------


def plan_steps(data, net=None, **kwargs):
    federation = Federation(**kwargs)
    module = make_module(FedAvg, **({} if net is None else {"net": net}))
    fit(module, data, 1, federation)
    return {v.client: v.steps for v in federation.plan(0).visits}


def test_incomplete_batches_are_trained_on_without_batch_norm():
    assert plan_steps(make_data(per_class=[3, 5, 1], batch_size=4)) == {0: 2, 1: 3, 2: 1}


def test_batch_norm_drops_incomplete_batches_of_clients_with_more_than_one():
    # sizes 6, 10, 2: the last client has less than one batch and keeps it
    data = make_data(per_class=[3, 5, 1], batch_size=4)
    assert plan_steps(data, BatchNormNet) == {0: 1, 1: 2, 2: 1}


def test_drop_last_leaves_small_clients_without_work_and_warns():
    data = make_data(per_class=[3, 5, 1], batch_size=4, drop_last=True)
    with pytest.warns(UserWarning, match="1 clients have fewer samples than `batch_size=4` and `drop_last`"):
        assert plan_steps(data) == {0: 1, 1: 2}


def test_drop_last_false_keeps_every_batch_with_batch_norm():
    data = make_data(per_class=[3, 5, 1], batch_size=4, drop_last=False)
    assert plan_steps(data, BatchNormNet) == {0: 2, 1: 3, 2: 1}


def test_local_steps_go_on_from_pass_to_pass():
    data = make_data(per_class=[3, 5, 1], batch_size=4)
    assert plan_steps(data, local_steps=7) == {0: 7, 1: 7, 2: 7}


# --- buffers ----------------------------------------------------------------------------------------------------------


class Statistics(pl.LightningModule):
    """BatchNorm alone: its statistics are known on paper, and nothing is learned."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1, momentum=0.5)
        self.seen = []

    def training_step(self, batch, batch_idx):
        return self.norm(batch[0]).sum() * 0.0

    def validation_step(self, batch, batch_idx):
        self.seen.append(self.norm.running_mean.item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class FedStatistics(FedAvgMixin, Statistics):
    pass


def fit_statistics(policy, rounds=2, sizes=(2, 6)):
    # client 0 holds values around 1, client 1 values around 4
    pairs = [
        (torch.tensor([c - 1.0, c + 1.0] * (n // 2))[:, None], torch.zeros(n, dtype=torch.long))
        for c, n in zip((1, 4), sizes, strict=True)
    ]
    data = FederatedDataModule.from_clients(pairs, pairs[0], batch_size=2, shuffle=False)
    module = FedStatistics()
    memory = RoundMemory()
    fit(module, data, rounds, Federation(local_epochs=1, buffers=policy), logger=memory)
    return module, memory.rounds


def moved(start, target, steps):
    """Running mean after that many batches: it covers half of the way each time."""
    return target + (start - target) * 0.5**steps


def test_buffers_are_averaged_like_weights():
    module, _ = fit_statistics("average")
    mean = 0.0
    for _ in range(2):  # one batch of client 0 (weight 2), three of client 1 (weight 6)
        mean = (2 * moved(mean, 1, 1) + 6 * moved(mean, 4, 3)) / 8
    assert module.norm.running_mean.item() == pytest.approx(mean, rel=1e-6)
    # the counter of the largest client, never an average: 3 batches, then 3 more
    assert module.norm.num_batches_tracked.item() == 6


def test_local_buffers_stay_with_their_client():
    module, rounds = fit_statistics("local")
    kept = module.client_states.state_dict()
    assert kept[0]["weights"]["norm.running_mean"].item() == pytest.approx(moved(0, 1, 2), rel=1e-6)
    assert kept[1]["weights"]["norm.running_mean"].item() == pytest.approx(moved(0, 4, 6), rel=1e-6)
    assert kept[1]["weights"]["norm.num_batches_tracked"].item() == 6
    assert module.norm.running_mean.item() == 0.0  # the server never saw any
    # both clients are evaluated with their own
    assert module.seen[-2:] == pytest.approx([moved(0, 1, 2), moved(0, 4, 6)], rel=1e-6)
    assert rounds[1]["round/bytes_up"] == 2 * 2 * 4  # weight and bias alone


def test_reset_buffers_start_anew_every_round():
    module, rounds = fit_statistics("reset")
    mean = (2 * moved(0, 1, 1) + 6 * moved(0, 4, 3)) / 8
    assert module.norm.running_mean.item() == pytest.approx(mean, rel=1e-6)
    assert module.norm.num_batches_tracked.item() == 3
    # down: weight and bias; up: also mean and variance (4 bytes) and the counter (8 bytes)
    assert rounds[2]["round/bytes_down"] == 2 * 2 * 4
    assert rounds[2]["round/bytes_up"] == 2 * (4 * 4 + 8)


# --- bad updates ------------------------------------------------------------------------------------------------------


class Exploding(FedAvgMixin, QuadraticModule):
    """Client 1 returns NaN; with ``everybody`` all do."""

    everybody = False

    def on_client_end(self):
        upload = super().on_client_end()
        if self.client.id == 1 or self.everybody:
            upload["weights"]["w"] = upload["weights"]["w"] * float("nan")
        return upload


def test_a_bad_update_is_left_out_and_counted():
    module, rows, _ = log_quadratic(2, module=Exploding())
    w = 0.0
    for _ in range(2):
        w = np.mean([gradient_steps(w, c, 2)[0] for c in (0, 2)])
    assert module.w.item() == pytest.approx(w, rel=1e-12)
    assert [r["round/bad_updates"] for r in rows] == [1, 1]


def test_a_round_without_one_good_update_leaves_the_weights():
    class Hopeless(Exploding):
        everybody = True

    module, rows, _ = log_quadratic(2, module=Hopeless(start=0.7))
    assert module.w.item() == 0.7
    assert [r["round/bad_updates"] for r in rows] == [3, 3]


def test_a_bad_update_can_stop_the_run():
    federation = Federation(local_steps=2, on_bad_update="raise")
    with pytest.raises(
        ClientError, match=r"client 1 failed in `local training` of round 1: .* NaN or infinity; lower the"
    ):
        log_quadratic(2, federation, module=Exploding())


def test_a_client_whose_loss_explodes_is_left_out():
    class Diverging(FedAvgMixin, QuadraticModule):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * float("inf") if self.client.id == 2 else loss

    module, (row,), _ = log_quadratic(module=Diverging())
    assert row["round/bad_updates"] == 1
    assert module.w.item() == pytest.approx(np.mean([gradient_steps(0.0, c, 2)[0] for c in (0, 1)]), rel=1e-12)


def test_a_bad_second_upload_is_left_out():
    class Second(FedAvgMixin, QuadraticModule):
        reductions = {"echo": "sum"}  # noqa: RUF012
        heard = None

        def after_aggregation(self):
            return {"echo": torch.tensor(float("nan") if self.client.id == 1 else 1.0)}

        def collect(self, uploads):
            super().collect(uploads)
            self.heard = float(uploads["echo"])

    module, rows, _ = log_quadratic(2, module=Second())
    assert module.heard == 2.0
    assert rows[0]["round/bad_updates"] == 1


# --- failures of clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["on_client_start", "on_client_end", "regularization"])
def test_a_failing_client_is_named_with_stage_and_round(where):
    class Failing(FedAvgMixin, QuadraticModule):
        def fail(self):
            if self.client.id == 2 and self.round_index == 1:
                raise ZeroDivisionError("boom")

        def on_client_start(self, download):
            if where == "on_client_start":
                self.fail()

        def on_client_end(self):
            if where == "on_client_end":
                self.fail()
            return super().on_client_end()

        def regularization(self, batch):
            if where == "regularization":
                self.fail()
            return {}

    stage = "training_step" if where == "regularization" else where
    match = rf"client 2 failed in `{stage}` of round 2: ZeroDivisionError: boom"
    with pytest.raises(ClientError, match=match) as caught:
        log_quadratic(3, module=Failing())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_users_own_training_step_is_named():
    class Mine(QuadraticModule):
        def training_step(self, batch, batch_idx):
            raise KeyError("label")

    with pytest.raises(ClientError, match=r"client \d failed in `training_step` of round 1: KeyError: 'label'"):
        log_quadratic(module=type("FedMine", (FedAvgMixin, Mine), {})())


def test_a_failing_backward_pass_is_named():
    class Detached(QuadraticModule):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx).detach()

    with pytest.raises(ClientError, match=r"client \d failed in `optimizer_step` of round 1: .*does not require grad"):
        log_quadratic(module=type("FedDetached", (FedAvgMixin, Detached), {})())


class Broken(Dataset):
    """Sample 5 cannot be read."""

    labels = tuple(range(2)) * 4

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            raise OSError("unreadable sample")
        return torch.ones(4), index % 2


def test_a_client_whose_data_cannot_be_read_is_named():
    data = FederatedDataModule.from_dataset(Broken(), num_clients=2, partition=IID(), batch_size=4, num_classes=3)
    with pytest.raises(ClientError, match=r"client \d failed in `data loading` of round 1: OSError: unreadable sample"):
        fit(make_module(FedAvg), data, 1)


def test_global_weights_are_left_in_the_module_after_a_failure():
    class Failing(FedAvgMixin, QuadraticModule):
        def on_client_end(self):
            if self.round_index == 1:
                raise RuntimeError("boom")
            return super().on_client_end()

    module = Failing()
    with pytest.raises(ClientError, match="boom"):
        log_quadratic(3, module=module)
    assert module.w.item() == pytest.approx(np.mean([gradient_steps(0.0, c, 2)[0] for c in range(3)]), rel=1e-12)


def test_training_step_must_return_a_loss():
    class Silent(QuadraticModule):
        def training_step(self, batch, batch_idx):
            return None

    with pytest.raises(ConfigurationError, match=r"`training_step` returned NoneType: return the loss as a tensor"):
        log_quadratic(module=type("FedSilent", (FedAvgMixin, Silent), {})())


# --- any LightningModule --------------------------------------------------------------------------------------------


class Plain(pl.LightningModule):
    """A user's own module on dict batches, with several types of data, and no ``batch_idx``."""

    def __init__(self, returns="tensor"):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.returns = returns

    def training_step(self, batch):
        assert all(isinstance(text, str) for text in batch["text"])
        loss = nn.functional.cross_entropy(self.layer(batch["x"]), batch["y"])
        return loss if self.returns == "tensor" else {"loss": loss, "extra": batch["y"]}

    def validation_step(self, batch):
        self.log(
            "val/loss", nn.functional.cross_entropy(self.layer(batch["x"]), batch["y"]), batch_size=len(batch["y"])
        )

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Texts(Dataset):
    labels = tuple(range(2)) * 10

    def __len__(self):
        return 20

    def __getitem__(self, index):
        x = torch.tensor([index % 2, 1.0, index / 20])
        return {"text": f"sample {index}", "x": x, "y": index % 2}


@pytest.mark.parametrize("returns", ["tensor", "dict"])
def test_dict_batches_and_steps_without_batch_idx(returns):
    torch.manual_seed(0)
    module = type("FedPlain", (FedAvgMixin, Plain), {})(returns=returns)
    data = FederatedDataModule.from_dataset(Texts(), Texts(), num_clients=2, partition=IID(), batch_size=4)
    memory = RoundMemory()
    fit(module, data, 3, Federation(local_epochs=2), logger=memory)
    assert memory.rounds[3]["val/loss"] < memory.rounds[1]["val/loss"]


def test_loader_workers_do_not_change_the_result():
    def train(workers):
        torch.manual_seed(0)
        module = type("FedPlain", (FedAvgMixin, Plain), {})()
        options = {"num_clients": 2, "partition": IID(), "batch_size": 4, "num_workers": workers}
        fit(module, FederatedDataModule.from_dataset(Texts(), **options), 1)
        return module

    assert_same(train(0), train(2))


# --- Trainer features -----------------------------------------------------------------------------------------------


def test_gradient_clipping_by_norm():
    # every gradient h (w - b) is cut to 0.1: from 0, two steps move each client by 2 * lr * 0.1 toward its center
    module, _, _ = log_quadratic(gradient_clip_val=0.1)
    expected = np.mean([np.sign(b) * 2 * LR * 0.1 for b in B])
    assert module.w.item() == pytest.approx(expected, rel=1e-5)


def test_gradient_clipping_by_value():
    module, _, _ = log_quadratic(gradient_clip_val=0.1, gradient_clip_algorithm="value")
    assert module.w.item() == pytest.approx(np.mean([np.sign(b) * 2 * LR * 0.1 for b in B]), rel=1e-12)


class Scheduled(FedAvgMixin, QuadraticModule):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 3], gamma=0.1)]


def test_a_scheduler_steps_once_per_round():
    module, rows, _ = log_quadratic(4, module=Scheduled())
    assert [r["round/lr"] for r in rows] == pytest.approx([LR, LR / 10, LR / 10, LR / 100])
    w = 0.0
    for rate in (LR, LR / 10, LR / 10, LR / 100):
        w = np.mean([gradient_steps(w, c, 2, lr=rate)[0] for c in range(3)])
    assert module.w.item() == pytest.approx(w, rel=1e-12)


def test_a_plateau_scheduler_waits_for_the_round():
    class Plateau(FedAvg):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=100)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val/loss"}}

    _, rows = run(Plateau, 4)
    # nothing ever counts as progress: the rate halves after every round but the first
    assert [r["round/lr"] for r in rows] == pytest.approx([0.01, 0.005, 0.0025, 0.00125], rel=1e-6)


def test_early_stopping_sees_the_accuracy_of_the_round():
    stopping = EarlyStopping("val/accuracy", mode="max", patience=1, min_delta=2.0)  # no progress is ever enough
    memory = RoundMemory()
    module = make_module(FedAvg)
    trainer = fit(module, make_data(), 10, callbacks=[stopping], logger=memory)
    assert trainer.current_epoch == max(memory.rounds) == 2
    assert all(torch.equal(module.global_weights[n], w) for n, w in weights_of(module).items())


def test_the_best_checkpoint_is_that_of_the_best_round(tmp_path):
    saving = ModelCheckpoint(tmp_path, monitor="val/accuracy", mode="max", filename="{epoch}")
    memory = RoundMemory()
    fit(make_module(FedAvg), make_data(), 6, callbacks=[saving], logger=memory, enable_checkpointing=True)
    accuracies = {r: float(m["val/accuracy"]) for r, m in memory.rounds.items() if r}
    best = max(accuracies, key=accuracies.get)
    assert saving.best_model_path.endswith(f"epoch={best - 1}.ckpt")
    loaded = make_module(FedAvg, seed=5)
    loaded.load_state_dict(torch.load(saving.best_model_path, weights_only=False)["state_dict"])
    (metrics,) = make_trainer(1).validate(loaded, datamodule=make_data(), verbose=False)
    assert metrics["val/accuracy"] == pytest.approx(accuracies[best])


def test_limit_val_batches():
    memory, seen = RoundMemory(), []

    class Counted(FedAvg):
        def validation_step(self, batch, batch_idx):
            seen.append(batch_idx)
            super().validation_step(batch, batch_idx)

    fit(make_module(Counted), make_data(), 2, logger=memory, limit_val_batches=1)
    assert seen == [0, 0]


def test_no_validation_at_all():
    _, rows = run(FedAvg, 2, data=make_data())
    memory = RoundMemory()
    fit(make_module(FedAvg), make_data(), 2, logger=memory, limit_val_batches=0)
    assert "val/accuracy" in rows[0]
    assert "val/accuracy" not in memory.rounds[2]
    assert memory.rounds[2]["round/clients"] == 3


def test_check_val_every_n_epoch():
    memory = RoundMemory()
    fit(make_module(FedAvg), make_data(), 4, logger=memory, check_val_every_n_epoch=2)
    assert [r for r in memory.rounds if "val/accuracy" in memory.rounds[r]] == [2, 4]
    assert [r for r in memory.rounds if "round/loss" in memory.rounds[r]] == [1, 2, 3, 4]


def test_validation_sees_the_aggregated_model():
    class Watching(FedAvg):
        def validation_step(self, batch, batch_idx):
            live = weights_of(self)
            assert all(torch.equal(self.global_weights[n], live[n]) for n in live)
            super().validation_step(batch, batch_idx)

    fit(make_module(Watching), make_data(), 2)


def test_the_sanity_check_of_lightning_runs():
    fit(make_module(SOLO), make_data(), 1, num_sanity_val_steps=2)


@pytest.mark.parametrize("steps", [True, 2])
def test_fast_dev_run_trains_one_client_for_a_few_steps(steps):
    module = make_module(FedAvg)
    before = weights_of(module)
    trainer = fit(module, make_data(), 5, fast_dev_run=steps)
    assert trainer.global_step == int(steps)
    assert any(not torch.equal(before[n], w) for n, w in weights_of(module).items())


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true", "64-true"])
def test_precision(precision):
    module = make_module(FedAvg)
    memory = RoundMemory()
    fit(module, make_data(), 2, precision=precision, logger=memory)
    assert all(torch.isfinite(w).all() for w in weights_of(module).values())
    assert memory.rounds[2]["round/bad_updates"] == 0


def test_steps_that_a_gradient_scaler_skips_are_not_counted():
    class Overflowing(FedAvg):
        def on_client_end(self):
            steps.append((self.client.steps, len(self.client.step_sizes)))
            return super().on_client_end()

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * float("inf") if batch_idx == 0 else loss

    steps = []
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))  # Lightning takes bfloat16 on a CPU
    fit(make_module(Overflowing), make_data(), 1, Federation(local_steps=3), plugins=[plugin])
    assert steps == [(2, 2), (3, 3), (3, 3)]


def test_frozen_parameters_neither_move_nor_travel():
    module = make_module(FedAvg)
    module.net.head.requires_grad_(False)
    before = weights_of(module)
    memory = RoundMemory()
    fit(module, make_data(), 1, logger=memory)
    after = weights_of(module)
    assert torch.equal(before["net.head.weight"], after["net.head.weight"])
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert memory.rounds[1]["round/bytes_up"] == 3 * 4 * trained


def test_metrics_that_the_module_logs_itself_are_kept():
    class Chatty(FedAvg):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("train/mine", loss, on_step=False, on_epoch=True)
            return loss

    _, rows = run(Chatty, 2)
    assert all("train/mine" in r for r in rows)


def test_a_trainer_can_validate_test_and_predict_afterwards():
    module, data = make_module(FedAvg), make_data()
    trainer = fit(module, data, 2)
    before = weights_of(module)
    (validated,) = trainer.validate(module, datamodule=data, verbose=False)
    (tested,) = trainer.test(module, datamodule=data, verbose=False)
    assert validated["val/accuracy"] == tested["test/accuracy"]
    predicted = torch.cat(trainer.predict(module, datamodule=data))
    assert predicted.shape == (12, 3)
    assert all(torch.equal(before[n], w) for n, w in weights_of(module).items())


def test_a_second_fit_counts_steps_on_and_saves_its_rounds(tmp_path):
    module, data = make_module(FedAvg), make_data()
    trainer = make_trainer(1, callbacks=[LastCheckpoint(tmp_path)], enable_checkpointing=True)
    trainer.fit(module, datamodule=data)
    steps = trainer.global_step
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, datamodule=data)
    assert trainer.global_step == 2 * steps
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["epoch"] == 1


def test_the_cohort_of_a_round_is_drawn_once(monkeypatch):
    drawn = []

    def draw(*args):
        drawn.append(args)
        return sample_cohort(*args)

    monkeypatch.setattr(planning, "sample_cohort", draw)
    fit(make_module(FedAvg), make_data(), 4)
    assert len(drawn) == 4


def test_randomness_of_a_client_does_not_depend_on_the_others():
    # dropout of client 2 in round 0 is the same alone and after two others
    class Recording(FedAvg):
        def on_client_end(self):
            ends[self.client.id] = weights_of(self)
            return super().on_client_end()

    def net(shape, classes):
        return nn.Sequential(nn.Linear(*shape, 8), nn.Dropout(0.5), nn.Linear(8, classes))

    everybody, alone = {}, {}
    ends = everybody
    fit(make_module(Recording, net=net), make_data(), 1, Federation(local_steps=3))
    ends = alone
    data = make_data()
    data.setup("fit")
    federation = Federation(local_steps=3, participation=1)
    fit(make_module(Recording, net=net), make_data(), 1, federation)
    ((client, weights),) = alone.items()
    assert all(torch.equal(weights[n], everybody[client][n]) for n in weights)


def test_the_same_seed_gives_the_same_weights_bit_for_bit():
    first, second = (run(FedAvg, 2, federation=Federation(seed=3))[0] for _ in range(2))
    assert_same(first, second)


# --- memory order of convolutions -------------------------------------------------------------------------------------


class ConvNet(nn.Module):
    """A network of a user: two convolutions in the default memory order."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.head = nn.Linear(8 * 16, num_classes)

    def forward(self, x):
        return self.head(self.conv2(self.conv1(x).relu()).relu().flatten(1))


def fit_conv(**kwargs):
    samples = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
    data = FederatedDataModule.from_dataset(samples, samples, num_clients=2, partition=IID(), batch_size=4)
    torch.manual_seed(0)
    module = FedAvg(net=ConvNet, input_shape=(1, 8, 8), num_classes=3)
    fit(module, data, 2, Federation(**kwargs))
    return module


@pytest.mark.parametrize("channels_last", [None, True, False])
def test_convolutions_keep_the_memory_order_that_was_asked_for(channels_last):
    weight = fit_conv(channels_last=channels_last).net.conv2.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) is bool(channels_last)
    assert weight.is_contiguous() is not bool(channels_last)


def test_memory_order_changes_no_result():
    plain, last = (fit_conv(channels_last=choice).state_dict() for choice in (False, True))
    for name, weight in plain.items():
        torch.testing.assert_close(weight, last[name])
