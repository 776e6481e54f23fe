import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from flightning.datamodules.sources import GATHER, GATHER_BYTES, DatasetSource, TensorSource, as_source
from flightning.errors import ConfigurationError

INPUTS, TARGETS = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])


class Words(Dataset):
    """A data set whose samples are dicts of several types."""

    def __init__(self, labels=None):
        if labels is not None:
            self.labels = labels

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"text": "ab"[index % 2], "x": torch.full((3,), float(index)), "y": index % 3}


def test_tensors_become_slices_of_whole_batches():
    first, second = TensorSource(INPUTS, TARGETS).batches([np.array([4, 0]), np.array([5])])
    assert first[0].tolist() == [[8.0, 9.0], [0.0, 1.0]]
    assert first[1].tolist() == [1, 0]
    assert second[0].tolist() == [[10.0, 11.0]]


def test_batches_do_not_depend_on_how_many_are_gathered_at_once():
    size = GATHER // 2 + 1  # two of them do not fit into one gather
    inputs = torch.arange(4.0 * size)
    source = TensorSource(inputs, torch.zeros(len(inputs), dtype=torch.long))
    parts = np.random.default_rng(0).permutation(len(inputs)).reshape(-1, size)
    for part, (batch, _) in zip(parts, source.batches(list(parts)), strict=True):
        assert batch.tolist() == inputs[torch.from_numpy(part)].tolist()


def test_large_samples_are_gathered_in_few_bytes(monkeypatch):
    gathered = []

    class Watched(TensorSource):
        def gather(self, order):
            gathered.append(len(order))
            return super().gather(order)

    size = GATHER_BYTES // 4 // 4  # numbers of a sample of which four fill the limit, but for its target
    source = Watched(torch.zeros(1, size - 2).expand(6, -1), torch.zeros(6, dtype=torch.long))
    batches = [np.array([i]) for i in range(6)]
    assert len(list(source.batches(batches))) == len(list(source.batches(batches))) == 6
    assert gathered == [1, 4, 2, 4, 2]  # one sample tells how large they are


def test_batches_are_copies():
    batch, _ = next(TensorSource(INPUTS.clone(), TARGETS).batches([np.array([0])]))
    batch.fill_(-1)
    assert INPUTS[0].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("data", [(INPUTS, TARGETS), TensorDataset(INPUTS, TARGETS)])
def test_tensors_and_tensor_data_sets_stay_in_memory(data):
    assert isinstance(as_source(data), TensorSource)


def test_real_targets_need_no_classes():
    assert as_source((INPUTS, torch.rand(6))).labels.tolist() == [0] * 6


@pytest.mark.parametrize("workers", [0, 2])
def test_any_data_set_goes_through_a_loader(workers):
    source = as_source(Words(labels=[0, 1, 2, 0, 1, 2]), num_workers=workers)
    assert isinstance(source, DatasetSource)
    first, second = source.batches([np.array([3, 1]), np.array([2])])
    assert first["text"] == ["b", "b"]
    assert first["x"][:, 0].tolist() == [3.0, 1.0]
    assert second["y"].tolist() == [2]


def test_a_collate_function_makes_the_batches():
    source = as_source(Words(), labels=[0] * 6, collate_fn=lambda samples: [s["y"] for s in samples])
    assert next(source.batches([np.array([1, 5])])) == [1, 2]


def test_labels_handed_in_win():
    assert as_source(Words(labels=[0] * 6), labels=[5] * 6).labels.tolist() == [5] * 6


def test_a_data_set_without_labels_is_refused():
    with pytest.raises(ConfigurationError, match=r"`Words` has no labels.*`from_dataset\(..., labels=\[...\]\)`"):
        as_source(Words())


def test_too_few_labels_are_refused():
    with pytest.raises(ConfigurationError, match="6 samples and 2 labels: give one label per sample"):
        as_source(Words(), labels=[0, 1])


def test_labels_that_are_no_numbers_are_refused():
    with pytest.raises(ConfigurationError, match="give integers from 0 to the number of classes - 1"):
        as_source(Words(), labels=list("abcdef"))


def test_inputs_and_targets_of_different_length_are_refused():
    with pytest.raises(ConfigurationError, match="6 inputs and 5 targets: give one target per input"):
        TensorSource(INPUTS, TARGETS[:5])
