"""Queries that wait although their resolver is well: for a dial, settings, a stream, an ACK."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from statistics import median
from time import monotonic

import pytest

from tests.doh_shell import NAME, NOERROR, ask_many, entry, rcodes
from tests.loopback import HOST, Link, Shell, TcpPeer, on_loop, until
from tests.rig.certs import Authority, Certificate
from tests.rig.doh_server import DohServer, Http2Link, HttpAsked, SettingCodes, serve_plainly
from tests.rig.gate import Gate
from tests.rig.net import Address
from workers.engine.health import State
from workers.settings import ResolverEntry
from workers.transports import dial, doh

PER_ATTEMPT_S = 0.3


@contextlib.asynccontextmanager
async def server_of(
    kind: str, authority: Authority, certificate: Certificate
) -> AsyncIterator[ResolverEntry]:
    """A server of a kind, as it stands in a roster."""
    if kind == "dot":
        async with TcpPeer(tls=certificate.context()) as peer:
            host, port = peer.address[:2]
            yield ResolverEntry(
                0, kind, host, port, kind, server_name=NAME, ca_file=str(authority.file)
            )
    else:
        async with DohServer(certificate, host=HOST, alpn=(kind,)) as server:
            yield entry(server, authority)


@pytest.mark.parametrize("kind", ["dot", "h2", "http/1.1"])
def test_queries_that_wait_for_a_handshake_longer_than_per_attempt_are_answered_without_blame(
    kind: str, authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        async with server_of(kind, authority, good) as server:
            with Gate(Address(server.host, server.port)) as gate:
                gate.hold_s = 3 * PER_ATTEMPT_S
                place = replace(server, host=gate.address.host, port=gate.address.port)
                async with Shell(place, per_attempt_s=PER_ATTEMPT_S) as shell:
                    began = monotonic()
                    asked = ask_many(shell, 20)
                    await until(lambda: asked[0].replies)
                    gate.hold_s = 0.0
                    assert await rcodes(asked) == [NOERROR] * 20
                    assert monotonic() - began > 2 * PER_ATTEMPT_S
                    resolver = shell.resolver()
                    assert (shell.blames(), resolver.overdue) == ((0, 0), 0)
                    assert resolver.rtt_sum_s / resolver.answered < PER_ATTEMPT_S

    run()


@pytest.mark.parametrize("kind", ["h2", "http/1.1"])
def test_queries_that_wait_for_a_stream_longer_than_per_attempt_are_answered_without_blame(
    kind: str, authority: Authority, good: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doh.DohConnection, "most_connections", 1)
    monkeypatch.setattr(doh.Doh1Connection, "most_connections", 1)

    @on_loop
    async def run() -> None:
        loop = asyncio.get_running_loop()
        serve = lambda asked: loop.call_later(0.15, serve_plainly, asked)  # noqa: E731
        bounds = {SettingCodes.MAX_CONCURRENT_STREAMS: 1}
        async with (
            DohServer(good, serve, host=HOST, alpn=(kind,), settings=bounds) as server,
            Shell(entry(server, authority), per_attempt_s=PER_ATTEMPT_S) as shell,
        ):
            assert await shell.ask().rcode() == NOERROR  # from now on the bound is known
            began = monotonic()
            assert await rcodes(ask_many(shell, 6)) == [NOERROR] * 6
            assert monotonic() - began > 2 * PER_ATTEMPT_S
            assert len(server.links) == 1
            assert (shell.blames(), shell.resolver().overdue) == ((0, 0), 0)

    run()


def test_queries_that_wait_for_the_settings_of_a_server_have_their_time_from_then(
    authority: Authority, good: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_s = 0.5
    flush = Http2Link.flush

    def flush_late(link: Http2Link) -> None:
        if not hasattr(link, "silent_until"):
            link.silent_until = monotonic() + late_s  # type: ignore[attr-defined]
            asyncio.get_running_loop().call_later(late_s, flush, link)
        elif monotonic() >= link.silent_until:
            flush(link)

    monkeypatch.setattr(Http2Link, "flush", flush_late)

    @on_loop
    async def run() -> None:
        def serve(asked: HttpAsked) -> None:
            heard.append(asked)
            if len(heard) > 10:  # the first ones are never answered
                serve_plainly(asked)

        heard: list[HttpAsked] = []
        async with (
            DohServer(good, serve, host=HOST) as server,
            Shell(entry(server, authority), per_attempt_s=0.6, deadline_s=0.9) as shell,
        ):
            asked = ask_many(shell, 30)
            assert await rcodes(asked[10:]) == [NOERROR] * 20
            assert shell.resolver().rtt_sum_s / 20 < late_s / 2
            await until(lambda: all(each.replies for each in asked))
            assert shell.resolver().lost <= 10

    run()


@on_loop
async def test_server_that_completes_no_handshake_is_set_down_although_nobody_waits_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial, "DIAL_TIMEOUT_S", 0.15)
    async with TcpPeer(serve=lambda link, wire: None) as mute:
        host, port = mute.address[:2]
        place = ResolverEntry(0, "dot", host, port, "dot", insecure=True)
        async with Shell(place, per_attempt_s=0.05, deadline_s=0.1, down_after=3) as shell:
            for number in range(1, 4):
                assert shell.resolver().state is State.FRESH
                assert await shell.ask().rcode() != NOERROR
                await until(lambda number=number: shell.resolver().errors == number)  # type: ignore[misc]
                await until(lambda: monotonic() >= shell.stream()._dial_not_before)
            await until(lambda: shell.resolver().state is State.DOWN)
            assert shell.resolver().lost == 0
            assert "TLS handshake timed out" in shell.reasons


# -- a server that waits for us -----------------------------------------------------------------


def keep_small_segments_back(transport: asyncio.BaseTransport) -> None:
    """Switch Nagle's algorithm on, as it is unless a program switches it off."""
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)


@pytest.mark.parametrize("scheme", ["tcp", "dot", "https"])
def test_server_that_keeps_small_segments_back_has_no_delayed_acknowledgement_to_wait_for(
    scheme: str, authority: Authority, good: Certificate
) -> None:
    @on_loop
    async def run() -> None:
        def greets(link: Link) -> None:
            keep_small_segments_back(link.transport)

        def serve(asked: HttpAsked) -> None:
            keep_small_segments_back(asked.link.transport)
            serve_plainly(asked)

        tls = good.context() if scheme == "dot" else None
        async with (
            TcpPeer(greets=greets, tls=tls) as peer,
            DohServer(good, serve, host=HOST) as server,
        ):
            host, port = server.address if scheme == "https" else peer.address[:2]
            place = ResolverEntry(
                0, scheme, host, port, "x", insecure=scheme != "tcp", path="/dns-query"
            )
            async with Shell(place) as shell:
                took_s = []
                for _ in range(25):
                    began = monotonic()
                    assert await rcodes(ask_many(shell, 4)) == [NOERROR] * 4
                    took_s.append(monotonic() - began)
        # The kernel acknowledges a connection's first segments at once, later ones after 40 ms.
        assert median(took_s) < 0.030, took_s

    run()
