"""Names of the roster: looked up, looked up again, and what that changes for the workers."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from relay import roster as roster_module
from relay.bootstrap import BootstrapError
from relay.endpoints import ListenAddress
from relay.resolver_address import Options, ResolverAddress, parse
from relay.roster import AGAIN_S, FIRST_RETRY_S, LONGEST_RETRY_S, REFRESH_S, Roster, Slots
from relay.ways_out import Proxy
from shared import layout
from shared.board import Board
from tests.test_roster import addresses
from workers.engine.health import State


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.create(workers=3, pools=2, slots=8)
    yield made
    made.close()


@pytest.fixture
def roster(board: Board) -> Roster:
    return Roster(board, [ListenAddress("127.0.0.1", 5300), ListenAddress("127.0.0.1", 5301)])


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let a test be a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Names:
    """Answers look-ups as the test says, and lets it wait for the next one."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[ResolverAddress, asyncio.Future[list[str]]]]
        self.asked = asyncio.Queue()
        self.in_vain: list[int] = []

    def __call__(
        self, pool: int, address: ResolverAddress, in_vain: int
    ) -> asyncio.Future[list[str]]:
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self.in_vain.append(in_vain)
        self.asked.put_nowait((address, future))
        return future

    async def answer(self, *hosts: str) -> None:
        """Wait for the next look-up and answer it."""
        _, future = await self.asked.get()
        future.set_result(list(hosts))


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
        future.set_exception(BootstrapError("no such name"))
        (_, future) = await watch.names.asked.get()
        assert roster.pools[0][0].fault == "no such name"
        assert roster.pools[0][0].retry_s == 0.01
        future.set_exception(BootstrapError("no such name"))
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
    assert roster.pools[0][1].fault == "192.0.2.7 is in the pool already, as udp://192.0.2.7:53"


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


def set_state(roster: Roster, board: Board, state: State) -> None:
    for entry in roster.entries(0):
        board.words[board.at.resolver(entry.slot) + layout.RESOLVER_STATE] = state


@on_a_loop
async def test_name_of_a_faulty_resolver_is_asked_again_soon_and_then_less_often(
    roster: Roster,
) -> None:
    roster.set_resolvers(0, addresses("dot://dns.example"), 0.0)
    member = roster.pools[0][0]
    async with Watch(roster) as watch:
        await watch.names.answer("192.0.2.7")
        await watch.changed.get()
        entries = roster.entries(0)
        roster.look_after({entries[0].slot + 1}, time.monotonic())
        assert member.due_at > time.monotonic() + REFRESH_S - 10  # another one's fault

        soon = time.monotonic()
        for wait_s in (AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S):
            roster.look_after({entries[0].slot}, soon)
            assert member.due_at == pytest.approx(soon + wait_s, abs=1.0)
            member.due_at = 0.0
            roster.look_after(set(), soon)
            roster.look_after({entries[0].slot}, soon)  # wakes the watch
            await watch.names.answer("192.0.2.7")
            await watch.settled()
            soon = time.monotonic()
        assert member.due_at <= soon + LONGEST_RETRY_S
        # The address is the same: nothing changes for the workers.
        assert watch.changed.empty()
        assert roster.entries(0) == entries
        assert watch.names.in_vain == [0, 0, 1, 2]

        roster.look_after(set(), soon)
        member.due_at = 0.0
        roster.set_resolvers(0, [member.address], soon)
        await watch.names.answer("192.0.2.7")
        await watch.settled()
        assert member.due_at > time.monotonic() + REFRESH_S - 10
        assert member.in_vain == 0


@on_a_loop
async def test_name_of_a_resolver_that_is_down_moves_to_its_next_address(
    roster: Roster, board: Board
) -> None:
    roster.set_resolvers(0, addresses("udp://dns.example", "1.1.1.1"), 0.0)
    member = roster.pools[0][0]
    async with Watch(roster) as watch:
        await watch.names.answer("192.0.2.7", "192.0.2.8", "192.0.2.9")
        await watch.changed.get()
        for host in ("192.0.2.8", "192.0.2.9", "192.0.2.7"):
            set_state(roster, board, State.DOWN)
            roster.look_after(set(), time.monotonic())
            member.due_at = 0.0
            roster.set_resolvers(0, [member.address, *addresses("1.1.1.1")], 0.0)
            await watch.names.answer("192.0.2.7", "192.0.2.8", "192.0.2.9")
            await watch.changed.get()
            assert roster.entries(0)[0].host == host
            assert roster.entries(0)[0].more_hosts == ()


