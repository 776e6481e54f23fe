"""Every net: parameter counts of the papers, blocks that compose to the forward pass, refusals."""

import numpy as np
import pytest
import torch
from torch import nn

import flightning.nets as nets
from flightning.errors import ConfigurationError
from flightning.nets import (
    MLP,
    CharLSTM,
    FedDynCNN,
    LogisticRegression,
    McMahanCNN,
    Net,
    ResNet50,
    SentimentLSTM,
    SimpleCNN,
    SmallCNN,
)

COUNTS = [
    (McMahanCNN, (1, 28, 28), 10, {}, 1_663_370),
    (McMahanCNN, (3, 28, 28), 10, {}, 1_664_970),
    (McMahanCNN, (3, 32, 32), 10, {}, 2_156_490),
    (SimpleCNN, (3, 32, 32), 10, {}, 62_006),
    (SimpleCNN, (1, 28, 28), 10, {}, 44_426),
    (SimpleCNN, (3, 32, 32), 10, {"projection": 256}, 92_626),
    (SimpleCNN, (1, 28, 28), 10, {"batch_norm": True}, 44_426 + 2 * (6 + 16)),
    (MLP, (1, 28, 28), 10, {}, 199_210),
    (FedDynCNN, (3, 32, 32), 10, {}, 797_962),
    (LogisticRegression, (60,), 10, {}, 610),
    # 10*25+10 + 20*10*25+20 + 320*50+50 + 50*10+10
    (SmallCNN, (1, 28, 28), 10, {}, 21_840),
    # 10*9+10 + 20*10*9+20 + 20*2*2*50+50 + 510
    (SmallCNN, (1, 8, 8), 10, {}, 6_480),
    (ResNet50, (3, 32, 32), 100, {}, 23_705_252),
    (ResNet50, (3, 32, 32), 100, {"projection": 256}, 28_246_948),
    (SentimentLSTM, (25,), 2, {}, 1_098_242),
    # characters 80*8, first layer 4*256*(8+256+2), second layer 4*256*(256+256+2), head 256*80+80
    (CharLSTM, (80,), 80, {}, 819_920),
]

SMALL = [
    (McMahanCNN, (1, 28, 28), {"hidden": 16}),
    (McMahanCNN, (1, 8, 8), {}),
    (SimpleCNN, (3, 32, 32), {}),
    (SimpleCNN, (1, 16, 20), {"projection": 12}),
    (SimpleCNN, (1, 16, 20), {"batch_norm": True}),
    (MLP, (1, 8, 8), {}),
    (MLP, (30,), {"hidden": [7], "projection": 5}),
    (LogisticRegression, (1, 8, 8), {}),
    (FedDynCNN, (3, 32, 32), {}),
    (SmallCNN, (1, 28, 28), {}),
    (SmallCNN, (1, 8, 8), {}),
    (SmallCNN, (1, 28, 28), {"kernel_size": 3}),
    (ResNet50, (3, 8, 8), {"norm": "group"}),
    (ResNet50, (3, 8, 8), {"norm": "group", "projection": 5}),
    (ResNet50, (3, 8, 8), {"norm": "group", "granularity": "bottlenecks"}),
    (SentimentLSTM, (9,), {"vocabulary": 20, "embedding_size": 6, "hidden_size": 8}),
    (CharLSTM, (9,), {"vocabulary": 20, "hidden_size": 8, "padding_index": 0}),
]


def build(cls, shape, options, classes=4):
    torch.manual_seed(0)
    return cls(shape, classes, **options)


def batch(shape, size=3):
    generator = torch.Generator().manual_seed(1)
    if len(shape) == 1 and shape[0] < 10:
        return torch.randint(20, (size, *shape), generator=generator)
    return torch.randn(size, *shape, generator=generator)


@pytest.mark.parametrize(("cls", "shape", "classes", "options", "count"), COUNTS)
def test_parameter_count_is_the_papers(cls, shape, classes, options, count):
    net = cls(shape, classes, **options)
    assert sum(p.numel() for p in net.parameters() if p.requires_grad) == count


def test_resnet_has_53120_float_statistics_with_batch_norm_and_none_with_group_norm():
    batch_norm = ResNet50((3, 32, 32), 100)
    assert sum(b.numel() for b in batch_norm.buffers() if b.is_floating_point()) == 53_120
    group_norm = ResNet50((3, 32, 32), 100, norm="group")
    assert list(group_norm.buffers()) == []
    assert sum(p.numel() for p in group_norm.parameters()) == 23_705_252


@pytest.mark.parametrize(("cls", "shape", "options"), SMALL)
def test_composition_of_blocks_is_the_forward_pass(cls, shape, options):
    net, x = build(cls, shape, options), batch(shape)
    out = x.flatten(1) if cls is LogisticRegression else x
    for _, block in net.blocks:
        out = block(out)
    assert torch.equal(out, net(x))


