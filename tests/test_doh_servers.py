"""DoH towards real servers: dnsdist and unbound over HTTP/2, nginx over either version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loopback import Asked, Shell, UdpPeer, on_loop, until
from tests.rig.certs import HOST, Authority, Certificate
from tests.rig.net import Address, why_not_installed
from tests.rig.servers import Nsd
from tests.rig.tls_servers import PATH, DohBackend, Nginx, TlsDnsdist, Unbound
from tests.rig.wire import answer_count, query_wire
from tests.rig.zone import Zone
from workers.settings import ResolverEntry
from workers.transports.http2 import Http2Session
from workers.transports.http2_frames import REFUSED_STREAM

pytestmark = pytest.mark.skipif(
    bool(why_not_installed("dnsdist", "unbound", "nsd", "nginx")),
    reason=why_not_installed("dnsdist", "unbound", "nsd", "nginx"),
)

NOERROR = 0
TXT = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("w")


@pytest.fixture(scope="module")
def good(authority: Authority) -> Certificate:
    return authority.issue()


@pytest.fixture(scope="module")
def nsd(folder: Path) -> Iterator[Nsd]:
    with Nsd([Zone("t.rig")], workdir=folder) as server:
        yield server


@pytest.fixture(scope="module")
def backend(folder: Path, nsd: Nsd) -> Iterator[DohBackend]:
    with DohBackend(nsd.address, workdir=folder) as server:
        yield server


def entry(address: Address, authority: Authority, path: str = PATH, **fields: Any) -> ResolverEntry:
    return ResolverEntry(
        0,
        "https",
        address.host,
        address.port,
        f"https://{HOST}{path}",
        server_name=HOST,
        path=path,
        ca_file=str(authority.file),
        **fields,
    )


def ask_many(shell: Shell, count: int) -> list[Asked]:
    return [shell.ask(query_wire(f"q{n}.t.rig", TXT), stream=True) for n in range(count)]


async def all_answered(shell: Shell, count: int) -> None:
    """Ask at once; every query gets its records, and nothing is held against the resolver."""
    for asked in ask_many(shell, count):
        reply = await asked.reply()
        assert (reply[3] & 0x0F, answer_count(reply)) == (NOERROR, 1)
    resolver = shell.resolver()
    assert (resolver.refused, resolver.lost, resolver.errors) == (0, 0, 0)


@pytest.mark.parametrize("get", [False, True])
def test_dnsdist_answers_hundreds_at_once(
    folder: Path, authority: Authority, good: Certificate, nsd: Nsd, get: bool
) -> None:
    with TlsDnsdist([nsd.address], good, workdir=folder) as server:

        @on_loop
        async def run() -> None:
            async with Shell(entry(server.doh, authority, get=get)) as shell:
                for _ in range(5):
                    await all_answered(shell, 200)

        run()


@pytest.mark.parametrize("max_streams", [10, 100])
def test_unbound_answers_more_at_once_than_it_allows_streams(
    folder: Path, authority: Authority, good: Certificate, nsd: Nsd, max_streams: int
) -> None:
    with Unbound(nsd.address, good, workdir=folder, max_streams=max_streams) as server:

        @on_loop
        async def run() -> None:
            async with Shell(entry(server.doh, authority)) as shell:
                for _ in range(5):
                    await all_answered(shell, 200)

        run()


@pytest.mark.parametrize("get", [False, True])
@pytest.mark.parametrize("http2", [False, True])
def test_nginx_ending_connections_after_some_requests_loses_no_query(
    folder: Path,
    authority: Authority,
    good: Certificate,
    backend: DohBackend,
    http2: bool,
    get: bool,
) -> None:
    with Nginx(backend.address, good, workdir=folder, http2=http2, requests=40) as server:

        @on_loop
        async def run() -> None:
            async with Shell(entry(server.address, authority, get=get)) as shell:
                for _ in range(10):
                    await all_answered(shell, 50)

        run()


def test_nginx_saying_goaway_in_mid_batch_finishes_some_and_is_asked_again_for_others(
    folder: Path,
    authority: Authority,
    good: Certificate,
    backend: DohBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, int]] = []
    on_goaway = Http2Session._on_goaway

    def look(session: Http2Session, stream: int, payload: bytes) -> None:
        before = len(session.exchanges)
        on_goaway(session, stream, payload)
        seen.append((len(session.exchanges), before - len(session.exchanges)))

    monkeypatch.setattr(Http2Session, "_on_goaway", look)
    with Nginx(backend.address, good, workdir=folder, requests=40) as server:

        @on_loop
        async def run() -> None:
            async with Shell(entry(server.address, authority)) as shell:
                for _ in range(20):
                    await all_answered(shell, 50)

        run()
    assert max(below for below, _ in seen) > 0, "no stream was under way below the last"
    assert max(above for _, above in seen) > 0, "no stream was under way above the last"


@pytest.mark.parametrize("max_streams", [1, 4])
def test_nginx_refusing_streams_that_came_before_its_bound_was_known_serves_them_all(
    folder: Path,
    authority: Authority,
    good: Certificate,
    backend: DohBackend,
    max_streams: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = []
    on_reset = Http2Session._on_reset

    def look(session: Http2Session, stream: int, payload: bytes) -> None:
        codes.append(int.from_bytes(payload))
        on_reset(session, stream, payload)

    monkeypatch.setattr(Http2Session, "_on_reset", look)
    with Nginx(backend.address, good, workdir=folder, max_streams=max_streams) as server:

        @on_loop
        async def run() -> None:
            for _ in range(5):
                async with Shell(entry(server.address, authority)) as shell:
                    await all_answered(shell, 30)

        run()
    assert REFUSED_STREAM in codes


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/moved", "HTTP 302 from the server"),
        ("/denied", "HTTP 403 from the server"),
        ("/unavailable", "HTTP 503 from the server"),
        ("/html", "answered text/html instead of DNS"),
        ("/text", "answered text/plain instead of DNS"),
        ("/empty", "answered with an empty body"),
    ],
)
@pytest.mark.parametrize("http2", [False, True])
def test_nginx_answering_no_dns_is_no_resolver(
    folder: Path,
    authority: Authority,
    good: Certificate,
    backend: DohBackend,
    http2: bool,
    path: str,
    reason: str,
) -> None:
    with Nginx(backend.address, good, workdir=folder, http2=http2) as server:

        @on_loop
        async def run() -> None:
            async with UdpPeer() as other:
                # GET: nginx lets nobody post what it serves itself.
                bad = entry(server.address, authority, path, get=True)
                async with Shell(bad, other.udp) as shell:
                    for asked in ask_many(shell, 10):
                        assert await asked.rcode() == NOERROR
                    await until(lambda: reason in shell.reasons)
                    resolver = shell.resolver()
                    assert resolver.errors
                    assert (resolver.refused, resolver.lost) == (0, 0)

        run()


@pytest.mark.parametrize("path", ["/limited", "/limited-wait"])
@pytest.mark.parametrize("http2", [False, True])
def test_nginx_limiting_its_rate_refuses(
    folder: Path,
    authority: Authority,
    good: Certificate,
    backend: DohBackend,
    http2: bool,
    path: str,
) -> None:
    with Nginx(backend.address, good, workdir=folder, http2=http2, rate_qps=20) as server:

        @on_loop
        async def run() -> None:
            async with UdpPeer() as other:
                limited = entry(server.address, authority, path)
                async with Shell(limited, other.udp) as shell:
                    resolver = shell.resolver()
                    while not resolver.limited:
                        for asked in ask_many(shell, 20):
                            assert await asked.rcode() == NOERROR
                    assert (resolver.lost, resolver.errors) == (0, 0)
                    assert not any(shell.reasons)

        run()
