"""Ways to a resolver: several addresses, a source address or interface, proxies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.loopback import HOST, Shell, TcpPeer, UdpPeer, closed_port, on_loop, until
from tests.rig.certs import Authority
from tests.rig.net import free_address
from tests.rig.proxies import Microsocks, Tinyproxy
from workers.settings import ResolverEntry

NOERROR = 0
SOURCE = "127.0.0.77"


def tcp(peer: TcpPeer, **fields: object) -> ResolverEntry:
    host, port = peer.address[:2]
    return ResolverEntry(0, "tcp", host, port, "tcp://peer", **fields)  # type: ignore[arg-type]


# -- addresses ----------------------------------------------------------------------------------


@on_loop
async def test_dial_of_a_dead_address_goes_on_to_the_next_and_stays_there() -> None:
    async with TcpPeer() as peer:
        port = peer.address[1]
        entry = ResolverEntry(
            0, "tcp", "127.0.0.91", port, "tcp://peer", more_hosts=("127.0.0.92", HOST)
        )
        async with Shell(entry) as shell:
            for _ in range(3):
                assert await shell.ask().rcode() == NOERROR
                peer.links[-1].close()
                await until(lambda: not shell.resolver().transport._connections)
            assert shell.blames() == (0, 0)
            assert not any(shell.reasons)
            assert shell.resolver().transport._dialler._hosts[0] == HOST


# -- source -------------------------------------------------------------------------------------


@on_loop
async def test_bind_to_an_address_is_where_tcp_queries_come_from() -> None:
    async with TcpPeer() as peer, Shell(tcp(peer, bind=SOURCE)) as shell:
        assert await shell.ask().rcode() == NOERROR
        assert peer.links[0].transport.get_extra_info("peername")[0] == SOURCE


@on_loop
async def test_bind_to_an_address_is_where_udp_queries_come_from() -> None:
    async with UdpPeer() as peer:
        host, port = peer.address[:2]
        async with Shell(ResolverEntry(0, "udp", host, port, "udp://x", bind=SOURCE)) as shell:
            assert await shell.ask().rcode() == NOERROR
            assert peer.sources[0][0] == SOURCE


@pytest.mark.parametrize("scheme", ["udp", "tcp"])
def test_bind_to_an_interface_sends_through_it(scheme: str) -> None:
    @on_loop
    async def run() -> None:
        async with UdpPeer() as datagrams, TcpPeer() as streams:
            peer = datagrams if scheme == "udp" else streams
            host, port = peer.address[:2]
            entry = ResolverEntry(0, scheme, host, port, "x", bind="lo")
            async with Shell(entry) as shell:
                assert await shell.ask().rcode() == NOERROR

    run()


@pytest.mark.parametrize("scheme", ["udp", "tcp"])
@pytest.mark.parametrize(
    ("bind", "reason"),
    [
        ("nosuch0", "cannot send from interface nosuch0: No such device"),
        ("192.0.2.200", "cannot send from address 192.0.2.200: Cannot assign requested address"),
        ("::1", "cannot send from address ::1: the resolver's address is not IPv6"),
    ],
)
def test_bind_that_cannot_be_is_a_fault_of_this_machine(
    scheme: str, bind: str, reason: str
) -> None:
    @on_loop
    async def run() -> None:
        async with UdpPeer() as other:
            entry = ResolverEntry(0, scheme, HOST, 53, "x", bind=bind)
            async with Shell(entry, other.udp) as shell:
                assert await shell.ask().rcode() == NOERROR
                await until(lambda: shell.reasons)
                assert shell.reasons[0].startswith(reason)
                assert shell.blames() == (0, 0)

    run()


# -- proxies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Microsocks, Tinyproxy])
@pytest.mark.parametrize("scheme", ["tcp", "dot"])
def test_query_through_a_proxy_is_answered(
    kind: type[Microsocks] | type[Tinyproxy], scheme: str, workdir: Path
) -> None:
    authority = Authority(workdir)
    tls = authority.issue().context() if scheme == "dot" else None

    @on_loop
    async def run() -> None:
        with kind(workdir=workdir) as proxy:
            async with TcpPeer(host="127.0.0.1", tls=tls) as peer:
                port = peer.address[1]
                # The proxy is told a name where there is one.
                entry = ResolverEntry(
                    0,
                    scheme,
                    "localhost",
                    port,
                    "x",
                    via=proxy.url,
                    bind=SOURCE,
                    server_name="dns.rig",
                    ca_file=str(authority.file),
                )
                async with Shell(entry) as shell:
                    assert [await shell.ask().rcode() for _ in range(5)] == [NOERROR] * 5
                    assert proxy.carried(port) == 1
                    assert shell.blames() == (0, 0)

    run()


async def fault_via(url: str, port: int) -> tuple[str, tuple[int, int]]:
    entry = ResolverEntry(0, "tcp", "127.0.0.1", port, "x", via=url)
    async with UdpPeer() as other, Shell(entry, other.udp) as shell:
        assert await shell.ask().rcode() == NOERROR
        await until(lambda: shell.reasons)
        return shell.reasons[-1], shell.blames()


@on_loop
async def test_proxy_that_is_not_there_is_told_and_no_resolver_blamed() -> None:
    address = free_address()
    reason, blamed = await fault_via(f"socks5://u:p@{address}", 53)
    assert reason == f"cannot reach the proxy {address}: {os.strerror(111)}"
    assert blamed == (0, 0)


def test_proxy_that_refuses_the_password_is_told_and_no_resolver_blamed(workdir: Path) -> None:
    @on_loop
    async def run() -> None:
        with Microsocks(workdir=workdir) as socks, Tinyproxy(workdir=workdir) as http:
            for url in (f"socks5://rig:wrong@{socks.address}", f"http://rig:wrong@{http.address}"):
                reason, blamed = await fault_via(url, 53)
                assert reason.startswith("the proxy says: ")
                assert blamed == (0, 0)

    run()


def test_resolver_that_the_proxy_cannot_reach_is_to_blame(workdir: Path) -> None:
    @on_loop
    async def run() -> None:
        with Microsocks(workdir=workdir) as socks:
            reason, blamed = await fault_via(socks.url, closed_port("127.0.0.1"))
            assert reason == "the proxy says: the resolver refused the connection"
            assert blamed == (0, 1)

    run()


RUBBISH = (
    b"",
    b"\x05",
    b"\x05\x00\x05\x00\x00\x09",
    b"\xff" * 300,
    b"HTTP/1.1 \xff\xfe\x00 \x1b[31m\r\n\r\n",
    b"HTTP/1.1 502 " + b"\xe9" * 2000 + b"\r\n\r\n",
)


@pytest.mark.parametrize("scheme", ["socks5", "http"])
@pytest.mark.parametrize("said", RUBBISH)
def test_proxy_that_talks_rubbish_is_told_in_printable_words(said: bytes, scheme: str) -> None:
    @on_loop
    async def run() -> None:
        def greets(link: object) -> None:
            link.transport.write(said)  # type: ignore[attr-defined]
            link.transport.close()  # type: ignore[attr-defined]

        async with TcpPeer(greets=greets, serve=lambda link, wire: None) as proxy:
            host, port = proxy.address[:2]
            reason, blamed = await fault_via(f"{scheme}://{host}:{port}", 53)
            assert "proxy" in reason
            assert reason.isprintable()
            assert len(reason) <= 200
            assert blamed[0] == 0

    run()