@pytest.mark.parametrize(("cls", "shape", "options"), SMALL)
def test_blocks_run_in_their_order_under_their_module_names(cls, shape, options):
    net, seen = build(cls, shape, options), []
    modules = dict(net.named_modules())
    for name, block in net.blocks:
        assert modules[name] is block
        block.register_forward_hook(lambda *_, name=name: seen.append(name))
    net(batch(shape))
    assert seen == [name for name, _ in net.blocks]


@pytest.mark.parametrize(("cls", "shape", "options"), SMALL)
def test_features_are_the_input_of_the_head(cls, shape, options):
    net, x, inputs = build(cls, shape, options), batch(shape), []
    net.head.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    net(x)
    assert isinstance(net.head, nn.Linear)
    assert net.blocks[-1][1] is net.head
    assert [m for m in net.modules() if isinstance(m, nn.Linear)][-1] is net.head
    assert torch.equal(net.features(x), inputs[0])


@pytest.mark.parametrize(("cls", "shape", "options"), SMALL)
def test_batch_of_one_keeps_its_batch_dimension(cls, shape, options):
    net = build(cls, shape, options)
    assert net(batch(shape, size=1)).shape == (1, 4)
    assert net.features(batch(shape, size=1)).shape == (1, net.head.in_features)


@pytest.mark.parametrize(("cls", "shape", "options"), [case for case in SMALL if len(case[1]) == 3])
def test_channels_last_gives_the_same_output(cls, shape, options):
    net, x = build(cls, shape, options).double(), batch(shape).double()
    expected = net(x)
    net = net.to(memory_format=torch.channels_last)
    torch.testing.assert_close(net(x.to(memory_format=torch.channels_last)), expected)


@pytest.mark.parametrize(("cls", "shape", "options"), SMALL)
def test_no_activation_is_in_place(cls, shape, options):
    assert not any(getattr(module, "inplace", False) for module in build(cls, shape, options).modules())


@pytest.mark.parametrize(("cls", "shape", "options"), SMALL)
def test_every_trainable_parameter_gets_a_gradient(cls, shape, options):
    net = build(cls, shape, options)
    net(batch(shape)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters() if p.requires_grad)


def test_every_exported_net_is_covered():
    covered = {cls.__name__ for cls, *_ in SMALL} | {"Net"}
    assert covered == set(nets.__all__)


def test_head_can_be_replaced_in_its_place():
    # FedCD: C * M = 10 * 3 rows on the 256 values of the projection head, without bias: 92 626 - 2 570 + 7 680
    net = SimpleCNN((3, 32, 32), 10, projection=256)
    net.head = nn.Linear(256, 30, bias=False)
    assert sum(p.numel() for p in net.parameters()) == 97_736
    assert net.blocks[-1] == ("head", net.head)
    assert net(batch((3, 32, 32))).shape == (3, 30)


def test_blocks_of_the_fedrl_nets():
    assert [n for n, _ in McMahanCNN((1, 28, 28), 10).blocks] == ["conv1", "conv2", "fc1", "head"]
    assert [n for n, _ in SimpleCNN((3, 32, 32), 10).blocks] == ["conv1", "conv2", "fc1", "fc2", "head"]
    assert [n for n, _ in SimpleCNN((3, 32, 32), 10, projection=8).blocks][-2:] == ["projection", "head"]


@pytest.mark.parametrize(("granularity", "count"), [("stages", 6), ("bottlenecks", 18), ("convs", 50)])
def test_resnet_granularity(granularity, count):
    net = ResNet50((3, 8, 8), 10, norm="group", granularity=granularity)
    assert len(net.blocks) == count
    seen = []
    for name, block in net.blocks:
        block.register_forward_hook(lambda *_, name=name: seen.append(name))
    net(batch((3, 8, 8)))
    assert seen == [name for name, _ in net.blocks]


def test_resnet_pools_32_pixels_to_4_before_the_mean():
    net, shapes = ResNet50((3, 32, 32), 10, norm="group"), []
    for name in ("stem", "layer1", "layer2", "layer3", "layer4.2.relu", "layer4"):
        net.get_submodule(name).register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape[1:])))
    net(batch((3, 32, 32), size=1))
    assert shapes == [(64, 32, 32), (256, 32, 32), (512, 16, 16), (1024, 8, 8), (2048, 4, 4), (2048,)]


def test_pooling_before_relu_is_relu_before_pooling():
    block, x = SmallCNN((1, 28, 28), 10).conv1, batch((1, 28, 28))
    assert torch.equal(block(x), nn.functional.max_pool2d(block[0](x).relu(), 2))


def test_padding_on_the_right_does_not_change_the_features():
    net = build(SentimentLSTM, (9,), {"vocabulary": 20, "embedding_size": 6, "hidden_size": 8})
    short = torch.tensor([[3, 5, 7]])
    torch.testing.assert_close(net(torch.tensor([[3, 5, 7, 0, 0]])), net(short))
    assert not torch.allclose(net(torch.tensor([[3, 5, 0, 0, 0]])), net(short))
    assert net(torch.zeros(1, 4, dtype=torch.long)).isfinite().all()


