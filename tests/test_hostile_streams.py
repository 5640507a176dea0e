"""What servers of encrypted resolvers and proxies may do to the relay: nothing but be told of."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests.loopback import Link, Shell, TcpPeer, UdpPeer, on_loop, until
from tests.rig.certs import HOST as NAME
from tests.rig.certs import Authority
from tests.rig.wire import query_wire, reply_wire
from workers.settings import ResolverEntry
from workers.transports.channel import MAX_IDLE_BYTES, TlsChannel
from workers.transports.doh import flaw_of
from workers.transports.faults import Floods
from workers.transports.framed import MAX_IDLE_MESSAGES
from workers.transports.framing import frame
from workers.transports.http1 import Http1Session
from workers.transports.http_exchange import ANSWERED, Exchange, HttpError, Target
from workers.transports.tls import TlsLayer

SECRET = b"my-secret-name.example"


class Closed:
    closed = True


@pytest.mark.parametrize(
    "thrown_back",
    [
        b"GET /dns-query?dns=" + SECRET + b" HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 " + SECRET + b"\r\n\r\n",
        b"HTTP/1.1 200 " + SECRET + b"\r\n" + SECRET + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + SECRET + b"\r\n\r\n",
        b"\x0e" + SECRET + b"\r\n\r\n",
    ],
)
def test_http1_fault_does_not_repeat_what_the_server_sent(thrown_back: bytes) -> None:
    session = Http1Session(Target(b"dns.example", b"/dns-query", get=True))
    session.request(Closed(), query_wire("q.example"))  # type: ignore[arg-type]
    with pytest.raises(HttpError) as caught:
        session.receive(thrown_back)
    assert "secret" not in str(caught.value)
    assert "bytearray" not in str(caught.value)


@pytest.mark.parametrize("kind", [b"text/" + SECRET, SECRET, b"text/html; " + SECRET])
def test_http_fault_does_not_repeat_a_content_type_that_may_be_a_question(kind: bytes) -> None:
    exchange = Exchange(Closed())  # type: ignore[arg-type]
    exchange.outcome, exchange.status, exchange.content_type = ANSWERED, 200, kind
    assert flaw_of(exchange).startswith("answered ")
    assert "secret" not in flaw_of(exchange)


@pytest.mark.parametrize("junk", [b"", b"\0", bytes(11), bytes(12), b"\xff" * 40])
@on_loop
async def test_stream_that_floods_what_answers_nothing_is_ended_and_told(junk: bytes) -> None:
    def serve(link: Link, wire: bytes) -> None:
        for _ in range(3):
            link.transport.write(frame(junk) * MAX_IDLE_MESSAGES)

    async with TcpPeer(serve) as peer, UdpPeer() as other, Shell(peer.tcp, other.udp) as shell:
        for _ in range(8):
            assert await shell.ask().rcode() == 0
        await until(lambda: any("floods" in reason for reason in shell.reasons))
        drops = shell.dropped("reply_malformed") + shell.dropped("reply_unmatched")
        assert drops <= len(peer.links) * 2 * (MAX_IDLE_MESSAGES + 16)


@on_loop
async def test_stream_that_floods_between_two_answers_is_ended_and_the_second_asked_again() -> None:
    heard: list[bytes] = []

    def serve(link: Link, wire: bytes) -> None:
        heard.append(wire)
        if len(heard) == 2:
            first, second = (frame(reply_wire(each)) for each in heard)
            link.transport.write(first + frame(b"") * 3 * MAX_IDLE_MESSAGES + second)
        elif len(heard) > 2:
            link.say(reply_wire(wire))

    async with TcpPeer(serve) as peer, Shell(peer.tcp) as shell:
        asked = [shell.ask(query_wire(f"q{number}.example")) for number in range(2)]
        assert [await each.rcode() for each in asked] == [0, 0]
        assert len(peer.links) == 2
        assert shell.resolver().lost == 0


@on_loop
async def test_stream_with_many_late_answers_between_good_ones_goes_on() -> None:
    def serve(link: Link, wire: bytes) -> None:
        late = reply_wire(b"\0\0" + wire[2:])
        link.transport.write(frame(late) * (MAX_IDLE_MESSAGES // 2))
        link.say(reply_wire(wire))

    async with TcpPeer(serve) as peer, Shell(peer.tcp) as shell:
        for _ in range(10):
            assert await shell.ask().rcode() == 0
        assert len(peer.links) == 1
        assert not any(shell.reasons)


@on_loop
async def test_stream_that_floods_while_nothing_is_asked_is_ended_and_an_error() -> None:
    def serve(link: Link, wire: bytes) -> None:
        link.say(reply_wire(wire))
        if len(link.heard) == 2:
            link.transport.write(frame(b"") * 2 * MAX_IDLE_MESSAGES)

    async with TcpPeer(serve) as peer, Shell(peer.tcp) as shell:
        for _ in range(2):
            assert await shell.ask().rcode() == 0
        await until(lambda: peer.links[0].ended)
        assert shell.blames() == (0, 1)
        assert shell.reasons[-1] == "floods its connections with what answers nothing"
        assert await shell.ask().rcode() == 0
        assert shell.reasons[-1] == ""


# -- what TLS says for itself -------------------------------------------------------------------

TICKETS = 1_000
"""Each takes some 250 bytes."""


@on_loop
async def flood_of_tickets(authority: Authority) -> None:
    tls = authority.issue([NAME]).context()
    tls.num_tickets = TICKETS
    async with TcpPeer(tls=tls) as peer, UdpPeer() as other:
        host, port = peer.address[:2]
        ca_file = str(authority.file)
        place = ResolverEntry(0, "dot", host, port, "x", server_name=NAME, ca_file=ca_file)
        async with Shell(place, other.udp) as shell:
            assert await shell.ask().rcode() == 0
            await until(lambda: shell.resolver().errors)
            assert "floods its connections with what answers nothing" in shell.reasons
            assert shell.resolver().answered == 0


def test_tls_that_floods_tickets_is_ended_and_an_error(authority: Authority) -> None:
    flood_of_tickets(authority)


@dataclass
class Carried:
    """What a channel carries the bytes of."""

    silent_since: float = 0.0
    idle_since: float = 1.0
    received: bytes = b""

    def data_received(self, data: bytes) -> None:
        self.received += data

    def at_end(self) -> None:
        raise AssertionError


class TlsPair:
    """A channel after its handshake, and what its server sends after that: tickets, then data."""

    def __init__(self, authority: Authority, version: ssl.TLSVersion, tickets: int) -> None:
        tls = authority.issue([NAME]).context()
        tls.num_tickets = tickets
        tls.maximum_version = version
        incoming, outgoing, there, self.back = (ssl.MemoryBIO() for _ in range(4))
        client = ssl.create_default_context(cafile=str(authority.file)).wrap_bio(
            incoming, outgoing, server_hostname=NAME
        )
        self.server = tls.wrap_bio(there, self.back, server_side=True)
        for step in (client, self.server, client, self.server):
            incoming.write(self.back.read())
            with suppress(ssl.SSLWantReadError):
                step.do_handshake()
            there.write(outgoing.read())
        if version < ssl.TLSVersion.TLSv1_3:
            incoming.write(self.back.read())
            client.do_handshake()
        self.lost: list[OSError | None] = []
        self.carried = Carried()
        self._socks = socket.socketpair()
        poller = SimpleNamespace(add=lambda *_: None, remove=lambda _: None)
        pool: Any = SimpleNamespace(poller=poller)
        self.channel = TlsChannel(pool, self._socks[0], TlsLayer(client, incoming, outgoing))
        self.channel.start(self.carried, lambda _, error: self.lost.append(error))

    def close(self) -> None:
        for sock in self._socks:
            sock.close()

    def say(self, data: bytes) -> bytes:
        """What the server sends next, as it goes over the wire."""
        if data:
            self.server.write(data)
        return self.back.read()


def test_tls_bytes_that_bring_no_data_are_counted_from_answer_to_answer(
    authority: Authority,
) -> None:
    for answers in (False, True):
        pair = TlsPair(authority, ssl.TLSVersion.TLSv1_3, TICKETS)
        tickets = pair.say(b"")
        assert len(tickets) > 4 * MAX_IDLE_BYTES
        taken = 0
        while taken < len(tickets) and not pair.lost:
            pair.channel._received(tickets[taken : taken + 10_000])
            taken += 10_000
            pair.carried.idle_since += answers
        if answers:
            assert not pair.lost
        else:
            assert [type(each) for each in pair.lost] == [Floods]
            assert MAX_IDLE_BYTES < taken <= MAX_IDLE_BYTES + 10_000
        pair.close()


def test_tls_data_is_no_flood_however_it_is_cut(authority: Authority) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        pair = TlsPair(authority, version, 2)
        pair.channel._received(pair.say(b""))
        said = b""
        for size, times in ((1, 3_000), (60, 1_000), (60_000, 10)):
            sent = b"".join(pair.say(b"x" * size) for _ in range(times))
            said += b"x" * size * times
            for start in range(0, len(sent), 1_357):
                pair.channel._received(sent[start : start + 1_357])
        assert pair.carried.received == said
        assert not pair.lost
        pair.close()
