"""Low precision stays inside the local steps: what is remembered, corrected and added up is single precision or better.

`torch.amp.GradScaler("cpu")` takes the code path of a GPU; Lightning itself uses bfloat16, without one, on a CPU.
"""

import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor

from flightning.algorithms import SCAFFOLD, FedAvg, FedAvgMixin, FedNovaMixin, FedProxMixin, SCAFFOLDMixin
from flightning.callbacks import Federation
from flightning.datamodules.synthetic import Quadratic
from flightning.functional.aggregation import flat_items
from tests.algorithms_on_digits import READY_MADE, PlainNet, run
from tests.classification import RoundMemory, assert_equal_nested, assert_same, make_data, make_module, weights_of
from tests.problems import QuadraticModule, fit
from tests.strategies.processes import distance, run_jobs
from tests.strategies.worker import result

LOOPS = ("lightning", "fused")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true")


def scaling(**kwargs):
    return MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", **{"init_scale": 2.0**10, **kwargs}))


def tensors(tree):
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (dict, list, tuple)):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(value)


# --- the matrix ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_run_learns_in_every_precision(precision, loop):
    memory, module = RoundMemory(), make_module(SCAFFOLD)
    fit(module, make_data(), 12, Federation(local_epochs=5, local_loop=loop), precision=precision, logger=memory)
    losses = [memory.rounds[i]["round/loss"] for i in (1, 12)]
    assert losses[1] < 0.9 * losses[0]
    assert memory.rounds[12]["round/bad_updates"] == 0


@pytest.mark.parametrize("name", READY_MADE)
def test_what_is_remembered_is_single_precision_or_better(name):
    module, _ = run(name, precision="bf16-true")
    assert all(w.dtype is torch.bfloat16 for w in module.trainable().values())
    references = [w for w in module.global_weights.values() if w.is_floating_point()]
    kept = {
        c: {n: v for n, v in state.items() if n not in ("weights", "optimizer", "previous")}  # models as they are
        for c, state in module.client_states.state_dict().items()
    }
    for tensor in [*references, *tensors(module.server_state.values), *tensors(kept)]:
        assert not tensor.is_floating_point() or tensor.dtype in (torch.float32, torch.float64)


def test_uploads_of_low_precision_are_averaged_in_double_precision():
    seen = []

    class Spy(FedAvg):
        def aggregate(self, uploads):
            seen.extend(t.dtype for _, t in flat_items(uploads))
            super().aggregate(uploads)

    fit(make_module(Spy), make_data(), 1, precision="bf16-true")
    assert {*seen} == {torch.float64}


def test_losses_of_low_precision_are_added_up_in_single_precision():
    # 1000 losses of 1 + 2^-7, the smallest bfloat16 above 1: the sum would stop at 256 in bfloat16
    value = 1 + 2.0**-7

    class Constant(FedAvg):
        def task_loss(self, loss, batch):
            return (loss * 0 + value).bfloat16()

    memory = RoundMemory()
    fit(make_module(Constant), make_data(), 1, Federation(local_steps=1000, local_loop="fused"), logger=memory)
    assert memory.rounds[1]["round/loss"] == pytest.approx(value, rel=1e-6)


# --- a gradient scaler --------------------------------------------------------------------------------------------


def quadratic(mixin, plugins=(), loop="lightning", rounds=3, cls=QuadraticModule, **kwargs):
    module = type("Scaled", (mixin, cls), {})(**kwargs)
    fit(module, Quadratic(), rounds, Federation(local_steps=5, local_loop=loop), plugins=list(plugins))
    return module


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("mixin", [FedAvgMixin, FedProxMixin, SCAFFOLDMixin, FedNovaMixin])
def test_corrections_come_after_unscaling(mixin, loop):
    # powers of two change no digit of a double: a correction of scaled gradients would be 1024 times too small
    assert_same(quadratic(mixin), quadratic(mixin, [scaling()], loop))


