"""States are where their clients are trained, at their homes and with the first process; three processes as threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flightning.strategies.spread_states import SpreadClientStates

CPU = torch.device("cpu")
COUNT = 3


class Thread:
    """One of some processes that live in this one."""

    def __init__(self, rank, table, barrier):
        self.rank, self.count, self._table, self._barrier = rank, COUNT, table, barrier
        self.exchanges = 0

    def exchange(self, trees):
        self.exchanges += 1
        self._table[self.rank] = list(trees)
        self._barrier.wait(timeout=20)
        received = [self._table[rank][self.rank] for rank in range(COUNT)]
        self._barrier.wait(timeout=20)
        return received


@pytest.fixture
def processes():
    table, barrier = {}, threading.Barrier(COUNT)
    return [Thread(rank, table, barrier) for rank in range(COUNT)]


@pytest.fixture
def states(processes):
    kept = {client: {"control": torch.tensor(float(client))} for client in range(7)}
    return [SpreadClientStates(p, kept) for p in processes]


def together(states, act):
    with ThreadPoolExecutor(COUNT) as pool:
        list(pool.map(act, states))


def held(states):
    return [{c: s.load(c, CPU)["control"].item() for c in s} for s in states]


HOMES = [{c: float(c) for c in range(7)}, {1: 1.0, 4: 4.0}, {2: 2.0, 5: 5.0}]


def test_the_first_process_holds_all_states_and_others_their_own(states):
    assert held(states) == HOMES


def test_a_state_travels_to_where_its_client_is_trained_and_back(states, processes):
    ranks = {1: 2, 3: 1, 4: 1, 5: 0, 8: 2}  # 1 and 3 are away; 4 is at home, 5 with the first, 8 has no state yet
    together(states, lambda s: s.fetch(ranks))
    assert held(states) == [HOMES[0], {**HOMES[1], 3: 3.0}, {**HOMES[2], 1: 1.0}]

    def train(own):
        for client, rank in ranks.items():
            if rank == own._processes.rank and client != 4:
                own.save(client, {"control": torch.tensor(client + 0.5)})
        own.deliver([client for client, rank in ranks.items() if rank == own._processes.rank])

    together(states, train)
    assert held(states) == [
        {0: 0.0, 1: 1.5, 2: 2.0, 3: 3.5, 4: 4.0, 5: 5.5, 6: 6.0, 8: 8.5},
        {1: 1.5, 4: 4.0},
        {2: 2.0, 5: 5.5, 8: 8.5},
    ]
    assert [p.exchanges for p in processes] == [2, 2, 2]


def test_nothing_is_exchanged_where_everybody_is_at_home(states, processes):
    together(states, lambda s: s.fetch({1: 1, 2: 2, 3: 0, 4: 0}))
    assert [p.exchanges for p in processes] == [0, 0, 0]


def test_a_client_whose_training_went_wrong_keeps_the_state_that_it_had(states):
    together(states, lambda s: s.fetch({1: 2}))
    together(states, lambda s: s.deliver([]))
    assert held(states) == HOMES


def test_a_client_without_a_value_is_no_error(states):
    together(states, lambda s: s.deliver([9] if s._processes.rank == 1 else []))
    assert held(states) == HOMES


def test_a_detour_costs_a_step_unless_the_state_goes_there_anyway(states):
    assert [[states[0].detour(client, rank) for rank in range(COUNT)] for client in (3, 4, 5)] == [
        [0, 1, 1],
        [0, 0, 1],
        [0, 1, 0],
    ]
