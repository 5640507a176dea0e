"""Every state of a resolver with everything that can happen in it, at the table and at a keeper."""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from shared import layout, rings
from shared.board import Board
from workers.engine.health import TRANSITIONS, Event, State
from workers.engine.keeper import Keeper
from workers.engine.resolver import NS
from workers.settings import PoolSettings

# Written out by hand from the pool's rules; a pair without an entry stays where it is.
EXPECTED: Final = {
    (State.FRESH, Event.PROVEN_EQUAL): State.IN_USE,
    (State.FRESH, Event.PROVEN_WORSE): State.ASIDE,
    (State.FRESH, Event.FAILED): State.DOWN,
    (State.FRESH, Event.ANSWERED): State.FRESH,
    (State.IN_USE, Event.PROVEN_EQUAL): State.IN_USE,
    (State.IN_USE, Event.PROVEN_WORSE): State.ASIDE,
    (State.IN_USE, Event.FAILED): State.DOWN,
    (State.IN_USE, Event.ANSWERED): State.IN_USE,
    (State.ASIDE, Event.PROVEN_EQUAL): State.IN_USE,
    (State.ASIDE, Event.PROVEN_WORSE): State.ASIDE,
    (State.ASIDE, Event.FAILED): State.DOWN,
    (State.ASIDE, Event.ANSWERED): State.ASIDE,
    (State.DOWN, Event.PROVEN_EQUAL): State.DOWN,
    (State.DOWN, Event.PROVEN_WORSE): State.DOWN,
    (State.DOWN, Event.FAILED): State.DOWN,
    (State.DOWN, Event.ANSWERED): State.FRESH,
}

PAIRS = list(itertools.product(State, Event))
NAMES = [f"{state.name}_{event.name}".lower() for state, event in PAIRS]

BEST: Final = 0  # a resolver in use, 20 ms away, to be compared with
PROVED: Final = 1  # the one under test


class Judged:
    """A keeper of two resolvers, and a worker's counters to feed it with."""

    def __init__(self, state: State) -> None:
        self.now = 1000.0
        self.board = Board.create(1, 1, 2)
        self._set(BEST, State.IN_USE)
        self._set(PROVED, state)
        self.keeper = Keeper(self.board, PoolSettings(name="pool"))
        self.keeper.assign(self.now, [BEST, PROVED], 0)
        self.tick()

    def _set(self, slot: int, state: State) -> None:
        words, base = self.board.words, self.board.at.resolver(slot)
        words[base + layout.RESOLVER_STATE] = state
        words[base + layout.RESOLVER_KEEPER] = 0
        words[base + layout.RESOLVER_LATENCY] = 500_000_000 if state is State.ASIDE else 20_000_000

    @property
    def state(self) -> State:
        base = self.board.at.resolver(PROVED)
        return State(self.board.words[base + layout.RESOLVER_STATE])

    @property
    def since_at(self) -> int:
        base = self.board.at.resolver(PROVED)
        return self.board.words[base + layout.RESOLVER_STATE_SINCE_AT]

    def tick(self) -> None:
        self.now += 0.02
        self.keeper.tick(self.now)

    def answered(self, count: int, latency_s: float) -> None:
        self._add(layout.COUNTER_ANSWERED, count)
        self._add(layout.COUNTER_RTT_SUM, int(count * latency_s * NS))
        words, base = self.board.words, self.board.at.counters(0, PROVED)
        words[base + layout.COUNTER_RTT_MIN] = int(latency_s * NS)
        words[base + layout.COUNTER_RTT_MIN_UNTIL] = int((self.now + 10.0) * NS)

    def failed(self, count: int, counter: int = layout.COUNTER_LOST) -> None:
        self._add(counter, count)

    def judge(self) -> None:
        """Let the keeper compare its resolvers."""
        for _ in range(6):
            self.tick()

    def _add(self, counter: int, count: int) -> None:
        words = self.board.words
        words[self.board.at.counters(0, PROVED) + counter] += count
        rings.push(words, self.board.at.ring(0), PROVED)


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=NAMES)
def test_transitions_of_every_state_and_event_are_as_written_here(
    state: State, event: Event
) -> None:
    assert TRANSITIONS.get((state, event), state) is EXPECTED[state, event]


def test_transitions_list_no_pair_that_changes_nothing() -> None:
    assert all(before is not after for (before, _), after in TRANSITIONS.items())


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=NAMES)
def test_keeper_in_every_state_makes_of_every_event_what_the_table_says(
    state: State, event: Event
) -> None:
    judged = Judged(state)
    expected = EXPECTED[state, event]
    if event is Event.FAILED:
        judged.failed(8)
        judged.tick()
    elif event is Event.ANSWERED:
        judged.answered(1, 0.500)  # an answer alone, before anything is compared
        judged.tick()
    elif state is State.DOWN:
        # The first answer alone would bring it back: only what is known of it may be compared.
        latency_s = 0.020 if event is Event.PROVEN_EQUAL else 0.500
        base = judged.board.at.resolver(PROVED)
        judged.board.words[base + layout.RESOLVER_LATENCY] = int(latency_s * NS)
        judged.judge()
    else:
        judged.answered(8, 0.020 if event is Event.PROVEN_EQUAL else 0.500)
        judged.judge()
    assert judged.state is expected
    assert (judged.since_at != 0) == (expected is not state)


def test_keeper_with_seven_failures_in_a_row_leaves_a_resolver_up() -> None:
    judged = Judged(State.IN_USE)
    judged.failed(7)
    judged.tick()
    assert judged.state is not State.DOWN
    judged.failed(1, layout.COUNTER_ERRORS)
    judged.tick()
    assert judged.state is State.DOWN


def test_keeper_with_an_answer_between_failures_counts_from_there() -> None:
    judged = Judged(State.IN_USE)
    for _ in range(10):
        judged.failed(7)
        judged.tick()
        judged.answered(1, 0.020)
        judged.tick()
    assert judged.state is not State.DOWN


def test_keeper_of_a_fresh_resolver_with_seven_replies_waits_for_the_eighth() -> None:
    judged = Judged(State.FRESH)
    judged.answered(7, 0.020)
    judged.judge()
    assert judged.state is State.FRESH
    judged.answered(1, 0.020)
    judged.judge()
    assert judged.state is State.IN_USE


def test_keeper_of_a_resolver_back_from_down_wants_eight_more_replies() -> None:
    judged = Judged(State.DOWN)
    judged.answered(50, 0.020)
    judged.judge()
    assert judged.state is State.FRESH
    judged.answered(8, 0.020)
    judged.judge()
    assert judged.state is State.IN_USE


def test_keeper_with_a_pools_own_down_after_follows_it() -> None:
    judged = Judged(State.IN_USE)
    judged.keeper = Keeper(judged.board, PoolSettings(name="pool", down_after=3))
    judged.keeper.assign(judged.now, [BEST, PROVED], 0)
    judged.tick()
    judged.failed(2)
    judged.tick()
    assert judged.state is not State.DOWN
    judged.failed(1)
    judged.tick()
    assert judged.state is State.DOWN


def test_keeper_of_a_resolver_set_aside_between_failures_counts_them_all_in_a_row() -> None:
    judged = Judged(State.IN_USE)
    judged.failed(4)
    judged.judge()
    assert judged.state is State.ASIDE
    judged.failed(4)
    judged.judge()
    assert judged.state is State.DOWN
