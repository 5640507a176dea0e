"""The TCP side towards resolvers, on real sockets: connections that come, serve, stall and go."""

from __future__ import annotations

import asyncio
import os
import socket
from time import monotonic

import psutil
import pytest

from tests.loopback import (
    HOST,
    Link,
    Shell,
    TcpPeer,
    UdpPeer,
    closed_port,
    family_of,
    on_loop,
    serve_nothing,
    settle,
    until,
)
from tests.rig.wire import (
    NXDOMAIN,
    SERVFAIL,
    query_wire,
    reply_of_size,
    reply_wire,
)
from workers.transports import dial, framed, stream_resolver

NOERROR = 0


def is_about(wire: bytes, label: bytes) -> bool:
    return label in wire


# -- asking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [HOST, "::1"], ids=["IPv4", "IPv6"])
def test_stream_resolver_over_either_family_answers(host: str) -> None:
    @on_loop
    async def run() -> None:
        async with TcpPeer(host=host) as peer, Shell(peer.tcp) as shell:
            asked = shell.ask(query_wire("AbC.t.example", message_id=0))
            reply = await asked.reply()
            assert reply == b"\0\0" + reply_wire(peer.heard[0])[2:]
            assert peer.heard[0][2:] == asked.wire[2:]

    run()


@on_loop
async def test_stream_resolver_is_dialled_only_when_there_is_a_query() -> None:
    async with TcpPeer() as peer, Shell(peer.tcp) as shell:
        await settle()
        assert peer.links == []
        await shell.ask().reply()
        assert len(peer.links) == 1


@on_loop
async def test_stream_resolver_gets_queries_pipelined_over_one_connection() -> None:
    async with TcpPeer(serve_nothing) as peer, Shell(peer.tcp) as shell:
        asked = [shell.ask() for _ in range(50)]
        wires = await peer.wait(50)
        assert len(peer.links) == 1
        assert len({wire[:2] for wire in wires}) == 50
        for wire in wires:
            peer.links[0].say(reply_wire(wire))
        assert [await each.rcode() for each in asked] == [NOERROR] * 50


@on_loop
async def test_stream_resolver_answering_out_of_order_answers_each_client_its_own() -> None:
    async with TcpPeer(serve_nothing) as peer, Shell(peer.tcp) as shell:
        asked = [shell.ask(query_wire(f"q{n}.t.example", message_id=7)) for n in range(20)]
        for wire in reversed(await peer.wait(20)):
            peer.links[0].say(reply_wire(wire))
        for each in asked:
            reply = await each.reply()
            assert reply[:2] == b"\0\7"
            assert reply[12 : len(each.wire)] == each.wire[12:]


@on_loop
async def test_stream_resolver_sending_single_bytes_is_understood() -> None:
    async def dribble(link: Link, wire: bytes) -> None:
        reply = reply_wire(wire)
        for byte in len(reply).to_bytes(2, "big") + reply:
            link.transport.write(bytes((byte,)))
            await asyncio.sleep(0)

    tasks = []
    serve = lambda link, wire: tasks.append(asyncio.ensure_future(dribble(link, wire)))  # noqa: E731
    async with TcpPeer(serve) as peer, Shell(peer.tcp) as shell:
        assert await shell.ask().rcode() == NOERROR
        await asyncio.gather(*tasks)


@on_loop
async def test_stream_resolver_joining_replies_in_one_segment_is_understood() -> None:
    async with TcpPeer(serve_nothing) as peer, Shell(peer.tcp) as shell:
        asked = [shell.ask() for _ in range(10)]
        replies = [reply_wire(wire) for wire in await peer.wait(10)]
        peer.links[0].transport.write(
            b"".join(len(reply).to_bytes(2, "big") + reply for reply in replies)
        )
        assert [await each.rcode() for each in asked] == [NOERROR] * 10


@on_loop
async def test_stream_resolver_with_the_largest_reply_passes_it() -> None:
    serve = lambda link, wire: link.say(reply_of_size(wire, 65_535))  # noqa: E731
    async with TcpPeer(serve) as peer, Shell(peer.tcp) as shell:
        assert len(await shell.ask(stream=True).reply()) == 65_535


@on_loop
async def test_stream_resolver_sending_rubbish_before_its_answer_is_waited_for() -> None:
    async with TcpPeer(serve_nothing) as peer, Shell(peer.tcp) as shell:
        asked = shell.ask()
        (wire,) = await peer.wait(1)
        (link,) = peer.links
        for rubbish in (b"", b"\0", wire, os.urandom(50), reply_wire(wire)[:20]):
            link.say(rubbish)
        await settle()
        assert asked.replies == []
        link.say(reply_wire(wire, rcode=NXDOMAIN))
        assert await asked.rcode() == NXDOMAIN
        assert shell.dropped("reply_malformed") + shell.dropped("reply_unmatched") == 5


