import pytest
import torch

from flightning.datamodules.skews import (
    AffineSkew,
    BlurSkew,
    ColourCast,
    ContrastSkew,
    FeatureSkew,
    LabelPermutation,
    NoiseSkew,
    RotationSkew,
)
from flightning.errors import ConfigurationError, PartitionError

ALL = [
    AffineSkew(),
    BlurSkew(),
    ColourCast(),
    ContrastSkew(),
    LabelPermutation(),
    LabelPermutation(kind="full"),
    NoiseSkew(),
    NoiseSkew(tiles=2),
    RotationSkew(),
    RotationSkew(groups=6),
]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(6, 3, 8, 8, generator=generator), torch.randint(10, (6,), generator=generator)


def same(a, b):
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


@pytest.mark.parametrize("skew", ALL, ids=str)
def test_same_seed_and_client_same_samples(skew, batch):
    first, again = (skew.apply(*batch, client=5, num_clients=8, seed=3) for _ in range(2))
    assert same(first, again)


@pytest.mark.parametrize("skew", ALL, ids=str)
def test_shapes_and_types_stay_and_inputs_are_not_written(skew, batch):
    for x in (batch[0], (batch[0] * 255).to(torch.uint8)):
        before = x.clone(), batch[1].clone()
        new_x, new_y = skew.apply(x, batch[1], client=7, num_clients=8, seed=0)
        assert (new_x.shape, new_x.dtype, new_y.shape, new_y.dtype) == (x.shape, x.dtype, batch[1].shape, torch.int64)
        assert same(before, (x, batch[1]))


@pytest.mark.parametrize("skew", ALL, ids=str)
def test_global_generators_are_left_alone(skew, batch):
    state = torch.get_rng_state()
    skew.apply(*batch, client=7, num_clients=8, seed=0)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("skew", ALL, ids=str)
def test_some_client_differs_from_another(skew, batch):
    y = torch.arange(10)
    x = batch[0][[0, 1, 2, 3, 4, 5, 0, 1, 2, 3]]
    assert not same(*(skew.apply(x, y, client=k, num_clients=8, seed=0) for k in (1, 2)))


@pytest.mark.parametrize(
    "skew",
    [BlurSkew(), ColourCast(), ContrastSkew(), NoiseSkew(), RotationSkew(), LabelPermutation(kind="full")],
    ids=str,
)
def test_client_zero_keeps_its_samples(skew, batch):
    assert same(skew.apply(*batch, client=0, num_clients=8, seed=0), batch)


@pytest.mark.parametrize(
    "skew", [BlurSkew(), ColourCast(), ContrastSkew(), RotationSkew(), LabelPermutation()], ids=str
)
def test_clients_of_one_group_share_their_transform(skew, batch):
    # four groups: clients 1 and 5 belong to the same one
    assert same(*(skew.apply(*batch, client=k, num_clients=8, seed=0) for k in (1, 5)))


@pytest.mark.parametrize(
    "skew",
    [
        NoiseSkew(sigma=0.0),
        ColourCast(strength=0.0),
        BlurSkew(sigma=0.0),
        ContrastSkew(strength=0.0),
        AffineSkew(strength=0.0),
        RotationSkew(groups=1),
    ],
    ids=str,
)
def test_neutral_settings_change_nothing(skew, batch):
    assert same(skew.apply(*batch, client=3, num_clients=4, seed=0), batch)


def test_noise_grows_linearly_to_sigma_at_the_last_client():
    # sigma i / (N - 1): clients 2 and 4 of 5 get 0.05 and 0.1
    x, y = torch.zeros(50, 1000), torch.zeros(50)
    spread = [NoiseSkew(0.1).apply(x, y, k, 5, seed=0)[0].std().item() for k in range(5)]
    assert spread == pytest.approx([0.0, 0.025, 0.05, 0.075, 0.1], rel=0.02)


