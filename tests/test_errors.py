import pytest

from flightning import errors
from flightning.errors import ClientError, ConfigurationError, FlightningError, check_choice, nearest


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n.endswith("Error")])
def test_every_error_is_one_of_ours(name):
    assert issubclass(getattr(errors, name), FlightningError)


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("ConfigurationError", ValueError),
        ("PartitionError", ValueError),
        ("CompositionError", TypeError),
        ("CheckpointError", RuntimeError),
        ("DataNotFoundError", FileNotFoundError),
    ],
)
def test_errors_are_what_python_calls_them_too(name, builtin):
    assert issubclass(getattr(errors, name), builtin)


def test_a_client_error_counts_rounds_from_one_and_keeps_its_parts():
    error = ClientError(7, "on_client_end", 0, ValueError("boom"))
    assert str(error) == "client 7 failed in `on_client_end` of round 1: ValueError: boom"
    assert (error.client, error.stage, error.round_index) == (7, "on_client_end", 0)


@pytest.mark.parametrize(
    ("typed", "meant"), [("fedprox", "FedProx"), ("FedPorx", "FedProx"), ("solo", "SOLO"), ("Fedavgg", "FedAvg")]
)
def test_the_nearest_name_ignores_case(typed, meant):
    assert nearest(typed, ["FedAvg", "FedProx", "SOLO"]).startswith(f"Did you mean `{meant}`")


def test_long_lists_are_cut():
    sentence = nearest("zzz", [f"Name{i:02}" for i in range(30)])
    assert sentence.count("`") == 20
    assert sentence.endswith(", ....")


def test_choices_are_listed():
    with pytest.raises(ConfigurationError, match="`mode='c'` must be one of `a`, `b`"):
        check_choice("mode", "c", ("a", "b"))
    check_choice("mode", "a", ("a", "b"))
