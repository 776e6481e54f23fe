import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.profilers import SimpleProfiler
from torch import nn
from torch.utils.data import Dataset

from flightning.algorithms import FedAvg, FedAvgMixin
from flightning.callbacks import Federation
from flightning.datamodules import FederatedDataModule
from flightning.datamodules.stream import GROUP_STEPS, RoundPlan, RoundStream, Visit
from flightning.datamodules.synthetic import Quadratic
from flightning.errors import ConfigurationError
from tests.algorithms_on_digits import READY_MADE, run
from tests.classification import assert_equal_nested, assert_same, make_data, make_module
from tests.problems import QuadraticModule, fit, make_trainer


class Listener(pl.Callback):
    """Count the hooks inside of a local step."""

    def __init__(self):
        self.calls = []

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        self.calls.append("zero")

    def on_after_backward(self, trainer, pl_module):
        self.calls.append("backward")

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.calls.append("step")


def both(make, **kwargs):
    """With the steps of Lightning's own loop, which a listener asks for, and fused."""
    lightning = make(federation={"local_loop": "lightning"}, callbacks=[Listener()], **kwargs)
    return lightning, make(federation={"local_loop": "fused"}, **kwargs)


@pytest.mark.parametrize("name", READY_MADE)
def test_every_algorithm_ends_with_the_same_weights(name):
    (lightning, one), (fused, other) = both(lambda **kwargs: run(name, **kwargs))
    assert_same(lightning, fused)
    assert_equal_nested(lightning.server_state.values, fused.server_state.values)
    assert_equal_nested(lightning.client_states.state_dict(), fused.client_states.state_dict())
    assert one.global_step == other.global_step
    metrics = [
        {k: float(v) for k, v in t.callback_metrics.items() if k.startswith(("round/", "val/")) and "seconds" not in k}
        for t in (one, other)
    ]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_every_precision_ends_with_the_same_weights(precision):
    (lightning, _), (fused, _) = both(lambda **kwargs: run("SCAFFOLD", precision=precision, **kwargs))
    assert_same(lightning, fused)


@pytest.mark.parametrize("loop", ["lightning", "fused"])
def test_hooks_of_a_step_are_called_for_every_local_step(loop):
    listener = Listener()
    module, trainer = run("FedProx", federation={"local_loop": loop}, callbacks=[listener])
    assert listener.calls == ["zero", "backward", "step"] * trainer.global_step
    assert_same(module, run("FedProx", federation={"local_loop": loop})[0])


class Outputs(pl.Callback):
    """Keep what Lightning hands to callbacks after a batch."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(outputs)


@pytest.mark.parametrize("others", [[], [Listener()]], ids=["direct", "listening"])
def test_callbacks_get_what_training_step_returns(others):
    class Talkative(FedAvgMixin, QuadraticModule):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return {"loss": loss, "twice": 2 * loss}

    outputs = Outputs()
    fit(Talkative(), Quadratic(), 1, Federation(local_steps=2), callbacks=[outputs, *others])
    assert len(outputs.seen) == 6
    for output in outputs.seen:
        assert output["twice"] == 2 * output["loss"]
        assert not output["loss"].requires_grad


def test_a_profiler_sees_the_parts_of_a_step(tmp_path):
    run("FedAvg", profiler=(profiler := SimpleProfiler(dirpath=tmp_path, filename="profile")))
    assert any("backward" in action for action in profiler.recorded_durations)


class OwnStep(FedAvgMixin, QuadraticModule):
    """A module that steps its optimizer its own way, and remembers what it was told."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.indices = []

    def training_step(self, batch, batch_idx):
        self.indices.append((batch_idx, self.global_step))
        return super().training_step(batch, batch_idx)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + batch_idx)
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)


def fit_quadratic(module, **kwargs):
    fit(module, Quadratic(), 2, Federation(local_steps=3, **kwargs))
    return module


def test_batch_index_and_global_step_are_those_of_single_batches():
    lightning, fused = (fit_quadratic(OwnStep(), local_loop=loop) for loop in ("lightning", "fused"))
    assert lightning.indices == fused.indices
    assert lightning.w.item() == fused.w.item()


def test_closures_are_passed_to_an_optimizer_that_calls_them_again():
    class Newton(FedAvgMixin, QuadraticModule):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.5, max_iter=3)

    lightning, fused = (fit_quadratic(Newton(), local_loop=loop) for loop in ("lightning", "fused"))
    assert lightning.w.item() == fused.w.item() != 0


class Foreign(torch.optim.SGD):
    """As optimizers of other packages: it calls the closure without gradients, and keeps those of frozen weights."""

    cleared = 0

    @torch.no_grad()
    def step(self, closure=None):
        closure()
        super().step()

    def zero_grad(self, set_to_none=True):
        self.cleared += 1
        super().zero_grad(set_to_none)


def test_an_optimizer_of_another_package_is_used_as_lightning_uses_it():
    class Composed(FedAvgMixin, QuadraticModule):
        def configure_optimizers(self):
            self.mine = Foreign(self.parameters(), lr=0.1)
            return self.mine

    (lightning, listened), (fused, direct) = (
        (module := Composed(), fit(module, Quadratic(), 2, Federation(local_steps=3, local_loop=loop), callbacks))
        for loop, callbacks in (("lightning", [Listener()]), ("fused", []))
    )
    assert lightning.w.item() == fused.w.item() != 0
    assert lightning.mine.cleared == fused.mine.cleared == listened.global_step == direct.global_step == 18


