import pytest
import torch

from flightning.errors import ConfigurationError
from flightning.functional.aggregation import Reducer, average, flat_items, is_finite, num_bytes


def reduce(rule, values, weights=None):
    reducer = Reducer({"x": rule})
    for client, value in enumerate(values):
        reducer.add(client, 1.0 if weights is None else weights[client], {"x": value})
    return reducer.result()["x"]


def test_mean_weights_are_normalised_over_the_cohort():
    # two of eight parts 1, six of eight parts 5
    assert reduce("mean", [torch.tensor(1.0), torch.tensor(5.0)], [2.0, 6.0]).item() == 4.0


def test_uniform_ignores_weights():
    assert reduce("uniform", [torch.tensor(1.0), torch.tensor(5.0)], [2.0, 6.0]).item() == 3.0


def test_sum_adds_integers_and_floats():
    assert reduce("sum", [torch.tensor(3), torch.tensor(4)]).item() == 7
    assert reduce("sum", [torch.tensor(0.5), torch.tensor(0.25)], [2.0, 6.0]).item() == 0.75


@pytest.mark.parametrize("rule", ["mean", "uniform"])
def test_integer_buffers_are_never_averaged(rule):
    result = reduce(rule, [torch.tensor(3), torch.tensor(10), torch.tensor(4)])
    assert result.item() == 10
    assert result.dtype == torch.int64


def test_stack_is_in_order_of_the_client_whoever_came_first():
    reducer = Reducer({"x": "stack"})
    for client in (5, 1, 3):
        reducer.add(client, 1.0, {"x": torch.tensor(float(client))})
    assert list(reducer.result()["x"]) == [1, 3, 5]


def test_sums_are_in_double_precision():
    # 2^24 + 1 is no float32: a single-precision accumulator would lose every one of the small terms
    values = [torch.tensor(2.0**24)] + [torch.tensor(1.0)] * 8
    assert reduce("sum", values).item() == 2**24 + 8


def test_half_precision_uploads_are_averaged_without_rounding():
    values = [torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(1.0078125, dtype=torch.bfloat16)]
    assert reduce("mean", values).item() == (1.0 + 1.0078125) / 2


@pytest.mark.parametrize("rule", ["mean", "stack"])
def test_tensors_may_be_reused_after_they_were_added(rule):
    reducer, live = Reducer({"x": rule}), torch.tensor([1.0])
    reducer.add(0, 1.0, {"x": {"w": live}})
    live.fill_(9.0)
    kept = reducer.result()["x"]
    assert (kept[0] if rule == "stack" else kept)["w"].item() == 1.0


def test_integer_maxima_do_not_alias_uploads():
    reducer, live = Reducer({"x": "mean"}), torch.tensor(4)
    reducer.add(0, 1.0, {"x": live})
    live.fill_(9)
    assert reducer.result()["x"].item() == 4


def test_one_accumulator_however_many_clients():
    reducer = Reducer({"x": "mean"})
    for client in range(50):
        reducer.add(client, 1.0, {"x": {"w": torch.ones(10)}})
    assert sum(t.numel() for t in reducer.sums.values()) == 10


def test_gradients_are_not_kept():
    result = reduce("mean", [torch.ones(2, requires_grad=True)])
    assert not result.requires_grad


def test_an_upload_without_reduction_is_refused():
    with pytest.raises(ConfigurationError, match=r"upload `y` has no reduction: .*`reductions = {'y': 'mean'}`"):
        Reducer({"x": "mean"}).add(0, 1.0, {"y": torch.ones(1)})


def test_average_equals_the_streamed_mean():
    models = {c: {"w": torch.randn(5, generator=torch.Generator().manual_seed(c))} for c in (2, 7, 4)}
    weights = {2: 3.0, 7: 1.0, 4: 0.5}
    reducer = Reducer({"weights": "mean"})
    for client, model in models.items():
        reducer.add(client, weights[client], {"weights": model})
    assert torch.equal(average(models, weights)["w"], reducer.result()["weights"]["w"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_bad_numbers_are_found_wherever_they_hide(bad, dtype):
    payload = {"weights": {"a": torch.ones(3), "b": torch.ones(1000, dtype=dtype)}, "n": torch.tensor(3)}
    assert is_finite(payload)
    payload["weights"]["b"][777] = bad
    assert not is_finite(payload)


def test_large_but_finite_numbers_are_not_bad():
    assert is_finite({"w": torch.full((100,), 3e38)})


def test_opposite_infinities_do_not_cancel():
    assert not is_finite({"w": torch.tensor([float("inf"), -float("inf")])})


def test_empty_payload():
    assert is_finite({})
    assert num_bytes({}) == 0


def test_bytes_follow_the_type_of_the_numbers():
    payload = {"weights": {"w": torch.ones(3, dtype=torch.float64), "n": torch.tensor(1)}, "h": torch.ones(2).half()}
    assert num_bytes(payload) == 3 * 8 + 8 + 2 * 2
    assert num_bytes(payload, overhead=100) == 36 + 3 * 100


def test_paths_of_nested_payloads():
    assert [p for p, _ in flat_items({"a": {"b": {"c": torch.ones(1)}}})] == [("a", "b", "c")]
