import pytest
import torch

from flightning.datamodules import HorizontalFlip, PadCrop, RandomRotation
from flightning.errors import ConfigurationError

PICTURES = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_crops_are_windows_of_the_padded_picture():
    padded = torch.nn.functional.pad(PICTURES, [2] * 4, mode="reflect")
    windows = [padded[:, :, i : i + 4, j : j + 4] for i in range(5) for j in range(5)]
    for sample, crop in enumerate(PadCrop(2)(PICTURES, generator())):
        assert any(torch.equal(crop, window[sample]) for window in windows)


def test_every_sample_is_cropped_at_its_own_place():
    same = PICTURES[:1].expand(64, -1, -1, -1)
    crops = PadCrop(2)(same, generator())
    assert len({tuple(c.flatten().tolist()) for c in crops}) > 10


@pytest.mark.parametrize("padding", [1, 2])
def test_every_place_is_equally_likely(padding):
    same = PICTURES[:1].expand(5000, -1, -1, -1)
    crops = PadCrop(padding, mode="replicate")(same, generator())
    _, counts = torch.unique(crops.flatten(1), dim=0, return_counts=True)
    places = (2 * padding + 1) ** 2
    assert len(counts) == places
    assert (counts - 5000 / places).abs().max() < 5 * (5000 / places) ** 0.5


def test_constant_mode_pads_with_zeros():
    crops = PadCrop(4, mode="constant")(torch.ones(200, 1, 4, 4), generator())
    assert crops.flatten(1).sum(1).min() == 0


def test_a_constant_border_has_its_colour():
    crops = PadCrop(4, mode="constant", fill=[-1.0, 5.0])(torch.zeros(200, 2, 4, 4), generator())
    assert crops[:, 0].unique().tolist() == [-1.0, 0.0]
    assert torch.equal(crops[:, 1], -5 * crops[:, 0])


def angles(count, degrees):
    """What `RandomRotation` draws."""
    return (2 * torch.rand(count, generator=generator()) - 1) * degrees


@pytest.mark.parametrize("shape", [(32, 32), (20, 31)])
def test_rotation_is_that_of_torchvision(shape):
    from torchvision.transforms.functional import rotate

    pictures = torch.rand(8, 3, *shape, generator=generator(1)) + 0.1
    turned = RandomRotation(40, fill=[0.0, -1.0, 2.0])(pictures, generator())
    expected = [rotate(p, float(a), fill=[0.0, -1.0, 2.0]) for p, a in zip(pictures, angles(8, 40), strict=True)]
    # pixels half-way between two may fall to either side
    assert (turned == torch.stack(expected)).float().mean() > 0.99


def test_every_sample_turns_by_its_own_angle_within_the_bounds():
    drawn = angles(4000, 15)
    assert drawn.abs().max() <= 15
    assert drawn.mean() == pytest.approx(0, abs=5 * 15 / 3**0.5 / 4000**0.5)
    same = torch.rand(1, 1, 16, 16, generator=generator(1)).expand(64, -1, -1, -1)
    assert len({tuple(p.flatten().tolist()) for p in RandomRotation(45)(same, generator())}) > 30


def test_channels_move_together():
    stacked = PICTURES[:, :1].expand(-1, 3, -1, -1)
    crop = PadCrop(2)(stacked, generator())
    assert torch.equal(crop[:, 0], crop[:, 2])


def test_flip_probability():
    pictures = torch.tensor([[[[0.0, 1.0]]]]).expand(4000, -1, -1, -1)
    flipped = HorizontalFlip(0.25)(pictures, generator())[:, 0, 0, 0].mean()
    assert flipped == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 4000) ** 0.5)


def test_zero_probability_changes_nothing():
    assert torch.equal(HorizontalFlip(0.0)(PICTURES, generator()), PICTURES)


@pytest.mark.parametrize("transform", [PadCrop(1), HorizontalFlip(0.5), RandomRotation(30)])
def test_all_randomness_comes_from_the_generator(transform):
    before = torch.get_rng_state()
    assert torch.equal(transform(PICTURES, generator(3)), transform(PICTURES, generator(3)))
    assert torch.equal(torch.get_rng_state(), before)


def test_refusals():
    with pytest.raises(ConfigurationError, match=r"`padding=0` must be at least 1: leave `PadCrop` out"):
        PadCrop(0)
    with pytest.raises(ConfigurationError, match=r"`probability=1.5` must lie between 0 and 1"):
        HorizontalFlip(1.5)
    with pytest.raises(ConfigurationError, match=r"`degrees=0` must be above 0 .*: leave `RandomRotation` out"):
        RandomRotation(0)
