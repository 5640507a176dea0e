"""Slots, keepers and names of the roster, on a hand-moved clock and scripted look-ups."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay import roster as roster_module
from relay.endpoints import ListenAddress
from relay.resolver_address import AUTO, ResolverAddress, parse
from relay.roster import (
    DEFAULT_SLOTS,
    FIRST_RETRY_S,
    QUIET_S,
    REFRESH_S,
    Roster,
    RosterError,
    Slots,
    keeper_of,
    look_up_in_thread,
    slots_for,
)
from shared import layout
from shared.board import MAX_SLOTS, Board

LISTEN = ListenAddress("127.0.0.1", 5300)


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.create(workers=3, pools=2, slots=8)
    yield made
    made.close()


@pytest.fixture
def roster(board: Board) -> Roster:
    return Roster(board, [LISTEN, ListenAddress("127.0.0.1", 5301)])


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let a test be a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def addresses(*texts: str) -> list[ResolverAddress]:
    return [parse(text) for text in texts]


def shown(roster: Roster, pool: int = 0) -> list[tuple[int, str, int]]:
    return [(entry.slot, entry.host, entry.port) for entry in roster.entries(pool)]


def keepers(board: Board, count: int) -> list[int]:
    return [board.words[board.at.resolver(slot) + layout.RESOLVER_KEEPER] for slot in range(count)]


def epoch(board: Board) -> int:
    return board.words[layout.HEADER_KEEPERS_EPOCH]


# -- slots -------------------------------------------------------------------------------------


def test_slots_freed_rest_before_their_next_tenant_and_are_clean_then(board: Board) -> None:
    slots = Slots(board)
    assert [slots.take(0.0) for _ in range(8)] == list(range(8))
    board.words[board.at.counters(2, 5) + layout.COUNTER_SENT] = 7
    slots.give_back(5, 100.0)
    with pytest.raises(RosterError, match="all 8 slots"):
        slots.take(100.0 + QUIET_S - 0.1)
    assert slots.take(100.0 + QUIET_S) == 5
    assert board.counter_total(5, layout.COUNTER_SENT) == 0


@pytest.mark.parametrize(
    ("resolvers", "slots"), [(1, DEFAULT_SLOTS), (3000, 6000), (50_000, MAX_SLOTS)]
)
def test_slots_for_grows_with_the_configuration(resolvers: int, slots: int) -> None:
    assert slots_for(resolvers) == slots


# -- membership --------------------------------------------------------------------------------


def test_roster_addresses_are_there_at_once_in_order(roster: Roster) -> None:
    assert roster.set_resolvers(0, addresses("9.9.9.9", "tcp://[2620:fe::fe]:54"), 0.0)
    assert [entry.name for entry in roster.entries(0)] == [
        "udp://9.9.9.9:53",
        "tcp://[2620:fe::fe]:54",
    ]
    assert shown(roster) == [(0, "9.9.9.9", 53), (1, "2620:fe::fe", 54)]
    assert roster.entries(1) == []


def test_roster_resolver_that_stays_keeps_its_slot(roster: Roster) -> None:
    roster.set_resolvers(0, addresses("1.1.1.1", "8.8.8.8"), 0.0)
    assert roster.set_resolvers(0, addresses("9.9.9.9", "8.8.8.8"), 1.0)
    assert shown(roster) == [(2, "9.9.9.9", 53), (1, "8.8.8.8", 53)]
    assert not roster.set_resolvers(0, addresses("9.9.9.9", "8.8.8.8"), 2.0)


def test_roster_same_resolver_in_two_pools_has_two_slots(roster: Roster) -> None:
    roster.set_resolvers(0, addresses("1.1.1.1"), 0.0)
    roster.set_resolvers(1, addresses("1.1.1.1"), 0.0)
    assert shown(roster, 0)[0][0] != shown(roster, 1)[0][0]


def test_roster_without_a_free_slot_leaves_the_rest_out_and_says_so(
    roster: Roster, caplog: pytest.LogCaptureFixture
) -> None:
    roster.set_resolvers(0, addresses(*(f"10.0.0.{n}" for n in range(1, 11))), 0.0)
    assert len(roster.entries(0)) == 8
    assert [bool(member.fault) for member in roster.pools[0]] == [False] * 8 + [True] * 2
    assert "udp://10.0.0.9:53 is left out: all 8 slots" in caplog.text


def test_roster_auto_stands_for_the_resolvers_of_the_device_but_not_the_relay_itself(
    roster: Roster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = tuple(addresses("127.0.0.1:5300", "192.0.2.53", "1.1.1.1"))
    monkeypatch.setattr(roster_module, "device_resolvers", lambda: found)
    roster.set_resolvers(0, [*addresses("1.1.1.1"), AUTO], 0.0)
    assert [entry.host for entry in roster.entries(0)] == ["1.1.1.1", "192.0.2.53"]
    assert "udp://127.0.0.1:5300 is left out" in caplog.text


# -- keepers -----------------------------------------------------------------------------------


def test_keepers_at_start_are_the_home_workers(roster: Roster, board: Board) -> None:
    roster.set_resolvers(0, addresses(*(f"10.0.0.{n}" for n in range(1, 7))), 0.0)
    assert keepers(board, 8) == [0, 1, 2, 0, 1, 2, -1, -1]
    assert epoch(board) > 0


def test_keepers_when_a_worker_dies_only_its_slots_move_and_come_back(
    roster: Roster, board: Board
) -> None:
    roster.set_resolvers(0, addresses(*(f"10.0.0.{n}" for n in range(1, 9))), 0.0)
    before = epoch(board)
    roster.hand_over((0, 2))
    assert keepers(board, 8) == [0, 0, 2, 0, 2, 2, 0, 0]
    assert epoch(board) == before + 1
    roster.hand_over((0, 2))
    assert epoch(board) == before + 1
    roster.hand_over((0, 1, 2))
    assert keepers(board, 8) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert epoch(board) == before + 2


def test_keepers_with_nobody_living_stay(roster: Roster, board: Board) -> None:
    roster.set_resolvers(0, addresses("10.0.0.1", "10.0.0.2"), 0.0)
    before = epoch(board)
    roster.hand_over(())
    assert keepers(board, 2) == [0, 1]
    assert epoch(board) == before


def test_keepers_of_a_resolver_that_joins_are_living_workers(roster: Roster, board: Board) -> None:
    roster.hand_over((2,))
    roster.set_resolvers(0, addresses("10.0.0.1", "10.0.0.2"), 0.0)
    assert keepers(board, 2) == [2, 2]


@given(
    workers=st.integers(1, 16),
    slot=st.integers(0, 5000),
    living=st.sets(st.integers(0, 15), min_size=1),
    dead=st.integers(0, 15),
)
def test_keeper_of_any_slot_lives_and_moves_only_with_its_keeper(
    workers: int, slot: int, living: set[int], dead: int
) -> None:
    there = sorted(index for index in living if index < workers) or [0]
    keeper = keeper_of(slot, workers, there)
    assert keeper in there
    if keeper == slot % workers and dead != keeper:
        rest = [index for index in there if index != dead]
        assert keeper_of(slot, workers, rest) == keeper


def test_keeper_of_the_slots_of_a_dead_worker_are_dealt_evenly() -> None:
    counts = dict.fromkeys((0, 1, 3), 0)
    for slot in range(2, 1200, 4):
        counts[keeper_of(slot, 4, (0, 1, 3))] += 1
    assert counts == {0: 100, 1: 100, 3: 100}


# -- names -------------------------------------------------------------------------------------


class Names:
    """Answers look-ups as the test says, and lets it wait for the next one."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[ResolverAddress, asyncio.Future[list[str]]]]
        self.asked = asyncio.Queue()

    def __call__(self, address: ResolverAddress) -> asyncio.Future[list[str]]:
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((address, future))
        return future


