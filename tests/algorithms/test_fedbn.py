import torch

from flightning.algorithms import FedAvg, FedBN
from flightning.callbacks import Federation
from tests.classification import BatchNormNet, assert_resumes, assert_same, run

LOCAL = ("net.fc1.1.weight", "net.fc1.1.bias", "net.fc1.1.running_mean", "net.fc1.1.running_var")


def test_without_batch_norm_it_is_fedavg():
    assert_same(run(FedBN)[0], run(FedAvg)[0])


def test_batch_norm_differs_between_clients_and_stays_as_it_was_at_the_server():
    module, _ = run(FedBN, net=BatchNormNet)
    first, second = (module.personal_weights(k) for k in (0, 1))
    assert {*LOCAL, "net.fc1.1.num_batches_tracked"} == set(first)
    for name in LOCAL:
        assert not torch.equal(first[name], second[name])
    assert torch.equal(module.global_weights["net.fc1.1.running_var"], torch.ones(5))


def test_one_round_averages_the_rest_as_fedavg_does():
    # in the first round clients start alike, so all shared tensors must be FedAvg's
    fedbn, fedavg = (run(cls, 1, net=BatchNormNet)[0] for cls in (FedBN, FedAvg))
    for name in ("net.fc1.0.weight", "net.fc1.0.bias", "net.head.weight", "net.head.bias"):
        assert torch.equal(fedbn.global_weights[name], fedavg.global_weights[name])


def test_client_goes_on_from_its_own_batch_norm():
    module, _ = run(FedBN, 1, net=BatchNormNet)
    kept = module.personal_weights(2)["net.fc1.1.num_batches_tracked"]
    assert kept == 6  # 12 samples in batches of 4, 2 epochs
    module, _ = run(FedBN, 3, net=BatchNormNet)
    assert module.personal_weights(2)["net.fc1.1.num_batches_tracked"] == 18


def test_bytes_are_those_of_fedavg_without_batch_norm():
    # BatchNorm1d(5): 2 x 5 affine + 2 x 5 statistics of 4 bytes and one counter of 8 bytes stay at home, 3 clients
    _, fedbn = run(FedBN, 1, net=BatchNormNet)
    _, fedavg = run(FedAvg, 1, net=BatchNormNet)
    for key in ("round/bytes_up", "round/bytes_down"):
        assert fedavg[0][key] - fedbn[0][key] == 3 * (20 * 4 + 8)


def test_unsampled_clients_keep_their_state():
    module, _ = run(FedBN, 1, net=BatchNormNet, federation=Federation(participation=1))
    assert len(module.client_states) == 1


def test_accuracy_is_the_mean_over_clients():
    _, rounds = run(FedBN, 2, net=BatchNormNet)
    assert "val/accuracy_std" in rounds[-1]


def test_resume(tmp_path):
    assert_resumes(FedBN, tmp_path, net=BatchNormNet)