class Fused(QuadraticModule):
    """Its optimizer unscales gradients inside its step."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, fused=True)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("mixin", [FedAvgMixin, SCAFFOLDMixin])
def test_corrections_come_after_unscaling_where_the_optimizer_does_it_itself(mixin, loop):
    assert_same(quadratic(mixin, cls=Fused), quadratic(mixin, [scaling()], loop, cls=Fused))


@pytest.mark.parametrize("loop", LOOPS)
def test_clipping_comes_after_unscaling(loop):
    # gradients of the quadratic problem are of the order 1, so that a limit of 0.1 clips all of them
    def clipped(*plugins):
        module = type("Clipped", (SCAFFOLDMixin, QuadraticModule), {})()
        federation = Federation(local_steps=5, local_loop=loop)
        fit(module, Quadratic(), 2, federation, plugins=list(plugins), gradient_clip_val=0.1)
        return module

    assert_same(clipped(), clipped(scaling()))
    assert clipped().w.item() != quadratic(SCAFFOLDMixin, rounds=2).w.item()


class Overflow(QuadraticModule):
    """The gradient of the second local step of every client is infinite."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        first = self.trainer.lightning_module.client.num_losses == 1
        return loss + (self.w - self.w.detach()) * float("inf") if first else loss


class Shorter(QuadraticModule):
    """What is left of it: four steps."""


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("mixin", [FedAvgMixin, SCAFFOLDMixin, FedNovaMixin])
def test_a_skipped_step_is_as_if_it_had_never_been(mixin, loop):
    skipped = quadratic(mixin, [scaling()], loop, cls=Overflow)
    module = type("Plain", (mixin, Shorter), {})()
    fit(module, Quadratic(), 3, Federation(local_steps=4))
    assert skipped.w.item() == pytest.approx(module.w.item(), rel=1e-12)


@pytest.mark.parametrize("loop", LOOPS)
def test_skipped_steps_are_not_counted(loop):
    steps = []

    class Spy(FedAvgMixin):
        def on_client_end(self):
            steps.append((self.client.steps, len(self.client.step_sizes), self.client.num_losses))
            return super().on_client_end()

    quadratic(Spy, [scaling()], loop, rounds=1, cls=Overflow)
    assert steps == [(4, 4, 5)] * 3


def test_loops_agree_with_a_scaler():
    one, other = (run("SCAFFOLD", federation={"local_loop": loop}, plugins=[scaling()])[0] for loop in LOOPS)
    assert_same(one, other)
    assert_equal_nested(one.client_states.state_dict(), other.client_states.state_dict())


def test_the_scale_is_part_of_the_checkpoint(tmp_path):
    plugin = scaling(growth_interval=3)
    path = tmp_path / "a.ckpt"
    trainer = fit(make_module(FedAvg), make_data(), 1, plugins=[plugin])
    trainer.save_checkpoint(path)
    kept = torch.load(path, weights_only=False)["MixedPrecision"]
    assert kept["scale"] == plugin.scaler.get_scale() > 2.0**10


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam", "SCAFFOLD"])
def test_global_weights_of_low_precision_models_survive_a_checkpoint(name, tmp_path):
    # the live weights that Lightning saves have 8 bits, those that the server averages have 24
    whole, path = run(name, 3, precision="bf16-true")[0], tmp_path / "last.ckpt"
    run(name, 2, precision="bf16-true")[1].save_checkpoint(path)
    resumed = run(name, 3, precision="bf16-true", ckpt_path=path)[0]
    assert_equal_nested(whole.global_weights, resumed.global_weights)


def test_checkpoints_of_single_precision_hold_the_weights_once(tmp_path):
    run("FedAvg", 1)[1].save_checkpoint(tmp_path / "last.ckpt")
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["flightning"]["global"] == {}


# --- a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "FedDyn", "MOON", "SCAFFOLD", "SOLO"])
def test_loops_agree_on_a_gpu(name, precision):
    options = {"accelerator": "gpu", "devices": 1, "precision": precision, "deterministic": True}
    one, other = (run(name, federation={"local_loop": loop}, **options)[0] for loop in LOOPS)
    assert_same(one, other)
    assert all(torch.isfinite(w).all() for w in weights_of(one).values() if w.is_floating_point())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_agrees_with_a_cpu():
    # without dropout, which draws other masks there
    cpu, gpu = (run("SCAFFOLD", 1, PlainNet, accelerator=a, devices=1)[0] for a in ("cpu", "gpu"))
    for name, weight in weights_of(cpu).items():
        assert torch.allclose(weight, weights_of(gpu)[name].cpu(), rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("strategy", ["client_parallel", "ddp"])
def test_two_gpus_agree_with_one(strategy, tmp_path):
    job = {"name": "SCAFFOLD", "net": "PlainNet", "accelerator": "gpu", "precision": "16-mixed"}
    pair = run_jobs(tmp_path, [{"key": "pair", "strategy": strategy, "devices": 2, **job}])
    assert distance(result(devices=1, **job)["weights"], pair[0]["pair"]["weights"]) < 1e-2
    assert_equal_nested(pair[0]["pair"]["weights"], pair[1]["pair"]["weights"])
