"""What cannot work is refused before the first local step."""

from datetime import timedelta

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint

from flightning.algorithms import FedAvg, FedAvgMixin
from flightning.callbacks import Federation
from flightning.callbacks.checks import check_trainer
from flightning.datamodules import IID, FederatedDataModule
from flightning.errors import ConfigurationError
from flightning.nets import SentimentLSTM
from tests.classification import BatchNormNet, make_data, make_module
from tests.problems import QuadraticModule, fit, make_trainer


class Untouched(FedAvg):
    """Fails the test where a local step is taken before the refusal."""

    def training_step(self, batch, batch_idx):
        raise AssertionError("a local step was taken")


def refuse(match, module=None, data=None, federation=None, callbacks=(), **kwargs):
    with pytest.raises(ConfigurationError, match=match):
        fit(module or make_module(Untouched), data or make_data(), 2, federation, callbacks, **kwargs)


# --- Trainer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "match"),
    [
        (
            {"accumulate_grad_batches": 2},
            r"`accumulate_grad_batches=2` would add gradients of different clients: remove it",
        ),
        ({"overfit_batches": 3}, r"`overfit_batches=3` would cut .*: set `federation.local_steps` to a small number"),
        ({"limit_train_batches": 5}, r"`limit_train_batches=5` would cut .*: set `federation.local_steps` or"),
        ({"limit_train_batches": 1}, r"`limit_train_batches=1` would cut .*: set `federation.local_steps` or"),
        ({"max_steps": 10}, r"`max_steps=10` would stop inside a round: set `max_epochs`"),
        (
            {"val_check_interval": 0.5},
            r"`val_check_interval=0.5` would validate the weights of a single client: remove it",
        ),
        ({"val_check_interval": 1}, r"`val_check_interval=1` would validate the weights of a single client: remove it"),
        ({"val_check_interval": "00:00:10:00"}, r"`val_check_interval` of 600.* seconds would validate the weights of"),
    ],
)
def test_trainer_settings_that_cut_through_a_round(option, match):
    refuse(match, **option)


def test_a_device_without_double_precision():
    trainer = make_trainer(1)
    trainer.strategy._root_device = torch.device("mps")  # there is none to be asked for here
    with pytest.raises(ConfigurationError, match=r"the device `mps` .* lacks: .*`--trainer.accelerator cpu`"):
        check_trainer(trainer)


def test_all_batches_may_be_asked_for():
    fit(make_module(FedAvg), make_data(), 1, limit_train_batches=1.0, val_check_interval=1.0)


@pytest.mark.parametrize("loop", ["lightning", "fused"])
def test_a_hook_that_cuts_through_a_round_is_refused_when_it_ends(loop):
    class Impatient(FedAvg):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if self.trainer.current_epoch == 1 else None

    with pytest.raises(ConfigurationError, match=r"round 2 has ended before its clients .*`on_train_batch_start`"):
        fit(make_module(Impatient), make_data(), 3, Federation(local_loop=loop))


@pytest.mark.parametrize(
    "when", [{"every_n_train_steps": 3}, {"train_time_interval": timedelta(seconds=1)}, {"save_on_exception": True}]
)
def test_checkpoints_inside_a_round(when, tmp_path):
    saving = ModelCheckpoint(tmp_path, **when)
    refuse(
        "`ModelCheckpoint` would save inside a round: use `every_n_epochs`",
        callbacks=[saving],
        enable_checkpointing=True,
    )


def test_a_schedule_of_accumulation():
    refuse("`GradientAccumulationScheduler` would add", callbacks=[GradientAccumulationScheduler({1: 2})])


# --- module -----------------------------------------------------------------------------------------------------------


def test_a_module_without_an_algorithm():
    match = r"`QuadraticModule` has no federated algorithm: .*\(FedAvgMixin, QuadraticModule\)"
    refuse(match, module=QuadraticModule())


def test_manual_optimization():
    module = make_module(Untouched)
    module.automatic_optimization = False
    refuse("`Untouched` uses manual optimization.*remove `self.automatic_optimization = False`", module=module)


def test_two_optimizers():
    class Two(Untouched):
        def configure_optimizers(self):
            return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.2)]

    with pytest.raises((ConfigurationError, RuntimeError), match="optimizers"):
        fit(make_module(Two), make_data(), 1)


def test_no_optimizer():
    class None_(Untouched):
        def configure_optimizers(self):
            return None

    with pytest.warns(UserWarning, match="configure_optimizers"):
        refuse("`configure_optimizers` returned 0 optimizers", module=make_module(None_))


def test_a_scheduler_inside_the_round():
    class Stepwise(Untouched):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}
            return [optimizer], [scheduler]

    refuse("the scheduler `StepLR` has `interval='step'`.*use `interval: epoch`", module=make_module(Stepwise))


def test_training_without_a_round_engine():
    trainer = pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    with pytest.raises(ConfigurationError, match=r"no round engine asks for them: add `Federation\(\)`"):
        trainer.fit(make_module(FedAvg), datamodule=make_data())


