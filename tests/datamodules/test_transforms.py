import pytest
import torch

from flightning.datamodules import HorizontalFlip, PadCrop
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


@pytest.mark.parametrize("transform", [PadCrop(1), HorizontalFlip(0.5)])
def test_all_randomness_comes_from_the_generator(transform):
    before = torch.get_rng_state()
    assert torch.equal(transform(PICTURES, generator(3)), transform(PICTURES, generator(3)))
    assert torch.equal(torch.get_rng_state(), before)


def test_refusals():
    with pytest.raises(ConfigurationError, match=r"`padding=0` must be at least 1: leave `PadCrop` out"):
        PadCrop(0)
    with pytest.raises(ConfigurationError, match=r"`probability=1.5` must lie between 0 and 1"):
        HorizontalFlip(1.5)
