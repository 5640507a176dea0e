"""Servers that take connections and end them without an answer are not dialled in a storm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import pytest

from tests.doh_shell import NAME, NOERROR, entry
from tests.loopback import HOST, Link, Shell, TcpPeer, UdpPeer, on_loop
from tests.rig.certs import Authority, Certificate
from tests.rig.doh_server import DohServer, Http2Link, HttpAsked, HttpLink, serve_plainly
from tests.rig.wire import query_wire, reply_wire
from workers.settings import ResolverEntry

SECONDS = 1.5
RATE_QPS = 200
MOST_DIALS = 8
"""Pauses double from 0.05 s to 1 s: about six dials in this time, and two that began at once."""


async def dials_of(shell: Shell) -> int:
    """Ask steadily; return how many dials that took."""
    before = shell.stream().dials
    began = monotonic()
    number = 0
    while monotonic() - began < SECONDS:
        number += 1
        shell.ask(query_wire(f"q{number}.t.example"))
        await asyncio.sleep(1 / RATE_QPS)
    return shell.stream().dials - before


def end(link: Link | HttpLink, how: str) -> None:
    link.transport.abort() if how == "reset" else link.transport.close()


@pytest.mark.parametrize("served_before", [False, True])
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("at", ["connect", "query"])
def test_dot_server_that_ends_every_connection_is_dialled_seldom(
    at: str, how: str, served_before: bool, authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        bad = not served_before

        def greets(link: Link) -> None:
            if bad and at == "connect":
                end(link, how)

        def serve(link: Link, wire: bytes) -> None:
            if bad:
                end(link, how)
            else:
                link.say(reply_wire(wire))

        async with TcpPeer(serve, greets=greets, tls=good.context()) as peer, UdpPeer() as other:
            host, port = peer.address[:2]
            ca_file = str(authority.file)
            place = ResolverEntry(0, "dot", host, port, "x", server_name=NAME, ca_file=ca_file)
            async with Shell(place, other.udp) as shell:
                if served_before:
                    for _ in range(20):
                        assert await shell.ask().rcode() == NOERROR
                    bad = True
                    peer.links[-1].close()
                assert await dials_of(shell) <= MOST_DIALS
                assert any(shell.reasons)
                assert shell.resolver().errors

    run()


def goaway(asked: HttpAsked, how: str) -> None:
    assert isinstance(asked.link, Http2Link)
    asked.link.say_goaway(0)
    if how == "close":
        asked.link.close()


def refuse(asked: HttpAsked, how: str) -> None:
    assert isinstance(asked.link, Http2Link)
    asked.link.reset(asked, 7)
    end(asked.link, how)


ENDS: dict[str, Callable[[HttpAsked, str], None]] = {
    "ends": lambda asked, how: end(asked.link, how),
    "goaway": goaway,
    "refused stream": refuse,
}


@pytest.mark.parametrize("served_before", [False, True])
@pytest.mark.parametrize(
    ("alpn", "what", "how"),
    [
        ("h2", "ends", "close"),
        ("h2", "ends", "reset"),
        ("h2", "goaway", "close"),
        ("h2", "goaway", "stay"),
        ("h2", "refused stream", "close"),
        ("http/1.1", "ends", "close"),
        ("http/1.1", "ends", "reset"),
    ],
)
def test_doh_server_that_ends_every_connection_is_dialled_seldom(
    alpn: str, what: str, how: str, served_before: bool, authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        bad = not served_before

        def serve(asked: HttpAsked) -> None:
            if bad:
                ENDS[what](asked, how)
            else:
                serve_plainly(asked)

        async with (
            DohServer(good, serve, host=HOST, alpn=(alpn,)) as server,
            UdpPeer() as other,
            Shell(entry(server, authority), other.udp) as shell,
        ):
            if served_before:
                for _ in range(20):
                    assert await shell.ask().rcode() == NOERROR
                bad = True
                server.links[-1].close()
            assert await dials_of(shell) <= MOST_DIALS
            assert any(shell.reasons)
            assert shell.resolver().errors

    run()