# -- connections that close ---------------------------------------------------------------------


@on_loop
async def test_connection_closed_while_idle_costs_no_query() -> None:
    async with TcpPeer() as peer, Shell(peer.tcp) as shell:
        for count in range(1, 4):
            assert await shell.ask().rcode() == NOERROR
            peer.links[-1].close()
            await until(lambda: not shell.stream()._connections)
            assert len(peer.links) == count
        assert shell.blames() == (0, 0)
        assert not any(shell.reasons)


@pytest.mark.parametrize("how", ["close", "abort"])
def test_connection_closed_as_a_query_is_on_its_way_costs_no_query(how: str) -> None:
    @on_loop
    async def run() -> None:
        async with TcpPeer() as peer, Shell(peer.tcp) as shell:
            for _ in range(3):
                assert await shell.ask().rcode() == NOERROR
                # The query leaves before the end of the connection has been seen.
                getattr(peer.links[-1].transport, how)()
                asked = shell.ask()
                assert await asked.rcode() == NOERROR
            assert shell.blames() == (0, 0)

    run()


@on_loop
async def test_connection_closed_with_queries_open_has_them_sent_again_on_a_fresh_one() -> None:
    def serve(link: Link, wire: bytes) -> None:
        if len(peer.links) > 1 or is_about(wire, b"first"):
            link.say(reply_wire(wire))

    async with TcpPeer(serve) as peer, Shell(peer.tcp) as shell:
        assert await shell.ask(query_wire("first.t.example")).rcode() == NOERROR
        asked = [shell.ask() for _ in range(10)]
        await peer.wait(11)
        peer.links[0].close()
        assert [await each.rcode() for each in asked] == [NOERROR] * 10
        assert len(peer.links) == 2
        assert len(peer.links[1].heard) == 10
        assert shell.blames() == (0, 0)
        assert shell.engine.counters.retries == 0


@on_loop
async def test_connection_closed_before_it_ever_answered_fails_its_queries() -> None:
    serve = lambda link, wire: link.close()  # noqa: E731
    async with TcpPeer(serve) as peer, UdpPeer() as other, Shell(peer.tcp, other.udp) as shell:
        began = monotonic()
        assert await shell.ask().rcode() == NOERROR
        assert monotonic() - began < 0.7
        assert shell.blames() == (0, 1)
        assert len(peer.links) == 1
        await until(lambda: shell.reasons)
        assert "closed the connection" in shell.reasons[-1]


@on_loop
async def test_query_sent_again_in_vain_fails_and_does_not_circle() -> None:
    def serve(link: Link, wire: bytes) -> None:
        if is_about(wire, b"first"):
            link.say(reply_wire(wire))
        else:
            link.close()

    async with TcpPeer(serve) as peer, Shell(peer.tcp) as shell:
        await shell.ask(query_wire("first.t.example")).reply()
        assert await shell.ask().rcode() == SERVFAIL
        assert len(peer.links) == 2
        assert shell.blames() == (0, 1)


@on_loop
async def test_query_that_ends_every_connection_is_sent_again_once_only() -> None:
    # A server that answers all but one question, and drops the connection over that one.
    def serve(link: Link, wire: bytes) -> None:
        if is_about(wire, b"poison"):
            asyncio.get_running_loop().call_later(0.03, link.close)
        else:
            link.say(reply_wire(wire))

    async with TcpPeer(serve) as peer, Shell(peer.tcp) as shell:
        await shell.ask().reply()
        poison = shell.ask(query_wire("poison.t.example"))

        def sendings() -> int:
            return len([wire for wire in peer.heard if is_about(wire, b"poison")])

        while not poison.replies and sendings() <= 2:
            assert await shell.ask().rcode() == NOERROR
        assert sendings() == 2
        assert await poison.rcode() == SERVFAIL


@on_loop
async def test_connection_that_stalled_is_retired_and_its_queries_asked_again() -> None:
    def serve(link: Link, wire: bytes) -> None:
        if len(peer.links) > 1 or is_about(wire, b"first"):
            link.say(reply_wire(wire))

    async with TcpPeer(serve) as peer, Shell(peer.tcp, per_attempt_s=0.25) as shell:
        await shell.ask(query_wire("first.t.example")).reply()
        shell.ask()
        await peer.wait(2)
        began = monotonic()
        await until(lambda: monotonic() - began > 0.3)
        assert await shell.ask().rcode() == NOERROR
        assert len(peer.links) == 2
        await until(lambda: peer.links[0].ended)


