"""TCP towards clients, on real sockets: pipelines, odd segments, and everything that is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from time import monotonic

import pytest

from shared.own_question import OwnQuestion
from tests.loopback import (
    HOST,
    Shell,
    TcpClient,
    TcpPeer,
    UdpPeer,
    closed_port,
    never,
    on_loop,
    settle,
    until,
)
from tests.rig.wire import (
    FORMERR,
    SERVFAIL,
    message_id,
    query_wire,
    reply_of_size,
    reply_wire,
)
from workers.transports import tcp_frontend

NOERROR = 0


def framed(*wires: bytes) -> bytes:
    return b"".join(len(wire).to_bytes(2, "big") + wire for wire in wires)


def questions(count: int) -> list[bytes]:
    return [query_wire(f"q{number}.t.example", message_id=number) for number in range(count)]


# -- asking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [HOST, "::1"])
def test_frontend_over_either_family_answers(host: str) -> None:
    @on_loop
    async def run() -> None:
        async with (
            UdpPeer() as resolver,
            Shell(resolver.udp) as shell,
            TcpClient(await shell.tcp(host)) as client,
        ):
            wire = query_wire("AbC.t.example", message_id=0)
            assert await client.ask(wire) == reply_wire(wire)
            assert await client.ask(wire) == reply_wire(wire)

    run()


@on_loop
async def test_pipelined_queries_are_all_answered() -> None:
    async with (
        UdpPeer() as resolver,
        Shell(resolver.udp) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        client.send(*questions(300))
        replies = [await client.receive() for _ in range(300)]
        assert {message_id(reply) for reply in replies} == set(range(300))


@on_loop
async def test_replies_leave_in_the_order_in_which_they_come() -> None:
    async with (
        UdpPeer(never) as resolver,
        Shell(resolver.udp) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        client.send(*questions(10))
        for wire in reversed(await resolver.wait(10)):
            resolver.say(reply_wire(wire))
        order = [message_id(await client.receive()) for _ in range(10)]
        assert order == list(reversed(range(10)))


@on_loop
async def test_query_in_single_bytes_is_understood() -> None:
    async with (
        UdpPeer() as resolver,
        Shell(resolver.udp) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in framed(*questions(2)):
            client.writer.write(bytes((byte,)))
            await asyncio.sleep(0.001)
        assert [message_id(await client.receive()) for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("cut", [1, 2, 3, 14, 40, 70])
def test_queries_cut_anywhere_are_understood(cut: int) -> None:
    @on_loop
    async def run() -> None:
        async with (
            UdpPeer() as resolver,
            Shell(resolver.udp) as shell,
            TcpClient(await shell.tcp()) as client,
        ):
            stream = framed(*questions(3))
            client.writer.write(stream[:cut])
            await settle(1)
            client.writer.write(stream[cut:])
            got = {message_id(await client.receive()) for _ in range(3)}
            assert got == {0, 1, 2}

    run()


@on_loop
async def test_reply_of_the_largest_size_passes() -> None:
    serve = lambda link, wire: link.say(reply_of_size(wire, 65_535))  # noqa: E731
    async with (
        TcpPeer(serve) as resolver,
        Shell(resolver.tcp) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        assert len(await client.ask(query_wire("q.t.example"))) == 65_535


@on_loop
async def test_rubbish_on_a_connection_is_answered_or_dropped_and_the_next_query_served() -> None:
    async with (
        UdpPeer() as resolver,
        Shell(resolver.udp) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        good = query_wire("q.t.example", message_id=77)
        bad = b"\x12\x34" + bytes(10)
        client.send(b"", b"\0", good[:11], reply_wire(good), bad, good)
        replies = {message_id(reply): reply for reply in [await client.receive() for _ in "xx"]}
        assert replies[0x1234][3] & 0x0F == FORMERR
        assert replies[77] == reply_wire(good)
        assert shell.dropped("client_short") == 3
        assert shell.dropped("client_response") == 1


@on_loop
async def test_failure_at_once_is_answered_and_the_connection_goes_on() -> None:
    async with Shell() as shell, TcpClient(await shell.tcp()) as client:
        for wire in questions(3):
            assert (await client.ask(wire))[3] & 0x0F == SERVFAIL


@on_loop
async def test_failure_at_once_of_a_local_kind_is_answered_and_the_connection_goes_on() -> None:
    async with Shell(("udp", "fe80::1", 53)) as shell, TcpClient(await shell.tcp()) as client:
        for wire in questions(3):
            assert (await client.ask(wire))[3] & 0x0F == SERVFAIL


@on_loop
async def test_own_question_between_others_is_answered_with_the_proof() -> None:
    own = OwnQuestion.new()
    how = {"own_label": own.label.decode(), "own_proof": own.proof.decode()}
    async with (
        UdpPeer() as resolver,
        Shell(resolver.udp, **how) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        wire = query_wire(own.question_name("x"), message_id=7)
        for _ in range(3):
            reply = await client.ask(wire)
            assert message_id(reply) == 7
            assert own.is_proof(reply)
            other = query_wire("AbC.t.example")
            assert await client.ask(other) == reply_wire(other)
        assert len(resolver.heard) == 3


# -- ends ---------------------------------------------------------------------------------------


@on_loop
async def test_client_that_sends_no_more_still_gets_its_replies() -> None:
    async with (
        UdpPeer(never) as resolver,
        Shell(resolver.udp) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        client.send(*questions(3))
        client.writer.write_eof()
        wires = await resolver.wait(3)
        await settle()
        for wire in wires:
            resolver.say(reply_wire(wire))
        assert {message_id(await client.receive()) for _ in range(3)} == {0, 1, 2}
        assert await client.at_end()


@on_loop
async def test_client_that_sends_no_more_and_has_nothing_open_is_closed() -> None:
    async with (
        UdpPeer() as resolver,
        Shell(resolver.udp) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        await client.ask(query_wire("q.t.example"))
        client.writer.write_eof()
        assert await client.at_end()


@on_loop
async def test_client_that_sends_no_more_with_failures_in_silence_is_closed_after_them() -> None:
    settings = {"silent_failure": True}
    async with (
        Shell(("udp", HOST, closed_port()), **settings) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        client.send(*questions(3))
        client.writer.write_eof()
        assert await client.at_end()
        assert shell.engine.counters.failures == 3


@on_loop
async def test_client_that_is_gone_before_its_replies_is_counted_and_disturbs_nobody() -> None:
    async with UdpPeer(never) as resolver, Shell(resolver.udp) as shell:
        address = await shell.tcp()
        async with TcpClient(address) as client:
            client.send(*questions(3))
            await resolver.wait(3)
            reset = (1).to_bytes(4, sys.byteorder) + bytes(4)  # a plain end may be half a close
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        await settle()
        for wire in resolver.wires:
            resolver.say(reply_wire(wire))
        await until(lambda: shell.dropped("client_gone") == 3)
        assert shell.engine.counters.pending == 0
        resolver.answer = reply_wire
        async with TcpClient(address) as client:
            assert (await client.ask(query_wire("q.t.example")))[3] & 0x0F == NOERROR


@on_loop
async def test_frontend_that_is_closed_answers_what_is_open_and_ends_its_connections() -> None:
    async with UdpPeer(never) as resolver, Shell(resolver.udp) as shell:
        address = await shell.tcp()
        async with TcpClient(address) as busy, TcpClient(address) as idle:
            busy.send(*questions(2))
            wires = await resolver.wait(2)
            shell.pool.frontends[0].close()
            assert await idle.at_end()
            busy.send(query_wire("late.t.example"))
            await settle()
            assert len(resolver.heard) == 2
            for wire in wires:
                resolver.say(reply_wire(wire))
            assert {message_id(await busy.receive()) for _ in range(2)} == {0, 1}
            assert await busy.at_end()


# -- bounds -------------------------------------------------------------------------------------


@on_loop
async def test_connections_beyond_the_bound_are_closed_and_counted_until_one_leaves() -> None:
    async with UdpPeer() as resolver, Shell(resolver.udp, max_connections=2) as shell:
        address = await shell.tcp()
        async with TcpClient(address) as first:
            await first.ask(query_wire("q.t.example"))
            async with TcpClient(address) as second:
                await second.ask(query_wire("q.t.example"))
                async with TcpClient(address) as third:
                    assert await third.at_end()
                assert shell.dropped("client_connection_limit") == 1
                assert (await first.ask(query_wire("q.t.example")))[3] & 0x0F == NOERROR
            async with TcpClient(address) as another:
                assert (await another.ask(query_wire("q.t.example")))[3] & 0x0F == NOERROR
            assert shell.dropped("client_connection_limit") == 1


@pytest.mark.parametrize("half", [b"", b"\0", b"\0\x40", framed(query_wire("q.t.example"))[:-1]])
def test_connection_on_which_nothing_happens_is_closed(
    half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_frontend, "SWEEP_S", 0.02)

    @on_loop
    async def run() -> None:
        async with (
            UdpPeer() as resolver,
            Shell(resolver.udp, tcp_idle_s=0.2) as shell,
            TcpClient(await shell.tcp()) as client,
        ):
            await client.ask(query_wire("q.t.example"))
            answered_at = monotonic()
            client.writer.write(half)
            assert await client.at_end()
            assert 0.15 < monotonic() - answered_at < 1.0

    run()


@on_loop
async def test_connection_fed_half_a_message_for_ever_is_closed() -> None:
    async with (
        UdpPeer() as resolver,
        Shell(resolver.udp, tcp_idle_s=0.2) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        client.writer.write(b"\xff\xff")

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while not client.writer.is_closing():
                    client.writer.write(b"x")
                    await asyncio.sleep(0.02)

        dripping = asyncio.ensure_future(drip())
        assert await client.at_end()
        dripping.cancel()


@on_loop
async def test_connection_in_use_is_kept() -> None:
    async with (
        UdpPeer() as resolver,
        Shell(resolver.udp, tcp_idle_s=0.3) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        began = monotonic()
        while monotonic() - began < 1.5:
            assert (await client.ask(query_wire("q.t.example")))[3] & 0x0F == NOERROR
            await asyncio.sleep(0.02)


@on_loop
async def test_client_with_too_many_queries_in_flight_is_read_on_as_answers_leave() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tcp_frontend, "MAX_IN_FLIGHT", 4)
        async with (
            UdpPeer(never) as resolver,
            Shell(resolver.udp) as shell,
            TcpClient(await shell.tcp()) as client,
        ):
            client.send(*questions(50))
            await resolver.wait(4)
            await settle()
            assert len(resolver.heard) == 4
            assert shell.engine.counters.pending == 4
            for answered in range(50):
                await resolver.wait(answered + 1)
                resolver.say(reply_wire(resolver.wires[answered]))
                await client.receive()
                assert shell.engine.counters.pending <= 4
            assert len(resolver.heard) == 50


@on_loop
async def test_client_with_too_many_queries_in_flight_is_not_read_from() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tcp_frontend, "MAX_IN_FLIGHT", 4)
        async with (
            UdpPeer(never) as resolver,
            Shell(resolver.udp) as shell,
            TcpClient(await shell.tcp()) as client,
        ):
            wire = query_wire("q.t.example") + bytes(1_000)
            for _ in range(40_000):  # 40 MB: more than any kernel holds for a connection
                client.send(wire)
                if client.writer.transport.get_write_buffer_size() > 1 << 20:
                    break
                await asyncio.sleep(0)
            assert client.writer.transport.get_write_buffer_size() > 1 << 20
            assert len(resolver.heard) == 4
            # It is read on: answers let the rest in.
            resolver.answer = reply_wire
            for wire in list(resolver.wires):
                resolver.say(reply_wire(wire))
            await until(lambda: client.writer.transport.get_write_buffer_size() == 0)


@on_loop
async def test_client_that_does_not_read_is_closed_and_counted() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tcp_frontend, "MAX_HELD_BYTES", 200_000)
        serve = lambda link, wire: link.say(reply_of_size(wire, 60_000))  # noqa: E731
        async with TcpPeer(serve) as resolver, Shell(resolver.tcp) as shell:
            address = await shell.tcp()
            loop = asyncio.get_running_loop()
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
                await loop.sock_sendall(sock, framed(*questions(400)))
                await until(lambda: shell.dropped("client_slow"))
                assert shell.dropped("client_slow") == 1
                await until(lambda: shell.engine.counters.pending == 0)
            async with TcpClient(address) as client:
                assert len(await client.ask(query_wire("q.t.example"))) == 60_000


@on_loop
async def test_client_that_reads_slowly_gets_everything() -> None:
    serve = lambda link, wire: link.say(reply_of_size(wire, 30_000))  # noqa: E731
    async with (
        TcpPeer(serve) as resolver,
        Shell(resolver.tcp) as shell,
        TcpClient(await shell.tcp()) as client,
    ):
        client.send(*questions(100))
        got = set()
        for _ in range(100):
            reply = await client.receive()
            assert len(reply) == 30_000
            got.add(message_id(reply))
            await asyncio.sleep(0)
        assert got == set(range(100))
        assert shell.dropped("client_slow") == 0


@on_loop
async def test_clients_that_come_and_go_leave_no_descriptor() -> None:
    async with UdpPeer() as resolver, Shell(resolver.udp) as shell:
        address = await shell.tcp()

        async def one() -> None:
            async with TcpClient(address) as client:
                await client.ask(query_wire("q.t.example"))

        await one()
        await settle()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(20)))
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
