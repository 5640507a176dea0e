"""UDP towards clients, on real sockets: where replies leave from, and clients of every kind."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from shared.own_question import OwnQuestion
from tests.loopback import HOST, Shell, TcpPeer, UdpPeer, never, on_loop, settle, until
from tests.rig.wire import (
    FORMERR,
    SERVFAIL,
    longest_name,
    message_id,
    opt_wire,
    query_wire,
    question_of,
    reply_of_size,
    reply_wire,
)
from workers.transports.udp_frontend import UdpFrontend, WildcardUdpFrontend

NOERROR = 0


async def ask(client: UdpPeer, address: object, wire: bytes) -> tuple[bytes, object]:
    """Send a question; return the next reply and where it came from."""
    count = len(client.heard)
    client.say(wire, address)
    await client.wait(count + 1)
    return client.heard[-1]


# -- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [HOST, "::1"])
def test_frontend_on_one_address_answers_from_there(host: str) -> None:
    @on_loop
    async def run() -> None:
        async with UdpPeer() as resolver, Shell(resolver.udp) as shell:
            address = await shell.udp(host)
            assert type(shell.pool.frontends[0]) is UdpFrontend
            async with UdpPeer(never, host=host) as client:
                wire = query_wire("AbC.t.example", message_id=0)
                reply, source = await ask(client, address, wire)
                assert source == address
                assert reply == reply_wire(wire)

    run()


@pytest.mark.parametrize(
    ("bound", "asked", "client_host"),
    [
        ("0.0.0.0", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.5", "127.0.0.1"),
        ("0.0.0.0", "127.1.2.3", "127.9.9.9"),
        ("::", "::1", "::1"),
        ("::", "::ffff:127.0.0.5", "::ffff:127.0.0.1"),
    ],
)
def test_frontend_on_a_wildcard_answers_from_the_address_that_was_asked(
    bound: str, asked: str, client_host: str
) -> None:
    @on_loop
    async def run() -> None:
        async with UdpPeer() as resolver, Shell(resolver.udp) as shell:
            port = (await shell.udp(bound))[1]
            assert type(shell.pool.frontends[0]) is WildcardUdpFrontend
            async with UdpPeer(never, host=client_host) as client:
                for _ in range(3):
                    address = (asked, port) if "." in bound else (asked, port, 0, 0)
                    reply, source = await ask(client, address, query_wire("q.t.example"))
                    assert source == address
                    assert reply[3] & 0x0F == NOERROR

    run()


@on_loop
async def test_frontend_on_a_wildcard_answers_errors_from_the_address_that_was_asked_too() -> None:
    async with Shell() as shell, UdpPeer(never, host="127.0.0.1") as client:
        port = (await shell.udp("0.0.0.0"))[1]
        reply, source = await ask(client, ("127.0.0.6", port), query_wire("q.t.example"))
        assert (reply[3] & 0x0F, source) == (SERVFAIL, ("127.0.0.6", port))
        reply, source = await ask(client, ("127.0.0.7", port), os.urandom(2) + bytes(10))
        assert (reply[3] & 0x0F, source) == (FORMERR, ("127.0.0.7", port))


@on_loop
async def test_frontend_serves_several_listeners_at_once() -> None:
    async with UdpPeer() as resolver, Shell(resolver.udp) as shell, UdpPeer(never) as client:
        addresses = [await shell.udp() for _ in range(3)]
        for address in addresses:
            _, source = await ask(client, address, query_wire("q.t.example"))
            assert source == address


# -- messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [512, 4_749, 65_507])
def test_frontend_with_a_reply_of_any_size_sends_it_whole(size: int) -> None:
    @on_loop
    async def run() -> None:
        async with (
            UdpPeer(lambda wire: reply_of_size(wire, size)) as resolver,
            Shell(resolver.udp) as shell,
            UdpPeer(never) as client,
        ):
            reply, _ = await ask(client, await shell.udp(), query_wire("q.t.example"))
            assert len(reply) == size

    run()


@on_loop
async def test_frontend_takes_the_largest_question_a_datagram_holds() -> None:
    async with UdpPeer() as resolver, Shell(resolver.udp) as shell, UdpPeer(never) as client:
        wire = query_wire(longest_name("t.example"))
        wire += bytes(65_507 - len(wire))
        reply, _ = await ask(client, await shell.udp(), wire)
        assert resolver.wires[0][2:] == wire[2:]
        assert reply[:2] == wire[:2]


@pytest.mark.parametrize(("tunnel_cuts", "expected"), [(True, "cut"), (False, "whole")])
def test_frontend_cuts_what_came_over_tcp_for_a_generic_client_only(
    tunnel_cuts: bool, expected: str
) -> None:
    @on_loop
    async def run() -> None:
        serve = lambda link, wire: link.say(reply_of_size(wire, 5_000))  # noqa: E731
        async with TcpPeer(serve) as resolver:
            settings = {"cut_to_client_size": tunnel_cuts}
            async with Shell(resolver.tcp, **settings) as shell, UdpPeer(never) as client:
                wire = query_wire("q.t.example", opt=opt_wire(1_232))
                reply, _ = await ask(client, await shell.udp(), wire)
                assert bool(reply[2] & 0x02) == (expected == "cut")
                assert (len(reply) == 5_000) == (expected == "whole")

    run()


@on_loop
async def test_frontend_given_rubbish_counts_it_and_serves_the_next() -> None:
    async with UdpPeer() as resolver, Shell(resolver.udp) as shell, UdpPeer(never) as client:
        address = await shell.udp()
        good = query_wire("q.t.example")
        for rubbish in (b"", b"\0", good[:11], reply_wire(good), os.urandom(11)):
            client.say(rubbish, address)
        reply, _ = await ask(client, address, good)
        assert reply == reply_wire(good)
        assert len(client.heard) == 1
        assert shell.dropped("client_short") == 4
        assert shell.dropped("client_response") == 1


# -- clients ------------------------------------------------------------------------------------


@on_loop
async def test_two_hundred_clients_of_one_id_get_each_their_own_answer() -> None:
    async with UdpPeer() as resolver, Shell(resolver.udp) as shell:
        address = await shell.udp()
        clients = [UdpPeer(never) for _ in range(200)]
        for client in clients:
            await client.__aenter__()
        for number, client in enumerate(clients):
            client.say(query_wire(f"q{number}.t.example", message_id=0), address)
        for number, client in enumerate(clients):
            (reply,) = await client.wait(1)
            assert reply[:2] == b"\0\0"
            assert question_of(reply) == question_of(query_wire(f"q{number}.t.example"))
        for client in clients:
            client.transport.close()
        await settle(1)


@on_loop
async def test_client_that_reuses_an_id_on_one_socket_gets_both_answers() -> None:
    async with UdpPeer(never) as resolver, Shell(resolver.udp) as shell, UdpPeer(never) as client:
        address = await shell.udp()
        first, second = (query_wire(name, message_id=9) for name in ("a.t", "b.t"))
        client.say(first, address)
        client.say(second, address)
        for wire in reversed(await resolver.wait(2)):
            resolver.say(reply_wire(wire))
        assert set(await client.wait(2)) == {reply_wire(first), reply_wire(second)}


@on_loop
async def test_client_that_is_gone_disturbs_nobody() -> None:
    async with UdpPeer(never) as resolver, Shell(resolver.udp) as shell:
        address = await shell.udp()
        for _ in range(20):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.sendto(query_wire("q.t.example"), address)
        for wire in await resolver.wait(20):
            resolver.say(reply_wire(wire))
        await until(lambda: shell.engine.counters.pending == 0)
        async with UdpPeer(never) as client:
            resolver.answer = reply_wire
            for _ in range(20):
                reply, _ = await ask(client, address, query_wire("q.t.example"))
                assert reply[3] & 0x0F == NOERROR


@on_loop
async def test_client_that_sends_a_burst_has_all_of_it_answered() -> None:
    async with UdpPeer() as resolver, Shell(resolver.udp) as shell, UdpPeer(never) as client:
        address = await shell.udp()
        for _ in range(5):
            client.heard.clear()
            wires = [query_wire(f"q{n}.t.example", message_id=n) for n in range(200)]
            for wire in wires:
                client.say(wire, address)
            replies = await client.wait(200)
            assert {message_id(reply) for reply in replies} == set(range(200))


@on_loop
async def test_client_gets_a_late_answer_after_the_first_one() -> None:
    async with (
        UdpPeer(never) as resolver,
        UdpPeer() as other,
        Shell(resolver.udp, other.udp) as shell,
        UdpPeer(never) as client,
    ):
        address = await shell.udp()
        await ask(client, address, query_wire("q.t.example"))
        await resolver.wait(1)
        resolver.say(reply_wire(resolver.wires[0], rcode=3))
        replies = await client.wait(2)
        assert [reply[3] & 0x0F for reply in replies] == [0, 3]


@on_loop
async def test_frontend_that_is_closed_takes_nothing_more_and_still_answers_what_is_open() -> None:
    async with UdpPeer(never) as resolver, Shell(resolver.udp) as shell, UdpPeer(never) as client:
        address = await shell.udp()
        wire = query_wire("q.t.example")
        client.say(wire, address)
        (asked,) = await resolver.wait(1)
        shell.pool.frontends[0].close()
        client.say(query_wire("late.t.example"), address)
        await settle()
        assert len(resolver.heard) == 1
        waiting = asyncio.ensure_future(shell.pool.idle())
        resolver.say(reply_wire(asked))
        assert await client.wait(1) == [reply_wire(wire)]
        await waiting


# -- questions of the relay's own -----------------------------------------------------------------


@on_loop
async def test_own_question_through_a_chain_of_pools_comes_back_with_the_proof() -> None:
    """The first pool's resolver is a stub of another make that forwards to the second pool."""
    own = OwnQuestion.new()
    how = {"own_label": own.label.decode(), "own_proof": own.proof.decode()}
    async with UdpPeer() as resolver, Shell(resolver.udp, **how) as inner:
        address = await inner.udp()
        async with Shell(("udp", address[0], address[1])) as stub, UdpPeer(never) as client:
            for listener in (await stub.udp(), address, await inner.udp("0.0.0.0")):
                host = HOST if listener[0] == "0.0.0.0" else listener[0]
                wire = query_wire(own.question_name(str(listener)).upper(), opt=opt_wire())
                reply, _ = await ask(client, (host, listener[1]), wire)
                assert own.is_proof(reply)
                assert question_of(reply) == question_of(wire)
        assert resolver.heard == []
