"""The UDP side towards resolvers, on real sockets: closed ports, lack of IDs, faults of our own."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import resource
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

import pytest
import uvloop

from tests.loopback import (
    HOST,
    LIMIT_S,
    Shell,
    TcpPeer,
    UdpPeer,
    closed_port,
    never,
    on_loop,
    settle,
    until,
)
from tests.rig.wire import (
    FLAG_QR,
    FLAG_TC,
    SERVFAIL,
    query_wire,
    reply_of_size,
    reply_wire,
)
from workers.engine.health import State
from workers.transports import udp_resolver
from workers.transports.udp_resolver import UdpTransport

NOERROR = 0


def transport(shell: Shell, number: int = 0) -> UdpTransport:
    made = shell.resolver(number).transport
    assert isinstance(made, UdpTransport)
    return made


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- asking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [HOST, "::1"], ids=["IPv4", "IPv6"])
def test_udp_resolver_over_either_family_answers(host: str) -> None:
    @on_loop
    async def run() -> None:
        async with UdpPeer(host=host) as peer, Shell(peer.udp) as shell:
            asked = shell.ask(query_wire("AbC.t.example", message_id=0))
            reply = await asked.reply()
            assert reply == b"\0\0" + reply_wire(peer.wires[0])[2:]
            assert shell.resolver().answered == 1

    run()


@on_loop
async def test_udp_resolver_is_asked_from_one_socket_under_ids_of_its_own() -> None:
    async with UdpPeer() as peer, Shell(peer.udp) as shell:
        asked = [shell.ask(query_wire("q.t.example", message_id=0)) for _ in range(100)]
        for each in asked:
            await each.reply()
        assert len(set(peer.sources)) == 1
        assert len({wire[:2] for wire in peer.wires}) > 90
        assert {wire[2:] for wire in peer.wires} == {asked[0].wire[2:]}


@pytest.mark.parametrize("size", [512, 4_749, 65_507])
def test_udp_resolver_with_a_reply_of_any_size_passes_it_whole(size: int) -> None:
    @on_loop
    async def run() -> None:
        async with (
            UdpPeer(lambda wire: reply_of_size(wire, size)) as peer,
            Shell(peer.udp) as shell,
        ):
            assert len(await shell.ask().reply()) == size

    run()


@on_loop
async def test_udp_resolver_sending_rubbish_before_its_answer_is_waited_for() -> None:
    async with UdpPeer(never) as peer, Shell(peer.udp) as shell:
        asked = shell.ask()
        (wire,) = await peer.wait(1)
        for rubbish in (b"", b"\0", wire, wire[:2], os.urandom(40), reply_wire(wire)[:20]):
            peer.say(rubbish)
        peer.say(reply_wire(wire))
        assert await asked.rcode() == NOERROR
        drops = shell.dropped("reply_malformed") + shell.dropped("reply_unmatched")
        assert drops == 6


@on_loop
async def test_udp_resolver_answering_from_another_port_is_not_heard() -> None:
    async with UdpPeer(never) as peer, UdpPeer(never) as spoofer, Shell(peer.udp) as shell:
        asked = shell.ask()
        (wire,) = await peer.wait(1)
        spoofer.say(reply_wire(wire, rcode=3), peer.sources[0])
        await settle()
        assert asked.replies == []
        peer.say(reply_wire(wire))
        assert await asked.rcode() == NOERROR


@on_loop
async def test_udp_resolver_with_two_hundred_clients_of_one_id_answers_each() -> None:
    async with UdpPeer() as peer, Shell(peer.udp) as shell:
        asked = [
            shell.ask(query_wire(f"q{number}.t.example", message_id=0)) for number in range(200)
        ]
        for each in asked:
            reply = await each.reply()
            assert reply[:2] == b"\0\0"
            assert reply[12 : len(each.wire)] == each.wire[12:]


@on_loop
async def test_udp_resolver_that_truncates_is_asked_over_tcp_for_a_stream_client() -> None:
    cut = FLAG_QR | FLAG_TC
    async with UdpPeer(lambda wire: reply_wire(wire, flags=cut)) as peer:
        answer = lambda link, wire: link.say(reply_of_size(wire, 60_000))  # noqa: E731
        async with TcpPeer(answer, port=peer.address[1]) as tcp, Shell(peer.udp) as shell:
            assert len(await shell.ask(stream=True).reply()) == 60_000
            assert (await shell.ask().reply())[2] & 0x02
            assert len(await shell.ask(stream=True).reply()) == 60_000
            assert len(tcp.links) == 1


@on_loop
async def test_udp_resolver_that_left_the_roster_closes_its_socket_and_gives_its_queries_away() -> (
    None
):
    async with UdpPeer(never) as gone, UdpPeer() as stays, Shell(gone.udp) as shell:
        before = open_descriptors()
        asked = shell.ask()
        await gone.wait(1)
        shell.set_roster(("udp", HOST, closed_port()), stays.udp)
        assert await asked.rcode() in (NOERROR, SERVFAIL)
        again = shell.ask()
        assert await again.rcode() == NOERROR
        shell.set_roster()
        assert open_descriptors() == before - 1


# -- closed ports -------------------------------------------------------------------------------


@on_loop
async def test_closed_port_fails_over_at_once() -> None:
    async with UdpPeer() as peer, Shell(("udp", HOST, closed_port()), peer.udp) as shell:
        began = monotonic()
        asked = shell.ask()
        assert await asked.rcode() == NOERROR
        assert monotonic() - began < 0.6  # the resolvers' first retransmission is after 1 s
        assert shell.blames() == (0, 1)
        assert shell.blames(1) == (0, 0)


@on_loop
async def test_closed_port_fails_every_query_that_is_open_on_it() -> None:
    async with Shell(("udp", HOST, closed_port())) as shell:
        asked = [shell.ask() for _ in range(5)]
        assert [await each.rcode() for each in asked] == [SERVFAIL] * 5
        assert shell.engine.counters.pending == 0


@on_loop
async def test_closed_port_is_noticed_every_time_and_not_only_the_first() -> None:
    async with Shell(("udp", HOST, closed_port())) as shell:
        for count in range(1, 6):
            began = monotonic()
            assert await shell.ask().rcode() == SERVFAIL
            assert monotonic() - began < 0.7
            assert shell.blames() == (0, count)


@on_loop
async def test_closed_port_that_opens_is_heard_on_the_socket_that_was_refused() -> None:
    port = closed_port()
    async with Shell(("udp", HOST, port)) as shell:
        refused_on = transport(shell)._sockets[0]
        assert await shell.ask().rcode() == SERVFAIL
        async with UdpPeer(port=port):
            began = monotonic()
            assert await shell.ask().rcode() == NOERROR
            assert monotonic() - began < 0.7
            assert transport(shell)._sockets == [refused_on]


@on_loop
async def test_closed_port_seen_while_sending_is_not_the_next_querys_fault() -> None:
    # Two sendings in one turn: the error about the first comes up as that of the second.
    port = closed_port()
    async with UdpPeer() as other, Shell(("udp", HOST, port), other.udp) as shell:
        asked = [shell.ask() for _ in range(8)]
        assert [await each.rcode() for each in asked] == [NOERROR] * 8
        lost, errors = shell.blames()
        assert (lost, errors) == (0, shell.resolver().sent)


@on_loop
async def test_closed_port_that_opens_is_in_use_again_within_seconds() -> None:
    port = closed_port()
    async with UdpPeer() as other, Shell(("udp", HOST, port), other.udp) as shell:

        async def traffic(wanted: Callable[[], bool]) -> None:
            give_up_at = monotonic() + 8.0
            while not wanted():
                assert monotonic() < give_up_at
                assert await shell.ask().rcode() == NOERROR

        await traffic(lambda: shell.resolver().state is State.DOWN)
        async with UdpPeer(port=port) as opened:
            began = monotonic()
            await traffic(lambda: shell.resolver().state is State.IN_USE)
            assert monotonic() - began < 4.0
            assert len(opened.heard) >= 8


@on_loop
async def test_closed_port_in_a_storm_gets_a_new_socket_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(udp_resolver, "REFUSED_IN_A_ROW", 3)
    async with Shell(("udp", HOST, closed_port()), down_after=100_000) as shell:
        pauses: list[float] = []
        for _ in range(3):
            while shell.resolver().usable:
                await shell.ask().reply()
            closed_at = monotonic()
            await until(lambda: shell.resolver().usable)
            pauses.append(monotonic() - closed_at)
        assert pauses[0] < pauses[1] < pauses[2]
        assert pauses[2] > 1.5 * pauses[1] > 2.25 * pauses[0]


@on_loop
async def test_closed_port_is_told_once_for_a_flood_of_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Through new sockets, too: that one was made says nothing of the port.
    monkeypatch.setattr(udp_resolver, "TELL_S", 60.0)
    monkeypatch.setattr(udp_resolver, "REFUSED_IN_A_ROW", 10)
    async with UdpPeer() as other, Shell(("udp", HOST, closed_port()), other.udp) as shell:
        opened = 0
        while opened < 2:
            await shell.ask().reply()
            if not shell.resolver().usable:
                await until(lambda: shell.resolver().usable)
                opened += 1
        assert shell.blames()[1] >= 20
        assert shell.faults == [(0, "Connection refused")]


@on_loop
async def test_port_that_opens_and_closes_between_queries_has_one_lasting_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(udp_resolver, "TELL_S", 60.0)
    port = closed_port()
    async with Shell(("udp", HOST, port)) as shell:
        for _ in range(5):
            assert await shell.ask().rcode() == SERVFAIL
            async with UdpPeer(port=port):
                assert await shell.ask().rcode() == NOERROR
        assert shell.blames() == (0, 5)
        assert shell.faults == [(0, "Connection refused")]


@on_loop
async def test_closed_port_that_answers_is_no_fault_from_its_first_answer_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = closed_port()
    async with Shell(("udp", HOST, port)) as shell:
        # Soon after the error: at the end of the time, without another packet.
        monkeypatch.setattr(udp_resolver, "TELL_S", 0.3)
        assert await shell.ask().rcode() == SERVFAIL
        async with UdpPeer(port=port):
            assert await shell.ask().rcode() == NOERROR
            await until(lambda: shell.reasons == ["Connection refused", ""])
        # Later: at once.
        monkeypatch.setattr(udp_resolver, "TELL_S", 0.0)
        assert await shell.ask().rcode() == SERVFAIL
        async with UdpPeer(port=port):
            assert await shell.ask().rcode() == NOERROR
            assert shell.reasons == ["Connection refused", ""] * 2


@on_loop
async def test_resolver_that_left_with_a_fault_to_be_told_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(udp_resolver, "TELL_S", 0.1)
    async with UdpPeer() as peer, Shell(("udp", HOST, closed_port())) as shell:
        for _ in range(2):
            assert await shell.ask().rcode() == SERVFAIL
        shell.set_roster(peer.udp)
        await settle(30)
        assert shell.reasons == ["Connection refused"]


@on_loop
async def test_down_resolver_gets_a_new_socket_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The old one may be bound to a local address that is gone.
    monkeypatch.setattr(udp_resolver, "STALE_SOCKET_S", 0.5)
    async with (
        UdpPeer() as other,
        UdpPeer(never) as silent,
        Shell(silent.udp, other.udp, per_attempt_s=0.125) as shell,
    ):
        give_up_at = monotonic() + LIMIT_S
        while len(set(silent.sources)) < 2:
            assert monotonic() < give_up_at
            await shell.ask().reply()
        assert shell.resolver().state is State.DOWN


# -- IDs and sockets ----------------------------------------------------------------------------


@on_loop
async def test_busy_resolver_gets_more_sockets_when_ids_run_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(udp_resolver, "IDS_PER_SOCKET", 8)
    monkeypatch.setattr(udp_resolver, "MAX_SOCKETS", 3)
    async with UdpPeer(never) as peer, Shell(peer.udp) as shell:
        held = [shell.ask() for _ in range(24)]
        wires = await peer.wait(24)
        by_source: dict[Any, list[bytes]] = {}
        for wire, source in peer.heard:
            by_source.setdefault(source, []).append(wire[:2])
        assert [len(ids) for ids in by_source.values()] == [8, 8, 8]
        assert all(len(set(ids)) == 8 for ids in by_source.values())
        # Full: a query more cannot be sent, which is nobody's fault.
        assert await shell.ask().rcode() == SERVFAIL
        assert shell.blames() == (0, 0)
        for wire, source in zip(wires, peer.sources, strict=True):
            peer.say(reply_wire(wire), source)
        assert [await each.rcode() for each in held] == [NOERROR] * 24
        peer.answer = reply_wire
        assert await shell.ask().rcode() == NOERROR
        assert len(transport(shell)._sockets) == 3


@on_loop
async def test_resolver_with_twenty_thousand_queries_open_has_them_all_answered() -> None:
    patient = {"max_pending": 100_000, "per_attempt_s": 20.0, "deadline_s": 20.0}
    async with UdpPeer(never) as peer, Shell(peer.udp, **patient) as shell:
        for count in range(100, 20_001, 100):
            for _ in range(100):
                shell.ask()
            await peer.wait(count)
        assert len(transport(shell)._sockets) == 2
        assert shell.engine.counters.pending == 20_000
        for number, (wire, source) in enumerate(peer.heard):
            peer.say(reply_wire(wire), source)
            if number % 100 == 99:
                await until(lambda: shell.resolver().answered > number - 50)  # noqa: B023
        await until(lambda: shell.engine.counters.pending == 0)
        assert shell.engine.counters.failures == 0
        assert sum(shell.engine.counters.dropped) == 0


# -- faults of this machine ---------------------------------------------------------------------


@on_loop
async def test_resolver_on_an_address_that_cannot_be_used_blames_nobody() -> None:
    # A link-local address without its interface: connect(2) says EINVAL.
    async with UdpPeer() as peer, Shell(("udp", "fe80::1", 53), peer.udp) as shell:
        assert await shell.ask().rcode() == NOERROR
        assert await shell.ask().rcode() == NOERROR
        assert shell.blames() == (0, 0)
        assert shell.faults[0][0] == 0
        assert "Invalid argument" in shell.reasons[0]
        await until(lambda: not shell.resolver().usable)


@on_loop
async def test_resolver_without_a_free_descriptor_is_opened_later() -> None:
    async with UdpPeer() as peer, Shell() as shell:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = os.dup(0)
        os.close(held)
        resource.setrlimit(resource.RLIMIT_NOFILE, (held, hard))
        try:
            shell.set_roster(peer.udp)
            assert await shell.ask().rcode() == SERVFAIL
            assert os.strerror(errno.EMFILE) in shell.reasons[0]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: shell.resolver().usable)
        await until(lambda: shell.reasons[-1] == "")
        await until(lambda: not shell.engine._stale)
        assert await shell.ask().rcode() == NOERROR
        assert shell.blames() == (0, 0)


@on_loop
async def test_question_too_large_for_a_datagram_goes_elsewhere_and_blames_nobody() -> None:
    # Over TCP a client may send what no datagram holds: send(2) says EMSGSIZE.
    wire = query_wire("q.t.example") + bytes(65_500)
    async with UdpPeer() as peer, TcpPeer() as tcp, Shell(peer.udp, tcp.tcp) as shell:
        assert await shell.ask(wire, stream=True).rcode() == NOERROR
        assert tcp.heard[0][2:] == wire[2:]
        assert shell.blames() == (0, 0)
        assert shell.reasons in ([], [""])
        assert shell.resolver().usable


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.EAGAIN, errno.ENOMEM, errno.EPERM])
def test_packet_that_this_machine_cannot_send_goes_elsewhere(code: int) -> None:
    # The one thing here that cannot be had for real: the kernel lets loopback send always.
    def fails(wire: bytes) -> int:
        raise OSError(code, os.strerror(code))

    @on_loop
    async def run() -> None:
        async with UdpPeer() as peer, UdpPeer() as other, Shell(peer.udp, other.udp) as shell:
            (udp_socket,) = transport(shell)._sockets
            udp_socket._send = fails
            assert await shell.ask().rcode() == NOERROR
            assert len(other.heard) == 1
            assert shell.blames() == (0, 0)
            kept = transport(shell)._sockets == [udp_socket]
            assert kept == (code != errno.EPERM)  # a socket that is sound is kept
            told = [] if kept else ["Operation not permitted; opening a new socket"]
            assert shell.reasons == told
            # That a new one could be made does not say that it can send.
            await until(lambda: shell.resolver().usable)
            assert shell.reasons == told

    run()


def in_a_network_of_its_own(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in a thread with an empty network namespace: no route, loopback down."""
    libc = ctypes.CDLL(None, use_errno=True)
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            if libc.unshare(0x40000000):  # CLONE_NEWNET
                raise PermissionError(ctypes.get_errno(), "unshare")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(asyncio.wait_for(body(), 20.0))
        except BaseException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    (error,) = outcome
    if isinstance(error, PermissionError) and error.strerror == "unshare":
        pytest.skip("no right to make a network namespace")
    if error is not None:
        raise error


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_network_that_is_gone_blames_nobody_and_is_used_again_when_it_is_back(host: str) -> None:
    async def body() -> None:
        async with Shell(("udp", host, 5300)) as shell:
            began = monotonic()
            asked = [shell.ask() for _ in range(20)]
            assert [await each.rcode() for each in asked] == [SERVFAIL] * 20
            assert monotonic() - began < 1.0
            assert shell.blames() == (0, 0)
            assert shell.resolver().state is State.FRESH
            assert any(
                os.strerror(code) in shell.reasons[0]
                for code in (errno.ENETUNREACH, errno.EADDRNOTAVAIL)
            )
            loopback_up()
            async with UdpPeer(host=host, port=5300) as peer:
                await until(lambda: shell.resolver().usable and not shell.engine._stale)
                assert await shell.ask().rcode() == NOERROR
                assert len(peer.heard) == 1
                assert shell.reasons[-1] == ""
                assert shell.blames() == (0, 0)

    in_a_network_of_its_own(body)