@pytest.mark.parametrize("loop", ["lightning", "fused"])
def test_schedulers_step_once_per_round(loop):
    class Scheduled(FedAvgMixin, QuadraticModule):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.02)
            return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [1], gamma=0.5)]

    # K = 1 step from w: w - eta mean h_i (w - b_i), eta = 0.02 then 0.01
    h, b, w = (1, 3, 10), (-1, 0.5, 2), 0.0
    for eta in (0.02, 0.01):
        w -= eta * sum(hi * (w - bi) for hi, bi in zip(h, b, strict=True)) / 3
    module = Scheduled()
    fit(module, Quadratic(), 2, Federation(local_steps=1, local_loop=loop))
    assert module.w.item() == pytest.approx(w, rel=1e-12)


def test_a_logged_metric_is_the_mean_over_all_samples():
    class Logging(FedAvg):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("train/loss", loss, on_step=False, on_epoch=True)
            return loss

    values = []
    for loop in ("lightning", "fused"):
        trainer = make_trainer(1, Federation(local_loop=loop))
        trainer.fit(make_module(Logging), datamodule=make_data(per_class=[3, 4, 6]))
        values.append(trainer.callback_metrics["train/loss"].item())
    assert values[0] == values[1]


class BatchCounter(pl.Callback):
    """A callback that wants every batch."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pass


def test_a_callback_that_needs_batches_is_warned_about_by_name():
    with pytest.warns(UserWarning, match=r"`BatchCounter` overrides `on_train_batch_end`, which .* with whole clients"):
        run("FedAvg", rounds=1, federation={"local_loop": "fused"}, callbacks=[BatchCounter()])


def test_a_module_that_needs_batches_is_warned_about_by_name():
    class Counting(FedAvg):
        def on_train_batch_start(self, batch, batch_idx):
            pass

    with pytest.warns(UserWarning, match="`Counting` overrides `on_train_batch_start`"):
        fit(make_module(Counting), make_data(), 1, Federation(local_loop="fused"))


def test_callbacks_of_flightning_and_lightning_are_not_warned_about(recwarn):
    run("FedAvg", rounds=1, federation={"local_loop": "fused"}, callbacks=[pl.callbacks.Timer()])
    assert not [w for w in recwarn if "overrides" in str(w.message)]


def test_transfer_hooks_see_single_batches():
    class Shifted(FedAvg):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch[0] + 1, batch[1]

    lightning, fused = (make_module(Shifted) for _ in range(2))
    fit(lightning, make_data(), 1, Federation(local_loop="lightning"))
    fit(fused, make_data(), 1, Federation(local_loop="fused"))
    assert_same(lightning, fused)


class Noisy(Dataset):
    """Samples with noise from the global generator, as transforms of torchvision draw it."""

    targets = tuple(i % 3 for i in range(24))

    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.randn(4) + self.targets[i], self.targets[i]


def test_random_data_sets_draw_the_same():
    from flightning.datamodules.partitioners import IID

    modules = []
    for loop in ("lightning", "fused"):
        data = FederatedDataModule.from_dataset(Noisy(), num_clients=3, batch_size=4, partition=IID())
        modules.append(make_module(FedAvg, net=lambda *_: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))))
        fit(modules[-1], data, 2, Federation(local_loop=loop))
    assert_same(*modules)


def test_an_unknown_loop_is_refused():
    with pytest.raises(ConfigurationError, match="`local_loop='quick'` is none of lightning, fused"):
        Federation(local_loop="quick")


def test_short_clients_share_an_item_and_long_ones_do_not():
    visits = tuple(Visit(c, steps) for c, steps in enumerate([10, GROUP_STEPS, 1, 200, 5]))
    stream = RoundStream(RoundPlan(0, visits), lambda _, some: (iter(range(v.steps)) for v in some), whole_clients=True)
    items = [[(c.visit.client, len(list(c))) for c in item] for item in stream]
    assert items == [[(0, 10), (1, GROUP_STEPS)], [(2, 1), (3, 200)], [(4, 5)]]
    assert len(stream) == 3


def test_a_manual_module_is_still_refused():
    class Manual(FedAvg):
        automatic_optimization = False

    with pytest.raises(ConfigurationError, match="uses manual optimization"):
        fit(make_module(Manual), make_data(), 1, Federation(local_loop="fused"))


@pytest.mark.parametrize("loop", ["lightning", "fused"])
def test_checkpoints_of_either_loop_resume_in_the_other(loop, tmp_path):
    other = "fused" if loop == "lightning" else "lightning"
    whole, _ = run("SCAFFOLD", rounds=3)
    saving = pl.callbacks.ModelCheckpoint(dirpath=tmp_path, save_last=True)
    run("SCAFFOLD", 2, federation={"local_loop": loop}, callbacks=[saving], enable_checkpointing=True)
    resumed, _ = run("SCAFFOLD", 3, federation={"local_loop": other}, ckpt_path=tmp_path / "last.ckpt")
    assert_same(whole, resumed)