class Watch:
    """A roster that watches its names, and the pools it reports."""

    def __init__(self, roster: Roster) -> None:
        self.names = Names()
        self.changed: asyncio.Queue[int] = asyncio.Queue()
        self.task = asyncio.ensure_future(roster.watch_names(self.changed.put_nowait, self.names))

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def settled(self) -> None:
        """Let everything that is due be done."""
        for _ in range(10):
            await asyncio.sleep(0)


@on_a_loop
async def test_name_joins_when_it_is_resolved(roster: Roster) -> None:
    roster.set_resolvers(0, addresses("1.1.1.1", "udp://dns.example:54"), 0.0)
    assert [entry.host for entry in roster.entries(0)] == ["1.1.1.1"]
    async with Watch(roster) as watch:
        address, future = await watch.names.asked.get()
        assert str(address) == "udp://dns.example:54"
        future.set_result(["192.0.2.7", "2001:db8::7"])
        assert await watch.changed.get() == 0
    entry = roster.entries(0)[1]
    assert (entry.host, entry.port, entry.name) == ("192.0.2.7", 54, "udp://dns.example:54")


@on_a_loop
async def test_name_that_fails_is_tried_again_and_shown(
    roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster_module, "FIRST_RETRY_S", 0.01)
    roster.set_resolvers(0, addresses("dns.example"), 0.0)
    async with Watch(roster) as watch:
        (_, future) = await watch.names.asked.get()
        future.set_exception(OSError(-2, "Name or service not known"))
        (_, future) = await watch.names.asked.get()
        assert roster.pools[0][0].fault == "Name or service not known"
        assert roster.pools[0][0].retry_s == 0.01
        future.set_exception(OSError(-2, "Name or service not known"))
        (_, future) = await watch.names.asked.get()
        assert roster.pools[0][0].retry_s == 0.02
        future.set_result(["192.0.2.7"])
        await watch.changed.get()
    assert roster.pools[0][0].fault == ""


