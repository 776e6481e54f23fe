import math

import numpy as np
import pytest
import torch

from flightning.errors import PartitionError
from flightning.functional.feature_skew import (
    add_noise,
    affine_warp,
    colour_cast,
    fcube,
    gaussian_blur,
    label_permutations,
    rotate,
    scale_contrast,
    shifted_fraction,
    tile_mask,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(*shape):
    return torch.rand(shape, generator=generator(1))


def test_noise_has_the_standard_deviation_asked_for():
    # 40 000 draws: the standard deviation is known to 0.35 % (one standard error)
    x = images(100, 400)
    assert (add_noise(x, 0.3, generator()) - x).std().item() == pytest.approx(0.3, rel=0.015)


def test_noise_stays_inside_its_mask():
    x = images(3, 1, 4, 4)
    mask = tile_mask(4, 4, 2, 3)
    changed = (add_noise(x, 1.0, generator(), mask) != x).any(dim=0)[0]
    assert torch.equal(changed, mask)


def test_tiles_cover_the_image_once():
    total = sum(tile_mask(5, 7, 3, index).int() for index in range(9))
    assert torch.equal(total, torch.ones(5, 7, dtype=torch.int))


def test_noise_on_bytes_is_on_the_unit_scale_and_clipped():
    x = torch.full((1, 10_000), 128, dtype=torch.uint8)
    noisy = add_noise(x, 0.1, generator())
    assert noisy.dtype == torch.uint8
    # 0.1 of the unit scale is 25.5 steps
    assert noisy.float().std().item() == pytest.approx(25.5, rel=0.05)
    assert add_noise(torch.full((1, 100), 255, dtype=torch.uint8), 0.1, generator()).max() == 255


def test_other_types_are_refused():
    with pytest.raises(PartitionError, match=r"needs float or uint8 inputs, got torch.int64"):
        add_noise(torch.zeros(2, 2, dtype=torch.long), 0.1, generator())


@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_quarter_turns_are_exact(quarters):
    x = images(2, 3, 5, 5)
    assert torch.equal(rotate(x, 90 * quarters), torch.rot90(x, quarters, dims=(-2, -1)))


def test_other_turns_go_the_same_way_as_quarter_turns():
    x = images(2, 3, 6, 6)
    torch.testing.assert_close(rotate(x, 90.001), rotate(x, 90), atol=1e-3, rtol=0)


def test_warping_by_a_quarter_turn_matches_the_exact_turn():
    # rotation matrix of 90 degrees counter-clockwise on (right, down)
    x = images(2, 3, 6, 6)
    warped = affine_warp(x, torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
    torch.testing.assert_close(warped, torch.rot90(x, 1, dims=(-2, -1)), atol=1e-5, rtol=0)


def test_turning_an_oblong_image_keeps_its_proportions():
    # a disc of ones in an oblong image survives any turn
    rows, columns = torch.meshgrid(torch.arange(21) - 10, torch.arange(31) - 15, indexing="ij")
    disc = ((rows**2 + columns**2) < 36).float()[None, None]
    assert (rotate(disc, 90) - disc).abs().mean() < 0.02


def test_turning_there_and_back_keeps_smooth_images():
    x = gaussian_blur(torch.nn.functional.pad(images(1, 1, 12, 12), (10, 10, 10, 10)), 3.0)
    back = rotate(rotate(x, 30), -30)
    assert (back - x).abs().max() < 0.03


def test_turns_without_a_channel_dimension():
    assert rotate(images(2, 4, 4), 45).shape == (2, 4, 4)


def test_images_are_required():
    with pytest.raises(PartitionError, match=r"needs images, got a batch of shape \(2, 3\): use `NoiseSkew`"):
        rotate(torch.zeros(2, 3), 45)


def test_empty_batches_pass_through():
    empty = torch.zeros(0, 3, 4, 4)
    for changed in (
        rotate(empty, 30),
        gaussian_blur(empty, 1.0),
        scale_contrast(empty, 0.5),
        colour_cast(empty, [1, 1, 1]),
    ):
        assert changed.shape == empty.shape


def test_blur_of_a_point_is_the_kernel():
    point = torch.zeros(1, 1, 15, 15)
    point[0, 0, 7, 7] = 1.0
    blurred = gaussian_blur(point, 1.0)[0, 0]
    assert blurred.sum().item() == pytest.approx(1.0, abs=1e-5)
    # neighbours on a row of a normal kernel of one pixel differ by exp(-1/2)
    assert (blurred[7, 8] / blurred[7, 7]).item() == pytest.approx(math.exp(-0.5), rel=1e-4)
    assert (blurred[8, 8] / blurred[7, 7]).item() == pytest.approx(math.exp(-1.0), rel=1e-4)


def test_contrast_keeps_the_mean_and_scales_the_spread():
    x = images(4, 3, 5, 5)
    flat = scale_contrast(x, 0.25)
    torch.testing.assert_close(flat.mean(dim=(1, 2, 3)), x.mean(dim=(1, 2, 3)))
    torch.testing.assert_close(flat.std(dim=(1, 2, 3)), 0.25 * x.std(dim=(1, 2, 3)))


def test_colour_cast_needs_as_many_channels_as_gains():
    with pytest.raises(PartitionError, match=r"images with 3 channels, got .*\(2, 1, 4, 4\): use `ContrastSkew`"):
        colour_cast(images(2, 1, 4, 4), [1.0, 1.0, 1.0])


@pytest.mark.parametrize("kind", ["swap", "full"])
def test_permutations_are_permutations(kind):
    table = label_permutations(7, 5, np.random.default_rng(0), kind)
    assert np.array_equal(np.sort(table, axis=1), np.tile(np.arange(7), (5, 1)))


def test_swaps_are_of_different_pairs():
    table = label_permutations(10, 4, np.random.default_rng(0))
    changed = [frozenset(np.flatnonzero(row != np.arange(10)).tolist()) for row in table]
    assert [len(pair) for pair in changed] == [2] * 4
    assert len(set().union(*changed)) == 8


def test_first_group_of_full_permutations_keeps_its_labels():
    table = label_permutations(10, 3, np.random.default_rng(0), "full")
    assert table[0].tolist() == list(range(10))
    assert (table[1:] != np.arange(10)).any(axis=1).all()


def test_shifted_fraction_of_swaps():
    # every group swaps 2 of 10 equally frequent classes: a fifth of all samples
    labels = np.tile(np.arange(10), 8)
    table = label_permutations(10, 4, np.random.default_rng(0))
    parts = [np.arange(10 * k, 10 * k + 10) for k in range(8)]
    assert shifted_fraction(labels, parts, table) == pytest.approx(0.2)


def test_fcube_clients_are_opposite_octants_with_both_labels():
    x, y, ids = fcube(4000, np.random.default_rng(0))
    assert x.dtype == np.float32
    assert np.array_equal(y, x[:, 0] > 0)
    for client in range(4):
        signs = {tuple(row) for row in np.sign(x[ids == client]).astype(int).tolist()}
        first, second = signs
        assert first == tuple(-s for s in second)
        assert y[ids == client].mean() == pytest.approx(0.5, abs=0.06)
