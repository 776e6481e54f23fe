"""Accuracy of each client on its local test set, through the real Trainer."""

import csv
import time

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from flightning.algorithms import SOLO, Centralized, FedAvg, FedBN
from flightning.callbacks import Federation, RoundLogging
from flightning.callbacks.client_evaluation import ClientEvaluation
from flightning.datamodules import IID, ClassesPerClient, FederatedDataModule, LabelPermutation, RotationSkew
from flightning.errors import ConfigurationError
from flightning.loggers import RoundCSVLogger
from flightning.nets import MLP
from tests.callbacks.test_round_logging import read_back
from tests.classification import BatchNormNet, RoundMemory, make_data, make_module, run, weights_of
from tests.problems import fit, make_trainer

KEYS = {f"clients/{name}" for name in ("accuracy_mean", "accuracy_std", "accuracy_worst10", "accuracy_best10", "jain")}


def accuracy(module, source, part):
    inputs, targets = next(iter(source.batches([part])))
    module.eval()
    with torch.no_grad():
        return float((module(inputs).argmax(1) == targets).double().mean())


def expected(module, data, weights_of_client=None):
    tests = data.local_tests
    values = []
    for client, part in enumerate(tests.parts):
        if weights_of_client is not None:
            module.load_weights({**module.global_weights, **weights_of_client(client)})
        values.append(accuracy(module, tests.source, part))
    if weights_of_client is not None:
        module.load_global_weights()
    return np.array(values)


@pytest.mark.parametrize("client_test", ["same_recipe", 0.5])
def test_global_weights_on_each_local_test_set(client_test):
    data = make_data(client_test=client_test, eval_batch_size=4)
    evaluation = ClientEvaluation()
    module, rounds = run(FedAvg, 2, data, callbacks=[evaluation])
    values = expected(module, data)
    assert evaluation.accuracies == pytest.approx(values)
    last = rounds[-1]
    assert last["clients/accuracy_mean"] == pytest.approx(values.mean())
    assert last["clients/accuracy_std"] == pytest.approx(values.std())
    assert last["clients/accuracy_worst10"] == pytest.approx(values.min())
    assert last["clients/accuracy_best10"] == pytest.approx(values.max())
    assert last["clients/jain"] == pytest.approx(values.sum() ** 2 / (3 * (values**2).sum()))


@pytest.mark.parametrize(("algorithm", "net"), [(SOLO, None), (FedBN, BatchNormNet)])
def test_personal_weights_on_the_own_test_set(algorithm, net):
    data = make_data(client_test=0.5, per_class=8)
    evaluation = ClientEvaluation()
    module, _ = run(algorithm, 2, data, callbacks=[evaluation], **({"net": net} if net else {}))
    assert evaluation.accuracies == pytest.approx(expected(module, data, module.personal_weights))


def test_clients_that_never_trained_are_tested_with_the_global_weights():
    data = make_data(client_test=0.5, per_class=8)
    evaluation = ClientEvaluation()
    module, _ = run(
        FedBN, 1, data, federation=Federation(local_steps=3, participation=1), callbacks=[evaluation], net=BatchNormNet
    )
    assert evaluation.accuracies == pytest.approx(expected(module, data, module.personal_weights))


def test_global_weights_can_be_asked_for():
    data = make_data(client_test=0.5)
    evaluation = ClientEvaluation(weights="global")
    module, _ = run(SOLO, 2, data, callbacks=[evaluation])
    module.load_global_weights()
    assert evaluation.accuracies == pytest.approx(expected(module, data))


def test_personal_weights_that_do_not_exist_are_refused_before_training():
    module = make_module(FedAvg)
    before = weights_of(module)
    with pytest.raises(ConfigurationError, match=r"`weights='personal'`, but clients of `FedAvg` keep no weights"):
        run(module, 1, callbacks=[ClientEvaluation(weights="personal")])
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(module).items())


def test_training_is_not_changed():
    plain, _ = run(FedBN, 3, make_data(), net=BatchNormNet)
    watched, _ = run(FedBN, 3, make_data(), net=BatchNormNet, callbacks=[ClientEvaluation()])
    assert all(
        torch.equal(a, b) for a, b in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True)
    )


def test_every_second_round_and_the_last():
    _, rounds = run(FedAvg, 5, callbacks=[ClientEvaluation(every=2)])
    assert [set(row) >= KEYS for row in rounds] == [False, True, False, True, True]