def test_training_on_ones_own_loader_without_a_round_engine():
    trainer = pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    loader = [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))]
    with pytest.raises(ConfigurationError, match=r"`FedAvg` is trained without a round engine: add `Federation\(\)`"):
        trainer.fit(make_module(FedAvg), train_dataloaders=loader)


# --- data -------------------------------------------------------------------------------------------------------------


def test_data_without_clients():
    class Plain(pl.LightningDataModule):
        pass

    refuse(r"the data is `Plain`, but a federation needs clients.*`FederatedDataModule.from_dataset", data=Plain())


def test_a_loader_in_place_of_data():
    with pytest.raises(ConfigurationError, match=r"the data is `NoneType`.*pass `datamodule=`"):
        make_trainer(1).fit(make_module(Untouched), train_dataloaders=[0])


@pytest.mark.parametrize("sizes", [[1, 6, 6], [6, 9, 6]])
def test_a_batch_of_one_into_batch_norm(sizes):
    # one sample alone, or nine of which the last is left over after two batches of four
    pairs = [(torch.randn(n, 4), torch.arange(n) % 3) for n in sizes]
    client = 0 if sizes[0] == 1 else 1
    data = FederatedDataModule.from_clients(pairs, batch_size=4, drop_last=False)
    match = (
        rf"client {client} with {sizes[client]} samples would train on a batch of one.*raise the partition's `min_size`"
    )
    refuse(match, module=make_module(Untouched, net=BatchNormNet), data=data)


def test_batch_size_one_with_batch_norm():
    data = make_data(batch_size=1)
    refuse("would train on a batch of one", module=make_module(Untouched, net=BatchNormNet), data=data)


def test_a_left_over_sample_is_dropped_with_batch_norm_by_default():
    data = make_data(classes=[(0,), (1,)], per_class=9)
    fit(make_module(FedAvg, net=BatchNormNet), data, 1)


# --- federation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("participation", [0, 0.0, -1, 1.5])
def test_participation_that_selects_nobody(participation):
    refuse(f"`participation={participation}` of 3 clients", federation=Federation(participation=participation))


def test_participation_of_more_clients_than_there_are():
    refuse("asks for more clients than the 3 that have data", federation=Federation(participation=4))


@pytest.mark.parametrize("name", ["local_epochs", "local_steps"])
def test_no_local_work(name):
    with pytest.raises(ConfigurationError, match=f"`{name}=0` must be at least 1"):
        Federation(**{name: 0})


def test_steps_and_epochs_together():
    with pytest.raises(ConfigurationError, match="`local_epochs=1` and `local_steps=1` exclude each other"):
        Federation(local_epochs=1, local_steps=1)


@pytest.mark.parametrize("name", ["sampler", "weighting", "buffers", "on_bad_update"])
def test_unknown_choices(name):
    with pytest.raises(ConfigurationError, match=f"`{name}='x'` is none of .*: choose one of them"):
        Federation(**{name: "x"})


def test_negative_overhead():
    with pytest.raises(ConfigurationError, match="`serialisation_overhead=-1` must be at least 0 bytes"):
        Federation(serialisation_overhead=-1)


class Composed(FedAvgMixin, QuadraticModule):
    pass


def test_two_federations():
    with pytest.raises((ConfigurationError, RuntimeError), match="Federation"):
        fit(make_module(Untouched), make_data(), 1, callbacks=[Federation()])


# --- texts ------------------------------------------------------------------------------------------------------------


def texts(vocabulary_size, padding_index):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 12, (12, 5), generator=generator)
    data = FederatedDataModule.from_dataset((tokens, torch.arange(12) % 2), num_clients=2, partition=IID())
    data.vocabulary_size, data.padding_index = vocabulary_size, padding_index
    return data


def reader(cls=Untouched, **kwargs):
    def net(shape, classes):
        return SentimentLSTM(shape, classes, embedding_size=3, hidden_size=3, **kwargs)

    return cls(net=net, input_shape=(5,), num_classes=2)


def test_more_tokens_than_the_net_knows_are_refused():
    refuse(
        r"texts have 12 different tokens, but `model.net.vocabulary=8`: raise it to 12, or lower `data.tokenizer.vocab",
        reader(vocabulary=8),
        texts(12, 0),
    )


@pytest.mark.parametrize(
    ("net", "data", "match"),
    [
        (0, 1, r"short texts are filled up with 1 .*, but `model.net.padding_index=0`: set it to 1"),
        (0, None, r"short texts are not filled up .*, but `model.net.padding_index=0`: set it to null"),
        (None, 0, r"short texts are filled up with 0 .*, but `model.net.padding_index=None`: set it to 0"),
    ],
)
def test_another_padding_than_that_of_the_net_is_refused(net, data, match):
    refuse(match, reader(vocabulary=12, padding_index=net), texts(12, data))


@pytest.mark.parametrize(("size", "padding"), [(12, 0), (None, None)])
def test_texts_that_the_net_reads_are_trained_on(size, padding):
    module = reader(FedAvg, vocabulary=15)
    before = module.net.head.weight.detach().clone()
    fit(module, texts(size, padding), 1)
    assert not torch.equal(module.net.head.weight, before)
