"""What the log says of resolvers that come and go."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from relay.resolver_address import parse
from relay.roster import Member
from relay.state_log import MOST_LINES, StateLog
from shared import layout
from shared.board import Board
from workers.engine.health import State
from workers.settings import ResolverEntry


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.create(1, 1, 64)
    yield made
    made.close()


def members(count: int) -> list[Member]:
    made = []
    for slot in range(count):
        address = parse(f"127.0.0.1:{5300 + slot}")
        entry = ResolverEntry(slot, "udp", "127.0.0.1", 5300 + slot, str(address))
        made.append(Member(address, entry))
    return made


def put(board: Board, slot: int, state: State) -> None:
    board.words[board.at.resolver(slot) + layout.RESOLVER_STATE] = state


def test_state_log_of_new_resolvers_says_nothing(board: Board) -> None:
    assert list(StateLog(board).look([("p", members(3))])) == []


def test_state_log_tells_every_change_once(board: Board) -> None:
    log = StateLog(board)
    pools = [("p", members(2))]
    put(board, 0, State.IN_USE)
    put(board, 1, State.DOWN)
    assert list(log.look(pools)) == [
        (logging.INFO, "p: udp://127.0.0.1:5300 is in use"),
        (logging.WARNING, "p: udp://127.0.0.1:5301 is down"),
    ]
    assert list(log.look(pools)) == []
    put(board, 1, State.FRESH)
    assert list(log.look(pools)) == [(logging.INFO, "p: udp://127.0.0.1:5301 answers again")]


def test_state_log_tells_when_the_last_one_goes_and_when_one_is_back(board: Board) -> None:
    log = StateLog(board)
    pools = [("p", members(2))]
    for slot in (0, 1):
        put(board, slot, State.DOWN)
    assert (logging.WARNING, "p: no resolver answers") in list(log.look(pools))
    put(board, 1, State.FRESH)
    assert (logging.INFO, "p: a resolver answers again") in list(log.look(pools))


def test_state_log_of_many_changes_tells_a_few_and_their_number(board: Board) -> None:
    log = StateLog(board)
    for slot in range(40):
        put(board, slot, State.IN_USE)
    lines = list(log.look([("p", members(40))]))
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == (logging.INFO, "30 more resolvers changed their state")
