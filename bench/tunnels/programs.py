"""What is measured: tunnels, and the programs that stand between a tunnel and its resolvers."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.rig import Address, Program, Relay, free_address, free_port_53
from tests.rig.files import REPO
from tests.rig.net import is_bound, why_not_installed
from tests.rig.tunnels import (
    DOMAIN,
    Dns2tcpClient,
    Dns2tcpServer,
    DnsttClient,
    DnsttServer,
    why_no_dnstt,
)


class FromTemplate(Program):
    """A program from a command line whose {fields} are filled in; ready once it listens."""

    def __init__(
        self, name: str, template: str, kind: str, address: Address, workdir: Path, **fields: str
    ) -> None:
        self.address = address
        self._kind = kind
        fields |= {"listen": str(address), "listen_host": address.host}
        fields |= {"listen_port": str(address.port), "domain": DOMAIN}
        command = [word.format_map(fields) for word in shlex.split(template)]
        super().__init__(name, command, workdir=workdir, environment={"PYTHONPATH": str(REPO)})

    def is_ready(self) -> bool:
        return is_bound(self.pid, self._kind, self.address)


# -- tunnels -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """A tunnel's server that is up, and how to start a client of it."""

    address: Address
    client: Callable[[Address], AbstractContextManager[Program]]
    """Given the resolver; what connects to the client's `address` comes out at the target."""


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A kind of tunnel. `profile` is what the relay is told that it is."""

    name: str
    profile: str
    why_not: str
    """Why it cannot be measured here; empty where it can."""
    start: Callable[[Address, Path], AbstractContextManager[Server]]
    """Given where its streams are to lead, and a folder."""


@contextlib.contextmanager
def _dns2tcp(target: Address, workdir: Path) -> Iterator[Server]:
    with Dns2tcpServer(target, workdir=workdir) as server:
        yield Server(server.address, lambda resolver: Dns2tcpClient(resolver, workdir=workdir))


@contextlib.contextmanager
def _dnstt(target: Address, workdir: Path) -> Iterator[Server]:
    with DnsttServer(target, workdir=workdir) as server:
        key = server.public_key
        yield Server(server.address, lambda resolver: DnsttClient(resolver, key, workdir=workdir))


def installed_tunnels() -> list[Tunnel]:
    """The tunnels that the rig knows, with the reason where one cannot be had here."""
    return [
        Tunnel("dns2tcp", "dns2tcp", why_not_installed("dns2tcpc", "dns2tcpd"), _dns2tcp),
        Tunnel("dnstt", "dnstt", why_no_dnstt(), _dnstt),
    ]


def tunnel_from(name: str, server_template: str, client_template: str, profile: str) -> Tunnel:
    """Any other tunnel, by the command lines of its two sides."""

    @contextlib.contextmanager
    def start(target: Address, workdir: Path) -> Iterator[Server]:
        def client(resolver: Address) -> Program:
            return FromTemplate(
                f"{name}-client",
                client_template,
                "tcp",
                free_address(),
                workdir,
                resolver=str(resolver),
                resolver_host=resolver.host,
                resolver_port=str(resolver.port),
            )

        with FromTemplate(
            f"{name}-server", server_template, "udp", free_address(), workdir, target=str(target)
        ) as server:
            yield Server(server.address, client)

    return Tunnel(name, profile, "", start)


# -- what stands between ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Via:
    """The way of a tunnel to its resolvers, under the name that the tables show."""

    name: str
    start: Callable[[Tunnel, Sequence[Address], Path], AbstractContextManager[Address]]
    """Given the tunnel, the resolvers and a folder; gives the address that the client asks."""
    resolvers: int | None = None
    """How many of the resolvers it uses; None for all."""


@contextlib.contextmanager
def _first(tunnel: Tunnel, resolvers: Sequence[Address], workdir: Path) -> Iterator[Address]:
    yield resolvers[0]


FIRST = Via("first", _first, resolvers=1)


def relay_with(workers: int) -> Via:
    """`relay serve` with the tunnel's profile."""

    @contextlib.contextmanager
    def start(tunnel: Tunnel, resolvers: Sequence[Address], workdir: Path) -> Iterator[Address]:
        with Relay(
            resolvers,
            workdir=workdir,
            listen=free_port_53(),
            tunnel=tunnel.profile,
            domain=DOMAIN,
            workers=workers,
        ) as relay:
            yield relay.address

    return Via("relay" if workers == 1 else f"relay, {workers} workers", start)


def pool_from(name: str, template: str) -> Via:
    """Any program that serves many resolvers as one, by its command line."""

    @contextlib.contextmanager
    def start(tunnel: Tunnel, resolvers: Sequence[Address], workdir: Path) -> Iterator[Address]:
        listed = {
            "resolvers": ",".join(map(str, resolvers)),
            "resolver_words": " ".join(map(str, resolvers)),
        }
        # As words of their own they must be there before the line is split into words.
        line = template.replace("{resolver_words}", listed["resolver_words"])
        with FromTemplate(
            name, line, "udp", free_port_53(), workdir, resolvers=listed["resolvers"]
        ) as pool:
            yield pool.address

    return Via(name, start)


ROUND_ROBIN = pool_from(
    "roundrobin",
    f"{shlex.quote(sys.executable)} -m bench.tunnels.forwarder {{listen}} {{resolver_words}}",
)
