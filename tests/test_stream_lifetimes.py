"""Connections to resolvers over time: idle ends, restarts, stalls, and more than one at once."""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic

import pytest

from tests.loopback import (
    HOST,
    Asked,
    Link,
    Shell,
    TcpPeer,
    UdpPeer,
    closed_port,
    on_loop,
    serve_nothing,
    settle,
    until,
)
from tests.rig.wire import query_wire, reply_wire
from workers.transports import framed
from workers.transports.stream_resolver import IdleLifetime

NOERROR = 0


class IdleServer:
    """Answers, and closes a connection that was idle for `idle_s`."""

    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        self._timers: dict[Link, asyncio.TimerHandle] = {}

    def __call__(self, link: Link, wire: bytes) -> None:
        link.say(reply_wire(wire))
        if link in self._timers:
            self._timers[link].cancel()
        loop = asyncio.get_running_loop()
        self._timers[link] = loop.call_later(self.idle_s, link.close)


# -- idle ends ----------------------------------------------------------------------------------


@on_loop
async def test_queries_around_the_idle_end_all_succeed_without_blame() -> None:
    idle_s = 0.4
    async with TcpPeer(IdleServer(idle_s)) as peer, Shell(peer.tcp) as shell:
        for offset_s in (-0.02, -0.002, -0.001, 0.0, 0.0005, 0.001, 0.002, 0.02, -0.001, 0.0):
            assert await shell.ask().rcode() == NOERROR
            await asyncio.sleep(idle_s + offset_s)
            assert await shell.ask().rcode() == NOERROR
        assert shell.blames() == (0, 0)
        assert shell.engine.counters.failures == 0
        assert not any(shell.reasons)


@on_loop
async def test_idle_lifetime_learned_spares_the_next_query_the_end() -> None:
    idle_s = 0.4
    async with TcpPeer(IdleServer(idle_s)) as peer, Shell(peer.tcp) as shell:
        for _ in range(2):
            await shell.ask().reply()
            await until(lambda: peer.links[-1].ended)
            await settle(1)
        limit_s = shell.stream()._idle.limit_s
        assert 0.3 < limit_s < 0.4
        await shell.ask().reply()
        await asyncio.sleep((limit_s + idle_s) / 2)
        assert not peer.links[2].ended
        await shell.ask().reply()
        assert len(peer.links) == 4  # given up before the server closed it
        assert len(peer.links[2].heard) == 1


def test_idle_lifetime_from_ends_at_unlike_times_is_not_learned() -> None:
    lifetime = IdleLifetime()
    for idle_s in (5.0, 0.5, 3.0, 0.1, 0.1, 1.0):
        lifetime.ended_after(idle_s)
        assert lifetime.limit_s == inf


def test_idle_lifetime_from_two_like_ends_is_learned_with_a_margin_and_forgotten() -> None:
    lifetime = IdleLifetime()
    lifetime.ended_after(10.2)
    lifetime.ended_after(10.0)
    assert lifetime.limit_s == 9.75
    now = monotonic()
    assert not lifetime.is_over(now, 9.0)
    assert lifetime.is_over(now, 9.8)
    assert not lifetime.is_over(now + 601.0, 9.8)
    assert lifetime.limit_s == inf


@on_loop
async def test_connection_that_stood_unused_and_ended_under_its_first_query_is_not_blamed() -> None:
    async with TcpPeer() as peer, Shell(peer.tcp) as shell:
        asked = shell.ask()
        for attempt in shell.stream().waiting:
            shell.engine.unsent(monotonic(), attempt)  # nobody waits any more
        assert asked.replies == []
        await until(lambda: shell.stream()._connections)
        await asyncio.sleep(0.25)
        peer.links[0].close()
        assert await shell.ask().rcode() == NOERROR
        assert shell.blames() == (0, 0)


# -- restarts -----------------------------------------------------------------------------------


async def ask_steadily(shell: Shell, rate_qps: float, seconds: float) -> list[tuple[float, Asked]]:
    asked = []
    began = monotonic()
    count = int(rate_qps * seconds)
    for number in range(count):
        delay_s = began + number / rate_qps - monotonic()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        asked.append((monotonic(), shell.ask(query_wire(f"q{number}.t.example"))))
    return asked


@pytest.mark.parametrize("away_s", [0.0, 0.1, 0.6])
def test_restart_of_a_sole_server_under_load_fails_nothing(away_s: float) -> None:
    @on_loop
    async def run() -> None:
        async with TcpPeer() as peer, Shell(peer.tcp) as shell:
            port = peer.address[1]
            load = asyncio.ensure_future(ask_steadily(shell, 500, 2.0))
            await until(lambda: len(peer.heard) > 200)
            peer._server.close()
            for link in peer.links:
                link.transport.abort()
            await asyncio.sleep(away_s)
            async with TcpPeer(port=port) as again:
                asked = await load
                for _, each in asked:
                    assert await each.rcode() == NOERROR
                assert len(again.links) == 1
            assert shell.engine.counters.failures == 0
            assert shell.blames() == (0, 0)

    run()


