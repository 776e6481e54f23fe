import numpy as np
import torch

from flightning.datamodules import IID, Digits


def test_real_digits_without_a_download():
    data = Digits(num_clients=4, partition=IID())
    data.setup("fit")
    assert (len(data.train_source), len(data.test_source)) == (1437, 360)
    assert data.train_source.inputs.shape[1:] == data.input_shape == (1, 8, 8)
    assert float(data.train_source.inputs.min()) == 0.0
    assert float(data.train_source.inputs.max()) == 1.0
    assert set(data.train_source.labels) == set(range(data.num_classes))


def test_the_test_set_is_the_same_for_every_seed():
    first, second = (Digits(seed=seed, partition=IID()) for seed in (0, 7))
    for data in (first, second):
        data.setup("fit")
    assert torch.equal(first.test_source.inputs, second.test_source.inputs)
    assert first.partition_hash != second.partition_hash


def test_every_training_sample_belongs_to_one_client():
    data = Digits(num_clients=7)
    data.setup("fit")
    assert sorted(np.concatenate(data.parts)) == list(range(1437))
    assert data.label_counts().sum() == 1437
