import pytest
import torch

from flightning.algorithms.state import ClientStates, State

CPU = torch.device("cpu")


def make_state(**defaults):
    state = State()
    for name, default in defaults.items():
        state.declare(name, default)
    return state


def test_defaults_are_made_when_first_read():
    made = []
    state = make_state(control=lambda: made.append(1) or torch.zeros(2))
    assert not made
    assert state.control is state.control
    assert len(made) == 1


def test_undeclared_names_are_refused_for_reading_and_writing():
    state = make_state(control=0)
    with pytest.raises(AttributeError, match=r"no state `contrl` was declared; declared: \['control'\]"):
        _ = state.contrl
    with pytest.raises(AttributeError, match="no state `contrl`"):
        state.contrl = 1


def test_only_values_that_were_used_are_kept():
    state = make_state(a=1, b=2)
    assert state.values == {}
    _ = state.a
    assert state.values == {"a": 1}


def test_replacing_forgets_everything_else():
    state = make_state(a=1, b=2)
    state.a = 5
    state.replace({"b": 7})
    assert (state.a, state.b) == (1, 7)


def test_saved_client_states_share_no_memory():
    states, live = ClientStates(), torch.ones(2)
    states.save(3, {"control": {"w": live}})
    live.fill_(9)
    assert states.load(3, CPU)["control"]["w"].tolist() == [1, 1]


def test_a_loaded_state_may_be_replaced_without_touching_the_kept_one():
    states = ClientStates()
    states.save(0, {"n": torch.tensor(1)})
    loaded = states.load(0, CPU)
    loaded["n"] = torch.tensor(2)
    assert states.load(0, CPU)["n"].item() == 1


def test_a_client_without_state():
    states = ClientStates()
    states.save(1, {})
    assert len(states) == 0
    assert 1 not in states
    assert states.load(1, CPU) == {}


def test_clients_are_listed_in_order():
    states = ClientStates()
    for client in (5, 0, 2):
        states.save(client, {"n": 1})
    assert list(states) == [0, 2, 5]


def test_gradients_are_not_kept():
    states = ClientStates()
    states.save(0, {"w": torch.ones(1, requires_grad=True) * 2})
    assert not states.load(0, CPU)["w"].requires_grad


def test_round_trip_through_a_checkpoint():
    states, restored = ClientStates(), ClientStates()
    states.save(4, {"control": torch.arange(3.0)})
    restored.load_state_dict(states.state_dict())
    assert restored.load(4, CPU)["control"].tolist() == [0, 1, 2]