@on_loop
async def test_restart_of_one_of_two_servers_sends_queries_to_the_other_at_once() -> None:
    async with TcpPeer() as peer, UdpPeer() as other, Shell(peer.tcp, other.udp) as shell:
        for _ in range(20):
            await shell.ask().reply()
        peer._server.close()
        for link in peer.links:
            link.transport.abort()
        for _ in range(50):
            began = monotonic()
            assert await shell.ask().rcode() == NOERROR
            assert monotonic() - began < 0.3
        assert not shell.stream().waiting


@on_loop
async def test_sole_server_that_stays_away_fails_queries_and_is_dialled_seldom() -> None:
    async with TcpPeer() as peer, Shell(peer.tcp) as shell:
        await shell.ask().reply()
        peer._server.close()
        peer.links[0].transport.abort()
        began = monotonic()
        asked = await ask_steadily(shell, 100, 2.0)
        assert shell.stream().dials <= 8
        for _, each in asked:
            assert await each.rcode() != NOERROR
        assert monotonic() - began < 6.0
        assert shell.blames()[1] > 0


@on_loop
async def test_dials_of_a_closed_port_are_paused_between() -> None:
    port = closed_port()
    async with UdpPeer() as other, Shell(("tcp", HOST, port), other.udp) as shell:
        began = monotonic()
        while monotonic() - began < 1.5:
            assert await shell.ask().rcode() == NOERROR
        assert 1 <= shell.stream().dials <= 6


# -- more than one ------------------------------------------------------------------------------


def test_more_connections_are_made_when_one_runs_short_and_no_more_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(framed, "MAX_OPEN", 4)

    @on_loop
    async def run() -> None:
        async with TcpPeer(serve_nothing) as peer, Shell(peer.tcp) as shell:
            asked = [shell.ask(query_wire(f"q{n}.t.example")) for n in range(20)]
            await peer.wait(16)
            await settle()
            assert [len(link.heard) for link in peer.links] == [4, 4, 4, 4]
            assert len(shell.stream().waiting) == 4
            for link in peer.links:
                for wire in link.heard[:4]:
                    link.say(reply_wire(wire))
            # Room comes back: what waits is served without another dial.
            await peer.wait(20)
            assert len(peer.links) == 4
            for link in peer.links:
                for wire in link.heard[4:]:
                    link.say(reply_wire(wire))
            assert [await each.rcode() for each in asked] == [NOERROR] * 20
            assert shell.blames() == (0, 0)

    run()


def test_queries_for_a_full_resolver_go_to_another_that_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(framed, "MAX_OPEN", 1)

    @on_loop
    async def run() -> None:
        async with TcpPeer(serve_nothing) as peer, UdpPeer() as other, Shell(peer.tcp) as shell:
            for _ in range(4):
                shell.ask()
            await peer.wait(4)
            shell.set_roster(peer.tcp, other.udp)
            began = monotonic()
            asked = [shell.ask() for _ in range(20)]
            assert [await each.rcode() for each in asked] == [NOERROR] * 20
            assert monotonic() - began < 0.2
            assert shell.blames() == (0, 0)

    run()


# -- stalls -------------------------------------------------------------------------------------


@on_loop
async def test_connection_that_swallows_writes_is_retired_by_its_oldest_query() -> None:
    def serve(link: Link, wire: bytes) -> None:
        if link is not peer.links[0] or len(peer.links[0].heard) <= 1:
            link.say(reply_wire(wire))

    async with TcpPeer(serve) as peer, Shell(peer.tcp, per_attempt_s=0.5) as shell:
        await shell.ask().reply()
        began = monotonic()
        asked = []
        while len(peer.links) < 2 and monotonic() - began < 2.0:
            asked.append(shell.ask())  # every write would make the connection look alive
            await asyncio.sleep(0.02)
        assert 0.45 < monotonic() - began < 0.75
        replied = [await each.rcode() for each in asked]
        # Only what was as old as per_attempt is lost; the younger are asked again.
        assert replied.count(NOERROR) >= len(replied) - 3
        assert shell.resolver().errors == 0
        await until(lambda: peer.links[0].ended)


@on_loop
async def test_connection_that_leaves_one_query_unanswered_is_kept() -> None:
    def serve(link: Link, wire: bytes) -> None:
        if b"hole" not in wire:
            link.say(reply_wire(wire))

    async with TcpPeer(serve) as peer, Shell(peer.tcp, per_attempt_s=0.3) as shell:
        shell.ask(query_wire("hole.t.example"))
        began = monotonic()
        while monotonic() - began < 0.8:
            assert await shell.ask().rcode() == NOERROR
            await asyncio.sleep(0.01)
        assert len(peer.links) == 1