@on_a_loop
async def test_name_of_a_stream_gives_workers_all_addresses_and_stays_while_they_are_the_same(
    roster: Roster,
) -> None:
    roster.set_resolvers(0, addresses("https://dns.example/q"), 0.0)
    member = roster.pools[0][0]
    async with Watch(roster) as watch:
        await watch.names.answer("192.0.2.7", "192.0.2.8")
        await watch.changed.get()
        (first,) = roster.entries(0)
        assert (first.host, first.more_hosts) == ("192.0.2.7", ("192.0.2.8",))
        assert (first.server_name, first.path) == ("dns.example", "/q")
        for answer, slots in (
            (("192.0.2.8", "192.0.2.7"), 1),  # in another order
            (("192.0.2.7",), 1),  # fewer
            (("192.0.2.9", "192.0.2.7"), 2),  # one that the workers do not know
        ):
            roster.look_after({entry.slot for entry in roster.entries(0)}, time.monotonic())
            member.due_at = 0.0
            roster.set_resolvers(0, [member.address], 0.0)
            await watch.names.answer(*answer)
            await watch.settled()
            assert (roster.entries(0) == [first]) is (slots == 1)
        (second,) = roster.entries(0)
        assert (second.host, second.more_hosts) == ("192.0.2.9", ("192.0.2.7",))


@on_a_loop
async def test_name_without_an_answer_does_not_hold_up_the_others(roster: Roster) -> None:
    names = [f"dot://n{number}.example" for number in range(8)]
    roster.set_resolvers(0, addresses(*names), 0.0)
    async with Watch(roster) as watch:
        asked = [await watch.names.asked.get() for _ in names]
        for number, (_, future) in enumerate(asked):
            if number != 3:
                future.set_result([f"192.0.2.{number + 1}"])
        for _ in range(7):
            await watch.changed.get()
        assert len(roster.entries(0)) == 7
        asked[3][1].set_exception(BootstrapError("no such name"))
        await watch.settled()
    assert [member.fault for member in roster.pools[0]] == [""] * 3 + ["no such name"] + [""] * 4


@on_a_loop
async def test_name_takes_an_address_that_no_other_resolver_of_the_pool_has(roster: Roster) -> None:
    roster.set_resolvers(0, addresses("192.0.2.7", "dns.example"), 0.0)
    async with Watch(roster) as watch:
        await watch.names.answer("192.0.2.7", "192.0.2.8")
        await watch.changed.get()
    assert [entry.host for entry in roster.entries(0)] == ["192.0.2.7", "192.0.2.8"]


@on_a_loop
async def test_name_of_a_proxy_is_looked_up_and_that_of_its_resolver_is_not(roster: Roster) -> None:
    via = Options(via=Proxy("socks5", "proxy.example", 1080, "u", "p"))
    roster.set_resolvers(0, [parse("dot://dns.example", via), parse("tcp://8.8.8.8", via)], 0.0)
    assert roster.entries(0) == []
    async with Watch(roster) as watch:
        for _ in range(2):
            await watch.names.answer("192.0.2.1", "192.0.2.2")
            await watch.changed.get()
    first, second = roster.entries(0)
    assert (first.host, first.server_name, first.more_hosts) == ("dns.example", "", ())
    assert first.via == second.via == "socks5://u:p@192.0.2.1:1080"
    assert first.name == "dot://dns.example:853 via socks5://proxy.example:1080"
    assert second.host == "8.8.8.8"


def test_first_retry_is_short_against_the_refresh() -> None:
    assert FIRST_RETRY_S < REFRESH_S


@on_a_loop
async def test_roster_lets_in_who_was_left_out_once_slots_have_rested(
    board: Board, roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "_slots", Slots(board, quiet_s=0.05))
    old, new = ([f"192.0.2.{net + host}" for host in range(6)] for net in (0, 100))
    roster.set_resolvers(0, addresses(*old), time.monotonic())
    roster.set_resolvers(0, addresses(*new), time.monotonic())
    assert len(roster.entries(0)) == 2
    async with Watch(roster) as watch, asyncio.timeout(5.0):
        while len(roster.entries(0)) < len(new):
            assert await watch.changed.get() == 0
    assert [entry.host for entry in roster.entries(0)] == new
    assert not any(member.fault for member in roster.pools[0])
