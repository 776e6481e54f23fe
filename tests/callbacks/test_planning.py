"""Who trains whom is worked out once per round."""

import pytest

from flightning.algorithms import FedAvg
from flightning.algorithms.state import ClientStates
from flightning.callbacks import planning
from flightning.callbacks.planning import Planner
from flightning.strategies.assignment import assign
from flightning.strategies.processes import Processes
from tests.classification import make_data, make_module

PAIR = Processes(0, 2, "clients")


@pytest.fixture
def calls(monkeypatch):
    made = []

    def count(*args):
        made.append(args)
        return assign(*args)

    monkeypatch.setattr(planning, "assign", count)
    return made


@pytest.fixture
def planner():
    data = make_data()
    data.prepare_data()
    data.setup("fit")
    return Planner(make_module(FedAvg), data, 1, None, 1.0, "fixed", "samples", 0)


def test_clients_are_dealt_once_per_round(planner, calls):
    for round_index in (0, 0, 1):
        plan = planner.plan(round_index)
        planner.part(plan, PAIR)
        planner.ranks(plan, PAIR)
    assert len(calls) == 2


def test_clients_are_dealt_anew_where_their_states_live_elsewhere(planner, calls):
    planner.part(planner.plan(0), PAIR)
    planner.module.client_states = ClientStates()
    planner.part(planner.plan(0), PAIR)
    assert len(calls) == 2


def test_a_plan_is_made_anew_where_clients_have_other_samples(planner):
    before = planner.plan(0)
    planner.data.sizes = planner.data.sizes.copy()
    planner.data.sizes[0] = 0
    assert planner.refresh()
    assert sorted(before.cohort) == [0, 1, 2]
    assert sorted(planner.plan(0).cohort) == [1, 2]