@on_loop
async def test_connection_that_is_merely_idle_is_kept() -> None:
    async with TcpPeer() as peer, Shell(peer.tcp, per_attempt_s=0.1) as shell:
        await shell.ask().reply()
        began = monotonic()
        await until(lambda: monotonic() - began > 0.3)
        await shell.ask().reply()
        assert len(peer.links) == 1


@on_loop
async def test_server_that_takes_queries_and_never_answers_is_counted_as_losing() -> None:
    async with (
        TcpPeer(serve_nothing) as peer,
        UdpPeer() as other,
        Shell(peer.tcp, other.udp, per_attempt_s=0.25) as shell,
    ):
        assert await shell.ask().rcode() == NOERROR
        await until(lambda: shell.resolver().lost == 1, limit_s=2.0)
        assert shell.blames() == (1, 0)


# -- dialling -----------------------------------------------------------------------------------


@on_loop
async def test_dial_is_one_for_all_that_wait_for_it() -> None:
    async with TcpPeer() as peer, Shell(peer.tcp) as shell:
        asked = [shell.ask() for _ in range(100)]
        assert [await each.rcode() for each in asked] == [NOERROR] * 100
        assert len(peer.links) == 1


class FullBacklog:
    """A listener whose queue is full: who dials waits for ever."""

    def __init__(self, address: tuple[str, int] = (HOST, 0)) -> None:
        self._listener = socket.socket(family_of(HOST))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(address)
        self._listener.listen(0)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._waiting: list[socket.socket] = []

    def __enter__(self) -> FullBacklog:
        for _ in range(3):
            sock = socket.socket(family_of(HOST))
            sock.setblocking(False)
            sock.connect_ex(self.address)
            self._waiting.append(sock)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (*self._waiting, self._listener):
            sock.close()

    def dials(self) -> int:
        """How many connections to it are being dialled."""
        return len(
            [
                each
                for each in psutil.net_connections("tcp")
                if each.raddr == self.address and each.status == psutil.CONN_SYN_SENT
            ]
        )


@on_loop
async def test_dial_under_way_is_never_joined_by_a_second_one() -> None:
    with FullBacklog() as full:
        async with UdpPeer() as other, Shell(("tcp", *full.address), other.udp) as shell:
            before = full.dials()
            for _ in range(20):
                shell.ask()
                await asyncio.sleep(0)
            await until(lambda: full.dials() == before + 1)
            for _ in range(20):
                shell.ask()
                await asyncio.sleep(0)
            await settle()
            assert full.dials() == before + 1


@on_loop
async def test_dial_that_takes_too_long_fails_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial, "DIAL_TIMEOUT_S", 0.2)
    with FullBacklog() as full:
        async with UdpPeer() as other, Shell(("tcp", *full.address), other.udp) as shell:
            assert await shell.ask().rcode() == NOERROR
            assert shell.blames() == (0, 1)
            await until(lambda: shell.reasons)
            assert shell.reasons[-1] == "connection timed out"


@on_loop
async def test_queries_go_elsewhere_while_a_dial_is_slow_and_wait_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_resolver, "SLOW_DIAL_S", 0.1)
    async with TcpPeer() as peer, UdpPeer() as other, Shell(peer.tcp, other.udp) as shell:
        for _ in range(40):
            assert await shell.ask().rcode() == NOERROR
        peer._server.close()
        with FullBacklog(peer.address[:2]):
            stream = shell.stream()
            peer.links[0].close()
            await until(lambda: not stream._connections)
            while not stream.waiting:
                assert await shell.ask().rcode() == NOERROR
            await asyncio.sleep(0.15)
            assert not stream.reachable
            waiting = len(stream.waiting)
            assert [await shell.ask().rcode() for _ in range(20)] == [NOERROR] * 20
            assert len(stream.waiting) == waiting
            shell.set_roster(peer.tcp)
            sole = shell.ask()
            assert len(stream.waiting) == waiting + 1
            assert not sole.replies
            assert stream.dials == 2
            assert shell.blames() == (0, 0)