def test_without_padding_index_the_last_step_counts():
    net = build(CharLSTM, (9,), {"vocabulary": 20})
    x = batch((9,))
    assert torch.equal(net.features(x), net.encoder.lstm(net.encoder.embedding(x))[0][:, -1])


def test_given_embeddings_are_copied_and_frozen(tmp_path):
    table = torch.arange(12.0).view(4, 3)
    np.save(tmp_path / "vectors.npy", table.numpy())
    for source in (table, tmp_path / "vectors.npy", str(tmp_path / "vectors.npy")):
        net = SentimentLSTM((5,), 2, vocabulary=4, embedding_size=3, embeddings=source)
        weight = net.encoder.embedding.weight
        assert torch.equal(weight, table)
        assert not weight.requires_grad
        assert weight.data_ptr() != table.data_ptr()
    assert SentimentLSTM((5,), 2, freeze=False).encoder.embedding.weight.requires_grad


def test_dropout_acts_in_training_only():
    for net in (SmallCNN((1, 8, 8), 4, dropout=0.5), MLP((1, 8, 8), 4, dropout=0.5)):
        x = batch((1, 8, 8))
        assert not torch.equal(net(x), net(x))
        net.eval()
        assert torch.equal(net(x), net(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SimpleCNN((1, 8, 8), 10), r"at least 16x16 pixels, got `input_shape` \(1, 8, 8\).*`SmallCNN`"),
        (lambda: FedDynCNN((3, 15, 32), 10), r"at least 16x16 pixels.*\(3, 15, 32\)"),
        (lambda: McMahanCNN((1, 2, 2), 10), r"at least 4x4 pixels.*Use `MLP`"),
        (lambda: McMahanCNN((64,), 10), r"images of shape \(channels, height, width\), got `input_shape` \(64,\)"),
        (lambda: ResNet50((64,), 10), r"`ResNet50` reads images"),
        (lambda: CharLSTM((1, 8, 8), 10), r"token indices of shape \(length,\), got `input_shape` \(1, 8, 8\)"),
        (lambda: SmallCNN((1, 16, 16), 10, kernel_size=9), "`kernel_size` 9 must be >= 1 and fit twice"),
        (lambda: SmallCNN((1, 16, 16), 10, kernel_size=0), "`kernel_size` 0 must be >= 1"),
        (lambda: SmallCNN((1, 8, 8), 10, dropout=1.0), r"`dropout` must be in \[0, 1\), got 1.0"),
        (lambda: MLP((4,), 10, dropout=-0.1), r"`dropout` must be in \[0, 1\), got -0.1"),
        (lambda: MLP((4,), 10, hidden=[]), r"got \[\]. Use `LogisticRegression`"),
        (lambda: MLP((4,), 10, hidden=[3, 0]), r"each of size >= 1, got \[3, 0\]"),
        (lambda: MLP((4,), 10, projection=0), "`projection` must be >= 1, got 0"),
        (lambda: MLP((4,), 0), "`num_classes` must be >= 1, got 0"),
        (lambda: MLP((4, 0), 2), r"every size of `input_shape` must be >= 1, got \(4, 0\)"),
        (lambda: ResNet50((3, 8, 8), 10, norm="layer"), "`norm` must be one of .*'layer'"),
        (lambda: ResNet50((3, 8, 8), 10, granularity="pixels"), "`granularity` must be one of .*'pixels'"),
        (lambda: SentimentLSTM((5,), 2, embeddings=torch.zeros(3, 2)), r"`embeddings` has shape \(3, 2\)"),
        (lambda: SentimentLSTM((5,), 2, embeddings="no/such.npy"), "`embeddings` names no file: no/such.npy"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_net_of_ones_own_needs_only_its_layers():
    class Own(Net):
        def __init__(self, input_shape, num_classes):
            super().__init__(input_shape, num_classes)
            self.fc1 = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Tanh())
            self.head = nn.Linear(3, num_classes)
            self.unused = nn.Linear(3, 3)

    net = Own((1, 8, 8), 5)
    assert net(batch((1, 8, 8))).shape == (3, 5)


@pytest.mark.parametrize(
    ("cls", "arguments", "read"),
    [
        (MLP, ["--net.hidden=[7,5]"], lambda net: [net.fc1[1].out_features, net.fc2[0].out_features] == [7, 5]),
        (MLP, ["--net.projection=3"], lambda net: net.head.in_features == 3),
        (SmallCNN, ["--net.kernel_size=1"], lambda net: net.conv1[0].kernel_size == (1, 1)),
        (ResNet50, ["--net.norm=group"], lambda net: not list(net.buffers())),
        (SentimentLSTM, ["--net.padding_index=null"], lambda net: net.encoder.padding_index is None),
    ],
)
def test_options_reach_the_net_from_the_command_line(cls, arguments, read):
    from jsonargparse import ArgumentParser

    shape = [5] if cls is SentimentLSTM else [1, 8, 8]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Net, "net")
    path = f"--net={cls.__module__}.{cls.__name__}"
    config = parser.parse_args([path, f"--net.input_shape={shape}", "--net.num_classes=4", *arguments])
    assert read(parser.instantiate_classes(config).net)
