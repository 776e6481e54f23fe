import pytest
import torch

from flightning.algorithms import FedAvg, SiloBN
from flightning.callbacks import Federation
from tests.classification import BatchNormNet, assert_resumes, assert_same, make_data, make_module, run
from tests.problems import fit

MEAN, VAR = "net.fc1.1.running_mean", "net.fc1.1.running_var"


def assert_measured(module, data):
    """A client that never trained has the statistics of its samples under the global weights."""
    unseen = next(k for k in range(3) if k not in module.client_states)
    data.setup("fit")
    inputs = data.train_source.inputs[data.parts[unseen]]
    hidden = inputs @ module.global_weights["net.fc1.0.weight"].T + module.global_weights["net.fc1.0.bias"]
    # evaluation batches of 8: 12 samples are a batch of 8 and one of 4; a plain mean over the batches of more than one
    parts = [h for h in hidden.split(8) if len(h) > 1]
    measured = module.personal_weights(unseen)
    torch.testing.assert_close(measured[MEAN], torch.stack([h.mean(0) for h in parts]).mean(0))
    torch.testing.assert_close(measured[VAR], torch.stack([h.var(0) for h in parts]).mean(0))


def test_without_batch_norm_it_is_fedavg():
    assert_same(run(SiloBN)[0], run(FedAvg)[0])


def test_statistics_stay_and_affine_parameters_travel():
    module, _ = run(SiloBN, net=BatchNormNet)
    first, second = (module.personal_weights(k) for k in (0, 1))
    assert set(first) == {MEAN, VAR, "net.fc1.1.num_batches_tracked"}
    assert not torch.equal(first[MEAN], second[MEAN])
    assert not torch.equal(module.global_weights["net.fc1.1.weight"], torch.ones(5))


def test_parameters_are_those_of_fedavg():
    # running statistics do not enter training, so sharing them or not changes no parameter
    silobn, fedavg = (run(cls, 3, net=BatchNormNet)[0] for cls in (SiloBN, FedAvg))
    for name, _ in silobn.named_parameters():
        assert torch.equal(silobn.global_weights[name], fedavg.global_weights[name])


def test_client_that_never_trained_measures_its_own_statistics():
    module, _ = run(SiloBN, 1, net=BatchNormNet, federation=Federation(participation=1))
    assert_measured(module, make_data())
    assert module.net.fc1[1].momentum == pytest.approx(0.1)


def test_statistics_are_measured_anew_under_new_global_weights():
    module, _ = run(SiloBN, 2, net=BatchNormNet, federation=Federation(participation=1))
    assert_measured(module, make_data())


def test_last_batch_of_one_is_left_out_of_the_measurement():
    nine = {"classes": ((0,), (1,), (2,)), "per_class": 9}  # evaluation batches of 8 and 1
    module, _ = run(SiloBN, 1, make_data(**nine), Federation(participation=1), net=BatchNormNet)
    assert_measured(module, make_data(**nine))


def test_measures_in_the_precision_of_the_trainer():
    module = make_module(SiloBN, net=BatchNormNet)
    fit(module, make_data(), 1, Federation(participation=1), precision="bf16-true")
    unseen = next(k for k in range(3) if k not in module.client_states)
    assert torch.isfinite(module.personal_weights(unseen)[MEAN]).all()


def test_bytes_are_those_of_fedavg_without_statistics():
    _, silobn = run(SiloBN, 1, net=BatchNormNet)
    _, fedavg = run(FedAvg, 1, net=BatchNormNet)
    for key in ("round/bytes_up", "round/bytes_down"):
        assert fedavg[0][key] - silobn[0][key] == 3 * (10 * 4 + 8)


def test_resume(tmp_path):
    assert_resumes(SiloBN, tmp_path, net=BatchNormNet)
