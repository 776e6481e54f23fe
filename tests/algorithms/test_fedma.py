import pytest
import torch
from torch import nn

from flightning.algorithms import FedAvg, FedCDMixin, FedMA, FedMAMixin
from flightning.callbacks import Federation
from flightning.classifier import Classifier
from flightning.errors import CompositionError, ConfigurationError
from flightning.functional.matching import chain_layers, match_rows, reorder, rows_of
from flightning.nets import Net
from tests.classification import BatchNormNet, assert_resumes, assert_same, make_data, make_module, run

COMMON = {"independent_start": False}


class Probe(FedMA):
    def aggregate(self, uploads):
        self.uploads = uploads
        super().aggregate(uploads)


class Permuted(FedMA):
    """Every client shuffles its hidden units before it sends them."""

    def on_client_end(self):
        upload = super().on_client_end()
        generator = torch.Generator().manual_seed(self.client.id)
        weights = upload["weights"]
        for index, layer in enumerate(self.chain[:-1]):
            order = torch.randperm(len(weights[layer.weight]), generator=generator)
            weights = reorder(weights, self.chain, index, order)
        return {**upload, "weights": weights}


class Skip(Net):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.fc1, self.fc2 = nn.Linear(input_shape[0], 5), nn.Linear(5, 5)
        self.head = nn.Linear(5, num_classes)

    def features(self, x):
        h = torch.relu(self.fc1(x))
        return h + torch.relu(self.fc2(h))


def test_clients_that_stay_in_order_are_fedavg():
    fedavg, _ = run(FedAvg)
    module, rounds = run(FedMA, head="samples", **COMMON)
    assert [r["round/permuted_units"] for r in rounds] == [0, 0, 0]
    for name, weight in fedavg.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], weight, rtol=1e-6, atol=1e-8)


def test_shuffled_clients_give_the_function_of_ordered_ones():
    # one round: the clients begin in the same order, and each sends its units in another
    options = {"head": "samples", "data": make_data(per_class=[6, 8, 10]), **COMMON}
    ordered, _ = run(FedMA, 1, **options)
    module, rounds = run(Permuted, 1, **options)
    assert rounds[0]["round/permuted_units"] > 0
    x = torch.randn(7, 4)
    torch.testing.assert_close(module.eval()(x), ordered.eval()(x), rtol=1e-5, atol=1e-6)


def test_units_are_in_the_order_of_the_client_with_most_samples():
    class Kept(Permuted, Probe): ...

    module, _ = run(Kept, 1, data=make_data(per_class=[6, 10, 8]), **COMMON)
    layer = module.chain[0]
    orders = [
        match_rows(rows_of(sent, layer), rows_of(module.global_weights, layer)).tolist()
        for sent in module.uploads["weights"].values()
    ]
    assert [order == sorted(order) for order in orders] == [False, True, False]


def test_that_client_is_the_one_with_most_samples_however_clients_are_weighted():
    class Kept(Permuted, Probe): ...

    federation = Federation(local_epochs=2, weighting="uniform")
    module, _ = run(Kept, 1, data=make_data(per_class=[6, 10, 8]), federation=federation, **COMMON)
    layer = module.chain[0]
    orders = [
        match_rows(rows_of(sent, layer), rows_of(module.global_weights, layer)).tolist()
        for sent in module.uploads["weights"].values()
    ]
    assert [order == sorted(order) for order in orders] == [False, True, False]


def test_one_client_keeps_its_weights():
    data = make_data(classes=((0, 1, 2),))
    assert_same(run(FedMA, data=data, **COMMON)[0], run(FedAvg, data=data)[0])


def test_rows_of_the_last_layer_are_averaged_by_class():
    # classes (0, 1), (1, 2), (0, 2): row 0 is the mean of clients 0 and 2, by their samples of class 0
    data = make_data(per_class=[2, 4, 6])
    module, rounds = run(Probe, 1, data=data, **COMMON)
    bias = torch.stack([w["net.head.bias"] for w in module.uploads["weights"].values()])
    counts = torch.tensor([[2.0, 2, 0], [0, 4, 4], [6, 0, 6]])
    assert torch.equal(torch.stack(list(module.uploads["class_counts"].values())), counts)
    expected = (bias * counts / counts.sum(0)).sum(0)
    torch.testing.assert_close(module.global_weights["net.head.bias"], expected)
    assert rounds[0]["round/extra_bytes_up"] == 3 * 4 * 3  # a count per client and class
    assert rounds[0]["round/extra_bytes_down"] == 0


def test_clients_draw_their_own_start_in_the_first_round_only():
    class Starts(FedMA):
        def on_client_start(self, download):
            super().on_client_start(download)
            self.starts = {
                **getattr(self, "starts", {}),
                (self.round_index, self.client.id): self.net.head.weight.clone(),
            }

    module, rounds = run(Starts, 2)
    assert not torch.equal(module.starts[0, 0], module.starts[0, 1])
    assert torch.equal(module.starts[1, 0], module.starts[1, 1])
    assert rounds[0]["round/permuted_units"] > 0


def test_matching_helps_clients_that_started_apart():
    # the same data on both clients, other starts: the matched mean fits better than the plain one
    data = make_data(classes=((0, 1, 2), (0, 1, 2)), per_class=60, size=6, batch_size=16)
    options = {"size": 6, "data": data, "federation": Federation(local_epochs=30), "net": wide_net}

    class Unmatched(FedMA):
        def aggregate(self, uploads):
            self.chain = self.chain[-1:]
            super().aggregate(uploads)

    matched = run(FedMA, 1, **options)[1][0]["val/loss"]
    assert matched < run(Unmatched, 1, **options)[1][0]["val/loss"]


def wide_net(input_shape, num_classes):
    from flightning.nets import MLP

    return MLP(input_shape, num_classes, hidden=(32,))


def test_batch_norm_goes_with_the_units():
    options = {"head": "samples", "net": BatchNormNet, "data": make_data(per_class=8), **COMMON}
    ordered, _ = run(FedMA, 1, **options)
    module, _ = run(Permuted, 1, **options)
    x = torch.randn(7, 4)
    torch.testing.assert_close(module.eval()(x), ordered.eval()(x), rtol=1e-5, atol=1e-6)
    assert (module.net.fc1[1].running_var > 0).all()
    assert len(chain_layers(module.net)[0].vectors) == 5


def test_partial_participation():
    module, _ = run(FedMA, 3, federation=Federation(participation=2))
    assert all(torch.isfinite(w).all() for w in module.state_dict().values())


def test_resume_is_bit_identical(tmp_path):
    assert_resumes(FedMA, tmp_path)


def test_weights_that_travel_apart_are_refused():
    with pytest.raises(CompositionError, match=r"`Both` cannot combine `FedMAMixin` and `FedCDMixin`: .*whole models"):

        class Both(FedMAMixin, FedCDMixin, Classifier):
            def __init__(self, gamma=None, **kwargs):
                super().__init__(gamma=gamma, **kwargs)


def test_skip_connections_are_refused():
    with pytest.raises(ConfigurationError, match=r"the layers of `Skip` do not run one after the other"):
        run(FedMA, 1, net=Skip)


def test_unknown_head_is_refused():
    with pytest.raises(ConfigurationError, match="`head='mean'` must be one of `class_counts`"):
        make_module(FedMA, head="mean")