@pytest.mark.parametrize("first", [True, False])
def test_rounds_without_validation_are_evaluated_too(first):
    memory, evaluation = RoundMemory(), ClientEvaluation()
    federation = Federation()
    callbacks = [evaluation, federation] if first else [federation, evaluation]
    import lightning.pytorch as pl

    trainer = pl.Trainer(
        callbacks=callbacks, max_epochs=2, logger=memory, limit_val_batches=0, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    trainer.fit(make_module(FedAvg), datamodule=make_data())
    assert all(set(memory.rounds[r]) >= KEYS for r in (1, 2))


def test_checkpoints_can_watch_the_worst_clients(tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path, monitor="clients/accuracy_worst10", mode="max")
    run(FedAvg, 3, callbacks=[ClientEvaluation(), best])
    assert best.best_model_score is not None


def test_test_and_validate_evaluate_clients():
    data, evaluation = make_data(), ClientEvaluation()
    module, _ = run(FedAvg, 1, data)
    trainer = make_trainer(1, Federation(), [evaluation])
    (metrics,) = trainer.test(module, datamodule=data, verbose=False)
    assert set(metrics) >= KEYS
    (metrics,) = trainer.validate(module, datamodule=data, verbose=False)
    assert set(metrics) >= KEYS


def test_a_central_model_is_evaluated_on_all_clients():
    evaluation = ClientEvaluation()
    run(Centralized, 1, callbacks=[evaluation])
    assert len(evaluation.accuracies) == 3


def test_clients_without_test_samples_do_not_count():
    generator = torch.Generator().manual_seed(0)
    train = torch.randn(40, 4, generator=generator), torch.arange(40) % 4
    test = torch.randn(8, 4, generator=generator), torch.arange(8) % 2  # nothing of classes 2 and 3
    data = FederatedDataModule.from_dataset(
        train, test, num_clients=4, partition=ClassesPerClient(classes=1, assignment="consecutive"), seed=0
    )
    evaluation = ClientEvaluation()
    _, rounds = run(FedAvg, 1, data, callbacks=[evaluation], num_classes=4)
    assert np.isnan(evaluation.accuracies).tolist() == [False, False, True, True]
    assert rounds[-1]["clients/accuracy_mean"] == pytest.approx(np.nanmean(evaluation.accuracies))


def test_skewed_clients_are_tested_on_skewed_samples():
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(80, 1, 3, 3, generator=generator), torch.arange(80) % 4
    data = FederatedDataModule.from_dataset(
        pictures, pictures, num_clients=4, partition=IID(), skew=RotationSkew(4), seed=0
    )
    evaluation = ClientEvaluation()
    module = FedAvg(net=MLP, input_shape=(1, 3, 3), num_classes=4)
    _, rounds = run(module, 1, data, callbacks=[evaluation])
    assert evaluation.accuracies == pytest.approx(expected(module, data))
    for client, accuracy_of_client in enumerate(evaluation.accuracies):
        assert rounds[-1][f"clients/accuracy_group{client}"] == pytest.approx(accuracy_of_client)


def test_groups_of_clients_are_reported_apart():
    # concept shift has no right answers on a global test set: two groups of two clients, one without test samples
    generator = torch.Generator().manual_seed(0)
    train = torch.randn(40, 4, generator=generator), torch.arange(40) % 4
    test = torch.randn(12, 4, generator=generator), torch.arange(12) % 3  # nothing of class 3
    data = FederatedDataModule.from_dataset(
        train,
        test,
        num_clients=4,
        partition=ClassesPerClient(classes=1, assignment="consecutive"),
        skew=LabelPermutation(num_classes=4, groups=2),
        seed=0,
    )
    evaluation = ClientEvaluation()
    _, rounds = run(FedAvg, 2, data, callbacks=[evaluation], num_classes=4)
    first, second = evaluation.accuracies[[0, 2]], evaluation.accuracies[1]
    assert rounds[-1]["clients/accuracy_group0"] == pytest.approx(first.mean())
    assert rounds[-1]["clients/accuracy_group1"] == pytest.approx(second)


def test_without_groups_no_group_is_reported():
    _, rounds = run(FedAvg, 1, callbacks=[ClientEvaluation()])
    assert not [key for key in rounds[-1] if "group" in key]


def test_no_test_set_is_found_before_training():
    train = torch.randn(20, 4), torch.arange(20) % 2
    data = FederatedDataModule.from_dataset(train, num_clients=2, partition=IID(), num_classes=2)
    with pytest.raises(ConfigurationError, match=r"has no test set to deal to the clients: .*`client_test: 0.2`"):
        run(FedAvg, 1, data, callbacks=[ClientEvaluation()], num_classes=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"every": 0}, "`every=0` must be at least 1"), ({"weights": "mine"}, "`weights='mine'` must be one of `auto`")],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ClientEvaluation(**options)


