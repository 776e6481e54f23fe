import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from flightning.algorithms import FedMA, FedMAMixin, FedProxMixin
from flightning.callbacks import Federation
from flightning.classifier import Classifier
from flightning.datamodules import FederatedDataModule
from flightning.errors import ConfigurationError
from flightning.nets import SmallCNN
from tests.classification import BatchNormNet, assert_resumes, make_data, make_module, run

GROWING = {"growing": True}
FAR = {"sigma": 0.05, "sigma_0": 2.0, **GROWING}  # units that differ are different units


class Probe(FedMA):
    def on_client_start(self, download):
        super().on_client_start(download)
        shapes = {n: tuple(w.shape) for n, w in self.trainable().items()}
        self.shapes = {**getattr(self, "shapes", {}), (self.round_index, self.client.id): shapes}


def test_the_global_model_grows_and_clients_keep_their_width():
    module, rounds = run(Probe, 3, **FAR)
    original = {n: tuple(w.shape) for n, w in make_module(FedMA).named_parameters()}
    assert all(shapes == original for shapes in module.shapes.values())
    assert rounds[0]["round/units"] > 5
    width = len(module.net.fc1[1].weight)
    assert width == rounds[-1]["round/units"]
    assert module.net.head.weight.shape == (3, width)
    assert module.eval()(torch.randn(2, 4)).shape == (2, 3)


def test_clients_that_are_alike_do_not_grow():
    # one start for all, hardly a step, and a prior against new units: every unit finds its own
    federation = Federation(local_steps=1)
    _, rounds = run(FedMA, 2, federation=federation, independent_start=False, sigma=0.05, gamma=1e-3, **GROWING)
    assert [r["round/units"] for r in rounds] == [5, 5]


def test_bytes_are_those_of_the_original_width():
    _, rounds = run(FedMA, 2, **FAR)
    weights = sum(p.numel() for p in make_module(FedMA).parameters())
    for r in rounds:
        assert r["round/bytes_down"] == 3 * 4 * weights
        assert r["round/bytes_up"] == 3 * 4 * (weights + 3)


def test_rows_of_the_last_layer_are_averaged_by_class():
    # classes (0, 1), (1, 2), (0, 2): the biases of the classes are those of the clients that have them
    class Sent(FedMA):
        def aggregate(self, uploads):
            self.biases = torch.stack([w["net.head.bias"] for w in uploads["weights"].values()])
            super().aggregate(uploads)

    module, _ = run(Sent, 1, data=make_data(per_class=[2, 4, 6]), **FAR)
    counts = torch.tensor([[2.0, 2, 0], [0, 4, 4], [6, 0, 6]])
    expected = (module.biases * counts / counts.sum(0)).sum(0)
    torch.testing.assert_close(module.global_weights["net.head.bias"], expected)


def test_a_client_gets_back_its_own_units():
    class Own(Probe):
        def download(self, client):
            payload = super().download(client)
            if self.server_state.places:
                own = self.server_state.places[client][0]
                assert torch.equal(payload["weights"]["net.fc1.1.weight"], self.global_weights["net.fc1.1.weight"][own])
                assert torch.equal(
                    payload["weights"]["net.head.weight"], self.global_weights["net.head.weight"][:, own]
                )
                self.checked = True
            return payload

    assert run(Own, 2, **FAR)[0].checked


def test_partial_participation_and_batch_norm():
    module, _ = run(FedMA, 4, federation=Federation(participation=2), net=BatchNormNet, **FAR)
    assert all(torch.isfinite(w).all() for w in module.state_dict().values())
    assert len(module.net.fc1[1].running_var) == len(module.net.fc1[0].weight)


def test_resume_is_bit_identical(tmp_path):
    assert_resumes(FedMA, tmp_path, **FAR)


def test_a_grown_checkpoint_is_loaded_at_its_width(tmp_path):
    module, _ = run(FedMA, 2, callbacks=[ModelCheckpoint(dirpath=tmp_path, save_last=True)], **FAR)
    again = make_module(FedMA, seed=3, **FAR)
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=False)
    again.on_load_checkpoint(checkpoint)
    again.load_state_dict(checkpoint["state_dict"])
    assert torch.equal(again.net.head.weight, module.net.head.weight)


def test_buffers_that_do_not_travel_are_refused():
    with pytest.raises(ConfigurationError, match=r"`federation\.buffers=local` would keep statistics of another width"):
        run(FedMA, 1, federation=Federation(buffers="local"), **GROWING)


def test_mixins_that_compare_weights_are_refused():
    class Both(FedMAMixin, FedProxMixin, Classifier): ...

    with pytest.raises(ConfigurationError, match="`FedProxMixin` compares their weights: set `growing: false`"):
        run(Both, 1, **GROWING)
    assert torch.isfinite(run(Both, 2)[0].net.head.weight).all()


def test_options_of_growth_without_growth_are_refused():
    with pytest.raises(ConfigurationError, match=r"`gamma=3\.0` is for layers that grow: set `growing: true`"):
        make_module(FedMA, gamma=3.0)


def test_impossible_priors_are_refused():
    with pytest.raises(ConfigurationError, match="`sweeps=0` must be at least 1"):
        make_module(FedMA, growing=True, sweeps=0)


def test_convolutions_keep_their_layout_when_they_grow():
    module, _ = run(FedMA, 2, net=conv_net, data=make_pictures(), **{**FAR, "sigma": 0.01})
    weight = module.net.conv2[0].weight
    assert weight.shape[0] > 20
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert module.eval()(torch.randn(2, 1, 8, 8)).shape == (2, 3)


def conv_net(input_shape, num_classes):
    return SmallCNN((1, 8, 8), num_classes)


def make_pictures():
    generator = torch.Generator().manual_seed(0)
    draws = [(torch.randn(8, 1, 8, 8, generator=generator), torch.arange(8) % 3) for _ in range(3)]
    return FederatedDataModule.from_clients(draws[:2], draws[2], num_classes=3, batch_size=4)
