import torch

from flightning.functional.virtual import virtual_samples


def make(seed=0, **kwargs):
    return virtual_samples(3, 20, kwargs.pop("shape", (1, 8, 8)), torch.Generator().manual_seed(seed), **kwargs)


def test_the_seed_alone_decides():
    assert torch.equal(make()[0], make()[0])
    assert not torch.equal(make()[0], make(seed=1)[0])


def test_samples_of_a_class_are_nearer_to_each_other_than_to_others():
    inputs, labels = make()
    flat = inputs.flatten(1)
    distances = torch.cdist(flat, flat)
    same = labels[:, None] == labels[None, :]
    off = ~torch.eye(len(labels), dtype=torch.bool)
    assert distances[same & off].mean() < distances[~same].mean()


def test_without_spread_a_class_is_its_pattern():
    inputs, labels = make(spread=0.0, shape=(5,))
    assert inputs.shape == (60, 5)
    assert torch.equal(inputs[labels == 1][0], inputs[labels == 1][-1])


def test_images_of_any_size():
    assert make(shape=(3, 9, 5))[0].shape == (60, 3, 9, 5)