def test_noise_of_a_lone_client_is_none(batch):
    assert same(NoiseSkew().apply(*batch, client=0, num_clients=1, seed=0), batch)


def test_noise_differs_between_clients_and_seeds():
    x, y = torch.zeros(4, 4), torch.zeros(4)
    draws = [NoiseSkew(1.0).apply(x, y, 1, 2, seed=0)[0], NoiseSkew(1.0).apply(x, y, 1, 2, seed=1)[0]]
    assert not torch.equal(*draws)


def test_tiled_noise_needs_images():
    with pytest.raises(PartitionError, match=r"`tiles` = 2 needs images, got .*\(4, 4\): use `tiles` = 1"):
        NoiseSkew(tiles=2).apply(torch.zeros(4, 4), torch.zeros(4), 1, 2, seed=0)


@pytest.mark.parametrize(("client", "tile"), [(1, (0, 1)), (2, (1, 0)), (3, (1, 1)), (4, (0, 0))])
def test_tiled_noise_is_in_the_tile_of_the_client(client, tile):
    noisy, _ = NoiseSkew(tiles=2).apply(torch.zeros(3, 1, 4, 4), torch.zeros(3), client, 5, seed=0)
    changed = noisy.ne(0).all(dim=0)[0].view(2, 2, 2, 2).all(dim=3).all(dim=1)  # of each tile (row, column)
    assert changed.nonzero().tolist() == [list(tile)]
    assert int(noisy.ne(0).sum()) == 3 * 4


def test_tints_are_spread_evenly_over_the_colour_circle():
    # gains 1 + 0.4 cos(2 pi (hue - channel / 3)) with hues 0, 1/3, 2/3: red, green and blue, the others at cos = -1/2
    x, y = torch.ones(1, 3, 1, 1), torch.zeros(1)
    tints = [ColourCast(strength=0.4).apply(x, y, client, 8, seed=0)[0].flatten().tolist() for client in (5, 6, 7)]
    assert tints == [pytest.approx(row) for row in ([1.4, 0.8, 0.8], [0.8, 1.4, 0.8], [0.8, 0.8, 1.4])]


def test_labels_beyond_the_classes_are_refused():
    with pytest.raises(PartitionError, match=r"Client 2 has the label 12, but `num_classes` = 10: set"):
        LabelPermutation().apply(torch.zeros(1), torch.tensor([12]), 2, 4, seed=0)


def test_label_permutation_uses_its_table():
    rule = LabelPermutation(num_classes=5, groups=3, kind="full")
    _, y = rule.apply(torch.zeros(5), torch.arange(5), client=4, num_clients=6, seed=9)
    assert y.tolist() == rule.permutations(9)[1].tolist()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NoiseSkew(sigma=-1), "`sigma` must be >= 0, got -1"),
        (lambda: NoiseSkew(tiles=0), "`tiles` must be >= 1, got 0"),
        (lambda: RotationSkew(groups=0), "`groups` must be >= 1, got 0"),
        (lambda: ColourCast(strength=2), r"`strength` must lie in \[0, 1\], got 2"),
        (lambda: ContrastSkew(strength=-0.5), r"`strength` must lie in \[0, 1\], got -0.5"),
        (lambda: BlurSkew(sigma=-1), "`sigma` must be >= 0, got -1"),
        (lambda: AffineSkew(strength=-1), "`strength` must be >= 0, got -1"),
        (lambda: LabelPermutation(num_classes=1), "`num_classes` must be >= 2, got 1"),
        (lambda: LabelPermutation(kind="none"), "`kind` must be one of swap, full, got 'none'"),
    ],
)
def test_bad_settings_are_refused_at_once(build, message):
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_skews_are_built_from_yaml_by_name():
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_subclass_arguments(FeatureSkew, "skew")
    parsed = parser.parse_args(["--skew", "RotationSkew", "--skew.groups", "3"])
    assert repr(parser.instantiate_classes(parsed).skew) == "RotationSkew(groups=3)"
