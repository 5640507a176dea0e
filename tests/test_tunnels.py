"""Real tunnels through the relay: a file goes down and up and is the same at the other end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import Address, Dnsdist, Namespace, Relay, free_port_53, joined_namespaces
from tests.rig.files import FileServer, fetch, noise, send, sha256
from tests.rig.net import why_no_port_53, why_no_tunnel_devices, why_not_installed
from tests.rig.tunnels import (
    DOMAIN,
    Dns2tcpClient,
    Dns2tcpServer,
    DnsttClient,
    DnsttServer,
    IodineClient,
    IodineServer,
    NamespaceFileServer,
    carry_in_namespace,
    why_no_dnstt,
)

# dns2tcp and iodine wait out every lost order: their uploads run at about 1 Mbit/s.
pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

FILE_BYTES = 5_000_000
RESOLVERS = 3


def skip_where(*reasons: str) -> None:
    """Skip the test for the first reason that is not empty."""
    for reason in reasons:
        if reason:
            pytest.skip(reason)


@contextlib.contextmanager
def resolvers_before(
    server: Address, workdir: Path, namespace: Namespace | None = None
) -> Iterator[list[Dnsdist]]:
    """Three dnsdist resolvers that lead to the tunnel's server."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(Dnsdist([server], workdir=workdir, namespace=namespace))
            for _ in range(RESOLVERS)
        ]


def assert_all_used(resolvers: list[Dnsdist]) -> None:
    """Every resolver has carried a fair part of the tunnel's questions."""
    asked = [resolver.counters()["queries"] for resolver in resolvers]
    assert min(asked) > sum(asked) / len(asked) / 10, asked


def test_tunnel_dns2tcp_file_down_and_up_identical(workdir: Path) -> None:
    skip_where(why_not_installed("dns2tcpc", "dns2tcpd", "dnsdist"), why_no_port_53())
    payload, upload = noise(FILE_BYTES), noise(FILE_BYTES, seed=2)
    with (
        FileServer(payload) as files,
        Dns2tcpServer(files.address, workdir=workdir) as server,
        resolvers_before(server.address, workdir) as resolvers,
        Relay(
            [each.address for each in resolvers],
            workdir=workdir,
            listen=free_port_53(),
            tunnel="dns2tcp",
            domain=DOMAIN,
            workers=2,
        ) as relay,
        Dns2tcpClient(relay.address, workdir=workdir) as client,
    ):
        assert fetch(client.address).digest == sha256(payload)
        assert send(client.address, upload).digest == sha256(upload)
        assert_all_used(resolvers)


def test_tunnel_iodine_file_down_and_up_identical(workdir: Path) -> None:
    skip_where(why_not_installed("iodine", "iodined", "dnsdist"), why_no_tunnel_devices())
    digest = sha256(noise(FILE_BYTES))
    with (
        joined_namespaces() as (near, _, far, far_address),
        IodineServer(far, far_address.host, workdir=workdir) as server,
        resolvers_before(server.address, workdir, near) as resolvers,
        Relay(
            [each.address for each in resolvers],
            workdir=workdir,
            listen=Address("127.0.0.2", 53),
            tunnel="iodine",
            domain=DOMAIN,
            workers=2,
            namespace=near,
        ) as relay,
        IodineClient(near, relay.address, workdir=workdir),
        NamespaceFileServer(
            far, Address(server.inner_host, 7000), FILE_BYTES, workdir=workdir
        ) as files,
    ):
        assert carry_in_namespace(near, "get", files.address, FILE_BYTES, 100.0).digest == digest
        assert carry_in_namespace(near, "put", files.address, FILE_BYTES, 100.0).digest == digest


def test_tunnel_dnstt_file_down_and_up_identical(workdir: Path) -> None:
    skip_where(why_no_dnstt(), why_not_installed("dnsdist"))
    payload, upload = noise(FILE_BYTES), noise(FILE_BYTES, seed=2)
    with (
        FileServer(payload) as files,
        DnsttServer(files.address, workdir=workdir) as server,
        resolvers_before(server.address, workdir) as resolvers,
        Relay(
            [each.address for each in resolvers],
            workdir=workdir,
            tunnel="dnstt",
            domain=DOMAIN,
            workers=2,
        ) as relay,
        DnsttClient(relay.address, server.public_key, workdir=workdir) as client,
    ):
        assert fetch(client.address).digest == sha256(payload)
        assert send(client.address, upload).digest == sha256(upload)
        assert_all_used(resolvers)
