"""What servers of encrypted resolvers and proxies may do to the relay: nothing but be told of."""

from __future__ import annotations

import pytest

from tests.loopback import Link, Shell, TcpPeer, UdpPeer, on_loop, until
from tests.rig.wire import query_wire, reply_wire
from workers.transports.doh import flaw_of
from workers.transports.framed import MAX_IDLE_MESSAGES
from workers.transports.framing import frame
from workers.transports.http1 import Http1Session
from workers.transports.http_exchange import ANSWERED, Exchange, HttpError, Target

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