@on_a_loop
async def test_name_asked_again_changes_the_roster_only_when_its_address_is_gone(
    roster: Roster,
) -> None:
    roster.set_resolvers(0, addresses("dns.example"), 0.0)
    member = roster.pools[0][0]
    async with Watch(roster) as watch:
        (_, future) = await watch.names.asked.get()
        future.set_result(["192.0.2.7"])
        await watch.changed.get()
        first = roster.entries(0)

        assert member.due_at > time.monotonic() + REFRESH_S - 10
        for hosts, changed in ((["192.0.2.8", "192.0.2.7"], False), (["192.0.2.8"], True)):
            member.due_at = 0.0
            roster.set_resolvers(0, [member.address], 0.0)  # wakes the watch
            (_, future) = await watch.names.asked.get()
            future.set_result(hosts)
            await watch.settled()
            assert watch.changed.empty() is not changed
            assert (roster.entries(0) == first) is not changed
    assert roster.entries(0)[0].host == "192.0.2.8"
    assert roster.entries(0)[0].slot != first[0].slot


@on_a_loop
async def test_name_that_is_an_address_of_the_pool_already_does_not_join(roster: Roster) -> None:
    roster.set_resolvers(0, addresses("192.0.2.7", "dns.example"), 0.0)
    async with Watch(roster) as watch:
        (_, future) = await watch.names.asked.get()
        future.set_result(["192.0.2.7"])
        await watch.settled()
    assert len(roster.entries(0)) == 1
    assert roster.pools[0][1].fault == "192.0.2.7 is in the pool already"


@on_a_loop
async def test_name_that_is_the_relay_itself_does_not_join(roster: Roster) -> None:
    roster.set_resolvers(0, addresses("udp://localhost:5300"), 0.0)
    async with Watch(roster) as watch:
        (_, future) = await watch.names.asked.get()
        future.set_result(["127.0.0.1"])
        await watch.settled()
    assert roster.entries(0) == []
    assert roster.pools[0][0].fault == "the name has no usable address"


@on_a_loop
async def test_name_resolved_after_it_left_does_not_join(roster: Roster) -> None:
    roster.set_resolvers(0, addresses("dns.example"), 0.0)
    async with Watch(roster) as watch:
        (_, future) = await watch.names.asked.get()
        roster.set_resolvers(0, addresses("1.1.1.1"), 0.0)
        future.set_result(["192.0.2.7"])
        await watch.settled()
    assert [entry.host for entry in roster.entries(0)] == ["1.1.1.1"]


@on_a_loop
async def test_look_up_in_thread_resolves_localhost_and_reports_failure() -> None:
    assert set(await look_up_in_thread(parse("udp://localhost:53"))) <= {"127.0.0.1", "::1"}
    with pytest.raises(OSError, match=r".+"):
        await look_up_in_thread(parse("udp://no-such-name.invalid"))


def test_first_retry_is_short_against_the_refresh() -> None:
    assert FIRST_RETRY_S < REFRESH_S