@on_loop
async def test_dial_refused_fails_over_at_once_and_is_not_repeated_at_once() -> None:
    port = closed_port(kind=socket.SOCK_STREAM)
    async with UdpPeer() as other, Shell(("tcp", HOST, port), other.udp) as shell:
        began = monotonic()
        assert await shell.ask().rcode() == NOERROR
        assert monotonic() - began < 0.6
        assert shell.blames() == (0, 1)
        assert shell.reasons == [os.strerror(111)]
        async with TcpPeer(port=port) as peer:
            # In the pause after it queries go elsewhere, and nobody is blamed for that.
            assert [await shell.ask().rcode() for _ in range(4)] == [NOERROR] * 4
            assert peer.links == []
            assert shell.blames() == (0, 1)
            give_up_at = monotonic() + 4.0
            while not peer.heard:
                assert monotonic() < give_up_at
                await shell.ask().reply()
            await until(lambda: shell.reasons[-1] == "")


@on_loop
async def test_dial_without_a_route_blames_nobody() -> None:
    # connect(2) to a multicast address over TCP says ENETUNREACH, without a packet.
    async with UdpPeer() as other, Shell(("tcp", "224.0.0.1", 53), other.udp) as shell:
        assert [await shell.ask().rcode() for _ in range(5)] == [NOERROR] * 5
        assert shell.blames() == (0, 0)
        assert shell.reasons == ["Network is unreachable"]


@on_loop
async def test_dial_of_a_server_that_hangs_up_at_once_fails_over() -> None:
    async with (
        TcpPeer(greets=lambda link: link.transport.abort()) as peer,
        UdpPeer() as other,
        Shell(peer.tcp, other.udp) as shell,
    ):
        assert [await shell.ask().rcode() for _ in range(10)] == [NOERROR] * 10
        await settle()
        assert len(peer.links) <= 3


# -- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("MAX_WAITING", 4), ("MAX_OPEN", 4), ("MAX_UNSENT_BYTES", 100)]
)
def test_connection_at_its_bound_lets_queries_go_elsewhere(
    name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_resolver if name == "MAX_WAITING" else framed, name, value)

    @on_loop
    async def run() -> None:
        async with (
            TcpPeer(serve_nothing) as peer,
            UdpPeer() as other,
            Shell(peer.tcp) as shell,
        ):
            if name != "MAX_WAITING":
                first = shell.ask()
                await peer.wait(1)
                peer.links[0].say(reply_wire(peer.heard[0]))
                await first.reply()
            if name == "MAX_UNSENT_BYTES":
                peer.links[0].transport.pause_reading()
                filler = query_wire("q.t.example") + bytes(60_000)
                for _ in range(200):  # until the kernel takes no more
                    shell.ask(filler)
                    await asyncio.sleep(0)
            shell.set_roster(peer.tcp, other.udp)
            asked = [shell.ask() for _ in range(40)]
            await until(lambda: len([a for a in asked if a.replies]) >= 20)
            assert shell.blames() == (0, 0)
            if name == "MAX_OPEN":
                assert len(peer.links[0].heard) == 5

    run()


# -- rosters ------------------------------------------------------------------------------------


@on_loop
async def test_connection_of_a_resolver_that_left_is_closed_and_its_queries_go_elsewhere() -> None:
    async with TcpPeer(serve_nothing) as peer, UdpPeer() as other, Shell(peer.tcp) as shell:
        asked = [shell.ask() for _ in range(3)]
        await peer.wait(3)
        shell.set_roster(other.udp)
        await until(lambda: peer.links[0].ended)
        assert [await each.rcode() for each in asked] == [NOERROR] * 3


@on_loop
async def test_connection_of_a_resolver_that_stays_is_kept_with_its_queries() -> None:
    async with TcpPeer(serve_nothing) as peer, UdpPeer() as other, Shell(peer.tcp) as shell:
        asked = shell.ask()
        (wire,) = await peer.wait(1)
        shell.set_roster(peer.tcp, other.udp)
        peer.links[0].say(reply_wire(wire))
        assert await asked.rcode() == NOERROR
        assert len(peer.links) == 1


@on_loop
async def test_dial_of_a_resolver_that_left_is_called_off() -> None:
    with FullBacklog() as full:
        async with UdpPeer() as other, Shell(("tcp", *full.address)) as shell:
            before = full.dials()
            asked = shell.ask()
            await until(lambda: full.dials() == before + 1)
            shell.set_roster(other.udp)
            await until(lambda: full.dials() == before)
            assert await asked.rcode() in (NOERROR, SERVFAIL)
            assert await shell.ask().rcode() == NOERROR


@on_loop
async def test_time_of_the_handshake_is_no_latency_of_the_resolver() -> None:
    async with TcpPeer() as peer, Shell(peer.tcp) as shell:
        asked = shell.ask()
        (waiting,) = shell.stream().waiting
        waiting.sent_at -= 1.0  # as if the handshake had taken a second
        await asked.reply()
        assert shell.resolver().rtt_sum_s < 0.5