# --- what loggers get ---------------------------------------------------------------------------------------------


def test_the_run_folder_holds_the_last_evaluation(tmp_path):
    data, evaluation = make_data(), ClientEvaluation()
    fit(make_module(FedAvg), data, 2, Federation(), [evaluation], logger=RoundCSVLogger(tmp_path))
    with (tmp_path / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == ["0", "1", "2"]
    assert [float(row["accuracy"]) for row in rows] == pytest.approx(evaluation.accuracies)
    assert [int(row["test_samples"]) for row in rows] == [len(part) for part in data.local_tests.parts]


def test_wandb_gets_a_histogram_per_evaluation_and_a_table(tmp_path):
    pytest.importorskip("wandb")
    logger = WandbLogger(project="test", save_dir=str(tmp_path), offline=True)
    fit(make_module(FedAvg), make_data(), 2, Federation(), [RoundLogging(), ClientEvaluation()], logger=logger)
    logger.experiment.finish()
    history = read_back(tmp_path)["history"]
    histograms = [row for row in history if "clients/accuracy/values" in row]
    assert [row["round"] for row in histograms] == [1, 2]
    assert all(sum(row["clients/accuracy/values"]) == 3 for row in histograms)
    assert [row["clients/table/nrows"] for row in history if "clients/table/nrows" in row] == [3]


def test_tensorboard_gets_a_histogram(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(str(tmp_path))
    fit(make_module(FedAvg), make_data(), 2, Federation(), [RoundLogging(), ClientEvaluation()], logger=logger)
    events = EventAccumulator(logger.log_dir, size_guidance={"histograms": 0})
    events.Reload()
    assert [event.step for event in events.Histograms("clients/accuracy")] == [1, 2]
    assert [event.value for event in events.Scalars("partition/clients")] == [3]
    assert "partition" in events.Tags()["images"]


# --- cost ---------------------------------------------------------------------------------------------------------


def test_500_clients_of_20_samples_cost_less_than_two_passes_over_the_union():
    """The work is counted, not only timed: as many forward passes as the union has batches."""
    samples = torch.randn(10_000, 64), torch.arange(10_000) % 10
    data = FederatedDataModule.from_dataset(samples, samples, num_clients=500, partition=IID(), batch_size=20)
    module = FedAvg(
        net=lambda shape, classes: MLP(shape, classes, hidden=(200, 200)), input_shape=(64,), num_classes=10
    )
    fit(module, data, 1, Federation(local_steps=1, participation=2), limit_val_batches=0)
    calls, seconds = [], []
    with module.register_forward_hook(lambda *args: calls.append(len(args[1][0]))):
        count(module, data)
    assert calls == [512] * 19 + [272]
    for work in (lambda: [module(x) for x, _ in data.test_dataloader()], lambda: count(module, data)):
        work()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
    assert seconds[1] < 2 * seconds[0]


def test_personal_weights_cost_one_pass_per_client_and_no_walk_over_the_layers():
    """Seconds are measured by `python -m benchmarks.evaluation`."""
    samples = torch.randn(600, 64), torch.arange(600) % 10
    data = FederatedDataModule.from_dataset(samples, samples, num_clients=30, partition=IID(), batch_size=20)
    module = FedBN(net=BatchNormNet, input_shape=(64,), num_classes=10)
    fit(module, data, 1, Federation(local_steps=1), limit_val_batches=0)
    calls, walks = [], []
    module.named_modules = lambda *args, **kwargs: (
        walks.append(1) or type(module).named_modules(module, *args, **kwargs)
    )
    with module.register_forward_hook(lambda *args: calls.append(len(args[1][0]))):
        count(module, data, personal=True)
    assert calls == [20] * 30
    assert len(walks) < 10


def count(module, data, personal=False):
    from flightning.algorithms.observe import evaluating
    from flightning.callbacks.client_evaluation import _global_hits, _personal_hits
    from flightning.strategies.processes import Processes

    with evaluating(module):
        hits = _personal_hits if personal else _global_hits
        return hits(module, data.local_tests, data.eval_batch_size, Processes())
