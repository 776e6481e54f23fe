import numpy as np
import pytest

from flightning.datamodules.stream import BatchList, RoundPlan, RoundStream, Visit, num_batches, order_batches


@pytest.mark.parametrize(
    ("samples", "batch_size", "drop_last", "expected"),
    [(10, 5, False, 2), (11, 5, False, 3), (11, 5, True, 2), (4, 5, True, 0), (4, 5, False, 1), (0, 5, False, 0)],
)
def test_num_batches(samples, batch_size, drop_last, expected):
    assert num_batches(samples, batch_size, drop_last) == expected


def test_every_pass_holds_every_sample_once():
    batches = order_batches(np.arange(7), 6, 3, False, np.random.default_rng(0))
    for start in (0, 3):
        assert sorted(np.concatenate(batches[start : start + 3])) == list(range(7))


def test_passes_are_shuffled_anew():
    first, second = order_batches(np.arange(50), 2, 50, False, np.random.default_rng(0))
    assert first.tolist() != second.tolist()


def test_drop_last_leaves_out_incomplete_batches_of_each_pass():
    assert {len(b) for b in order_batches(np.arange(7), 5, 3, True, np.random.default_rng(0))} == {3}


def test_steps_may_end_inside_a_pass():
    assert [b.tolist() for b in order_batches(np.arange(5), 2, 2, False, None)] == [[0, 1], [2, 3]]


def test_the_stream_is_client_after_client():
    plan = RoundPlan(4, (Visit(2, 2), Visit(0, 1)))
    stream = RoundStream(plan, lambda plan, visits: (iter([(plan.round_index, v.client)] * v.steps) for v in visits))
    assert list(stream) == [(4, 2), (4, 2), (4, 0)]
    assert len(stream) == 3
    assert plan.cohort == [2, 0]


def test_a_batch_list_can_be_read_again():
    batches = BatchList(2, lambda: iter([1, 2]))
    assert list(batches) == list(batches) == [1, 2]
    assert len(batches) == 2
