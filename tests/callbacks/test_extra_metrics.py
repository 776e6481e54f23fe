"""Metrics of torchmetrics in an evaluation, compared with the same metrics computed by hand."""

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torchmetrics.classification import (
    MulticlassAUROC,
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassRecall,
)

from flightning.algorithms import SOLO, FedAvg
from flightning.callbacks import Federation
from flightning.callbacks.extra_metrics import ExtraMetrics, LongTailAccuracy
from flightning.errors import ConfigurationError
from flightning.loggers import RoundCSVLogger
from tests.classification import make_data, make_module, run, weights_of
from tests.problems import fit, make_trainer

CLASSES = {"f1": MulticlassF1Score, "auroc": MulticlassAUROC, "calibration": MulticlassCalibrationError}


def answers(module, data):
    module.eval()
    batches = list(data.test_dataloader())
    with torch.no_grad():
        return torch.softmax(module(torch.cat([b[0] for b in batches])), 1), torch.cat([b[1] for b in batches])


@pytest.mark.parametrize("name", CLASSES)
def test_a_metric_is_that_of_the_whole_test_set(name):
    data = make_data(eval_batch_size=5)
    module, rounds = run(FedAvg, 2, data, callbacks=[ExtraMetrics(CLASSES)])
    by_hand = CLASSES[name](3)
    by_hand.update(*answers(module, data))
    assert rounds[-1][f"val/{name}"] == pytest.approx(float(by_hand.compute()), abs=1e-6)


def test_one_value_per_class_is_logged_under_its_name():
    data = make_data(class_names=["ant", "bee", "cat"])
    recall = ExtraMetrics({"recall": lambda classes: MulticlassRecall(classes, average=None)})
    module, rounds = run(FedAvg, 1, data, callbacks=[recall])
    probabilities, targets = answers(module, data)
    for number, name in enumerate(("ant", "bee", "cat")):
        share = (probabilities.argmax(1) == number)[targets == number].float().mean()
        assert rounds[-1][f"val/recall/{name}"] == pytest.approx(float(share))


def test_an_object_can_be_given():
    _, rounds = run(FedAvg, 1, callbacks=[ExtraMetrics({"f1": MulticlassF1Score(3, average="micro")})])
    # F1 over all samples together is the accuracy
    assert rounds[-1]["val/f1"] == pytest.approx(rounds[-1]["val/accuracy"])


def test_a_confusion_matrix_is_a_picture(tmp_path):
    data = make_data()
    extra = ExtraMetrics({"confusion": MulticlassConfusionMatrix})
    module = make_module(FedAvg)
    fit(module, data, 1, Federation(), [extra], logger=RoundCSVLogger(tmp_path))
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    probabilities, targets = answers(module, data)
    matrix = torch.zeros(3, 3)
    for target, answer in zip(targets, probabilities.argmax(1), strict=True):
        matrix[target, answer] += 1
    assert extra.matrices["confusion"].tolist() == matrix.tolist()


def test_tensorboard_gets_the_picture(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(str(tmp_path))
    fit(
        make_module(FedAvg), make_data(), 2, Federation(),
        [ExtraMetrics({"confusion": MulticlassConfusionMatrix})], logger=logger,
    )  # fmt: skip
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    assert [event.step for event in events.Images("val/confusion")] == [1, 2]


def test_there_is_no_second_pass():
    module, calls = make_module(FedAvg), []
    module.register_forward_hook(lambda m, *_: None if m.training else calls.append(1))
    run(module, 1, make_data(eval_batch_size=6), callbacks=[ExtraMetrics(CLASSES)])
    assert len(calls) == 2  # 12 test samples in batches of 6


def test_evaluation_steps_that_go_around_forward_are_seen():
    class Direct(FedAvg):
        def validation_step(self, batch, batch_idx):
            inputs, targets = batch
            self.log("val/accuracy", (self.net(inputs).argmax(1) == targets).float().mean())

    data = make_data()
    module, rounds = run(make_module(Direct), 1, data, callbacks=[ExtraMetrics(CLASSES)])
    by_hand = MulticlassF1Score(3)
    by_hand.update(*answers(module, data))
    assert rounds[-1]["val/f1"] == pytest.approx(float(by_hand.compute()))


def test_personal_models_are_seen_together():
    data = make_data()
    _, rounds = run(SOLO, 1, data, callbacks=[ExtraMetrics({"f1": lambda n: MulticlassF1Score(n, average="micro")})])
    # every client answers the whole test set: the share of right answers is the mean accuracy
    assert rounds[-1]["val/f1"] == pytest.approx(rounds[-1]["val/accuracy"], abs=1e-6)


def test_training_and_checkpoints_are_not_changed():
    plain, _ = run(FedAvg, 2)
    watched, _ = run(FedAvg, 2, callbacks=[ExtraMetrics(CLASSES)])
    assert all(torch.equal(a, b) for a, b in zip(weights_of(plain).values(), weights_of(watched).values(), strict=True))
    assert plain.state_dict().keys() == watched.state_dict().keys()


def test_a_test_is_logged_too():
    data = make_data()
    module, _ = run(FedAvg, 1, data)
    trainer = make_trainer(1, Federation(), [ExtraMetrics(CLASSES)])
    (metrics,) = trainer.test(module, datamodule=data, verbose=False)
    assert {"test/f1", "test/auroc", "test/calibration"} <= set(metrics)


def test_no_metrics_are_refused():
    with pytest.raises(ConfigurationError, match="`metrics` is empty: name at least one, such as `f1: MulticlassF1Sc"):
        ExtraMetrics({})


@pytest.mark.parametrize("stage", ["val", "test"])
def test_frequent_and_rare_classes_are_reported_apart(stage):
    # clients hold 12, 6 and 3 samples of each of their classes: 12 + 3 of class 0, 12 + 6 of class 1, 6 + 3 of class 2
    data = make_data(per_class=[12, 6, 3])
    extra = LongTailAccuracy(many=16, few=10)
    module, rounds = run(FedAvg, 3, data, callbacks=[extra])
    if stage == "test":
        logged = make_trainer(1, Federation(), [extra], logger=False).test(module, data, verbose=False)[0]
    else:
        logged = rounds[-1]
    probabilities, targets = answers(module, data)
    right = [float((probabilities.argmax(1) == c)[targets == c].float().mean()) for c in range(3)]
    assert logged[f"{stage}/accuracy_medium"] == pytest.approx(right[0])
    assert logged[f"{stage}/accuracy_many"] == pytest.approx(right[1])
    assert logged[f"{stage}/accuracy_few"] == pytest.approx(right[2])


def test_a_group_without_classes_is_left_out():
    _, rounds = run(FedAvg, 1, callbacks=[LongTailAccuracy(many=100, few=13)])
    # two clients hold 6 samples of each class
    assert [key for key in rounds[-1] if key.startswith("val/accuracy_")] == ["val/accuracy_few"]
