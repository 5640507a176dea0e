"""Names of resolvers (and of proxies), looked up without this machine's own resolver.

Owner: the supervisor. The hosts file comes first, as everywhere; then the bootstrap resolvers are
asked, over UDP with TCP after it, or over TCP or TLS where they are written so. A silent one holds
a look-up up for NEXT_AFTER_S only, one that fails not at all. Invariants: a look-up ends within
LIMIT_S; the relay's own listeners are never asked, whatever the list says; what comes back are
canonical addresses of single hosts, and every failure is a `BootstrapError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import dns.exception
import dns.flags
import dns.message
import dns.rcode
from dns.message import Message, QueryMessage
from dns.rdatatype import RdataType

from relay.config_errors import AddressError
from relay.discovery.device import device_resolvers
from relay.endpoints import ListenAddress, ip_of, parse_host
from relay.resolver_address import AUTO, ResolverAddress, parse
from relay.ways_out import is_local
from shared.errors import RelayError
from workers.transports.faults import in_words

DEFAULT: Final = (
    parse("8.8.8.8"),
    parse("1.1.1.1"),
    parse("9.9.9.9"),
    parse("[2001:4860:4860::8888]"),
    parse("[2606:4700:4700::1111]"),
    parse("[2620:fe::fe]"),
    AUTO,
)
"""Whom names are looked up with where nobody says. The device's own resolvers come last: for names
that only they know, and where no other one can be reached."""

HOSTS_FILE: Final = Path("/etc/hosts")
_LARGEST_HOSTS_FILE_BYTES: Final = 1 << 20

LIMIT_S: Final = 10.0
"""The longest that a look-up takes."""

NEXT_AFTER_S: Final = 1.0
"""How long a bootstrap resolver is waited for before the next one is asked as well."""

UDP_LIMIT_S: Final = 2.0
"""How long one is waited for over UDP before it is asked over TCP."""

OTHER_VERSION_S: Final = 0.5
"""How long addresses of one IP version wait for those of the other."""

MOST_HOSTS: Final = 8
"""Addresses of one name that are of use."""

_LARGEST_MESSAGE_BYTES: Final = 65_535
_SO_BINDTODEVICE: Final = 25
_TYPES: Final = {4: RdataType.A, 6: RdataType.AAAA}


class BootstrapError(RelayError):
    """A name has no address now; says why."""


class Bootstrap:
    """Looks names up with the resolvers of one list. `listens` are the relay's own."""

    def __init__(
        self, servers: Sequence[ResolverAddress], listens: Sequence[ListenAddress]
    ) -> None:
        self._servers = tuple(servers) or DEFAULT
        self._listens = tuple(listens)

    async def look_up(self, address: ResolverAddress, turn: int = 0) -> list[str]:
        """Return the addresses of the name that `address` needs, the best first.

        `turn` is how often this was in vain: each time another resolver of the list comes first,
        because what the last one said may have been a lie. Raises BootstrapError.
        """
        name = address.unresolved
        wanted = _wanted_versions(address.bind)
        hosts = _usable(hosts_of(name), wanted)
        if not hosts:
            servers = self._in_turn(turn)
            if not servers:
                raise BootstrapError(
                    "no bootstrap resolver is left: the relay itself listens there"
                )
            hosts = await _first_answer(servers, name, address.bind, wanted)
        return sorted(hosts, key=_rank)[:MOST_HOSTS]

    def _in_turn(self, turn: int) -> list[ResolverAddress]:
        found: dict[ResolverAddress, None] = {}
        for server in self._servers:
            for each in device_resolvers() if server.is_auto else (server,):
                if not any(self._is_own(each, listen) for listen in self._listens):
                    found[each] = None
        servers = list(found)
        first = turn % len(servers) if servers else 0
        return servers[first:] + servers[:first]

    @staticmethod
    def _is_own(server: ResolverAddress, listen: ListenAddress) -> bool:
        if server.port != listen.port:
            return False
        ours = ip_of(listen.host)
        return any(
            ip_of(host) == ours or (ours is not None and ours.is_unspecified and is_local(host))
            for host in _hosts(server)
        )


def hosts_of(name: str, path: Path = HOSTS_FILE) -> list[str]:
    """Return the addresses that this machine itself has written down for a name, if any."""
    found: dict[str, None] = {}
    with contextlib.suppress(OSError), path.open("rb") as file:
        text = file.read(_LARGEST_HOSTS_FILE_BYTES).decode("utf-8", "replace")
        for line in text.splitlines():
            words = line.partition("#")[0].lower().split()
            if name in (word.removesuffix(".") for word in words[1:]):
                with contextlib.suppress(AddressError):
                    host = parse_host(words[0])
                    if ip_of(host):
                        found[host] = None
    if not found and (name == "localhost" or name.endswith(".localhost")):
        return ["127.0.0.1", "::1"]  # RFC 6761: never asked for
    return list(found)


async def _first_answer(
    servers: Iterable[ResolverAddress], name: str, bind: str, wanted: Sequence[int]
) -> list[str]:
    """Return what the first of `servers` says that says anything."""
    running: dict[asyncio.Task[list[str]], ResolverAddress] = {}
    failures: dict[str, list[str]] = {}

    async def finished(timeout_s: float | None) -> list[str]:
        """Wait for one that ends; return its answer, nothing where it failed or none ended."""
        done, _ = await asyncio.wait(
            running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            server = running.pop(task)
            try:
                return task.result()
            except BootstrapError as error:
                failures.setdefault(str(error), []).append(str(server))
        return []

    try:
        async with asyncio.timeout(LIMIT_S):
            for server in servers:
                running[asyncio.ensure_future(_ask(server, name, bind, wanted))] = server
                if hosts := await finished(NEXT_AFTER_S):
                    return hosts
            while running:
                if hosts := await finished(None):
                    return hosts
    except TimeoutError:
        failures.setdefault("no answer", []).extend(map(str, running.values()))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    raise BootstrapError("; ".join(_told(reason, who) for reason, who in failures.items()))


def _told(reason: str, who: Sequence[str]) -> str:
    more = f" and {len(who) - 1} more" if len(who) > 1 else ""
    return f"{reason} ({who[0]}{more})"


async def _ask(server: ResolverAddress, name: str, bind: str, wanted: Sequence[int]) -> list[str]:
    """Return what one resolver says, of both IP versions where it answers for both."""
    tasks = [asyncio.ensure_future(_ask_for(server, name, bind, version)) for version in wanted]
    try:
        hosts: list[str] = []
        failure = BootstrapError("the name has no address")
        waiting: set[asyncio.Task[list[str]]] = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(
                waiting,
                timeout=OTHER_VERSION_S if hosts else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in done:
                try:
                    hosts += task.result()
                except BootstrapError as error:
                    failure = error
            if not done:
                break
        usable = _usable(hosts, wanted)
        if hosts and not usable:
            raise BootstrapError(f"the answer is {hosts[0]}, which is no host")
        if not usable:
            raise failure
        return usable
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask_for(server: ResolverAddress, name: str, bind: str, version: int) -> list[str]:
    """Return the addresses of one IP version; raise BootstrapError where there is no answer."""
    query = dns.message.make_query(f"{name}.", _TYPES[version])
    reason = "no answer"
    for host in _hosts(server):
        try:
            if server.scheme == "udp":
                reply = await _over_udp(query, host, server.port, bind)
                if reply is None:
                    reply = await _over_stream(query, server, host, bind)
            else:
                reply = await _over_stream(query, server, host, bind)
            if reply.rcode() == dns.rcode.NXDOMAIN:
                raise BootstrapError("no such name")
            if reply.rcode() != dns.rcode.NOERROR:
                raise BootstrapError(f"answered {dns.rcode.to_text(reply.rcode())}")
            assert isinstance(reply, QueryMessage)  # what the answer to a query is
            answer = reply.resolve_chaining().answer
            return [] if answer is None else [record.address for record in answer]
        except OSError as error:
            reason = in_words(error, server.host)
        except EOFError:
            reason = "closed the connection"
        except (dns.exception.DNSException, ValueError):
            reason = "a reply that means nothing"
    raise BootstrapError(reason)


async def _over_udp(query: Message, host: str, port: int, bind: str) -> Message | None:
    """Return the reply, None where there is none or only a part of it."""
    loop = asyncio.get_running_loop()
    with _socket(host, socket.SOCK_DGRAM, bind) as sock, contextlib.suppress(TimeoutError):
        sock.connect((host, port))  # so the kernel lets nobody else's packets in
        sock.send(query.to_wire())
        async with asyncio.timeout(UDP_LIMIT_S):
            while True:
                wire = await loop.sock_recv(sock, _LARGEST_MESSAGE_BYTES)
                with contextlib.suppress(dns.exception.DNSException, ValueError):
                    reply = dns.message.from_wire(wire)
                    if query.is_response(reply):
                        return None if reply.flags & dns.flags.TC else reply
    return None


async def _over_stream(query: Message, server: ResolverAddress, host: str, bind: str) -> Message:
    with _socket(host, socket.SOCK_STREAM, bind) as sock:
        await asyncio.get_running_loop().sock_connect(sock, (host, server.port))
        secured: dict[str, Any] = {}
        if server.scheme == "dot":
            secured = {"ssl": ssl.create_default_context(), "server_hostname": server.host}
        reader, writer = await asyncio.open_connection(sock=sock, **secured)
        try:
            writer.write(query.to_wire(prepend_length=True))
            length = int.from_bytes(await reader.readexactly(2), "big")
            reply = dns.message.from_wire(await reader.readexactly(length))
        finally:
            writer.transport.abort()
    if not query.is_response(reply):
        raise ValueError("a reply to another question")
    return reply


def _socket(host: str, kind: socket.SocketKind, bind: str) -> socket.socket:
    """Return a socket towards `host` that goes the way `bind` says."""
    version = 6 if ":" in host else 4
    sock = socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, kind)
    try:
        sock.setblocking(False)
        if ip_of(bind) is not None:
            sock.bind((bind, 0))
        elif bind:
            sock.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, bind.encode() + b"\0")
    except OSError:
        sock.close()
        raise
    return sock


def _hosts(server: ResolverAddress) -> tuple[str, ...]:
    return server.pins or (server.host,)


def _wanted_versions(bind: str) -> tuple[int, ...]:
    source = ip_of(bind)
    return (4, 6) if source is None else (source.version,)


def _usable(hosts: Iterable[str], wanted: Sequence[int]) -> list[str]:
    """Return `hosts` in canonical spelling, each once, without those that are no single host."""
    found: dict[str, None] = {}
    for host in hosts:
        ip = ip_of(parse_host(host))
        if ip is None or ip.version not in wanted or ip.is_unspecified or ip.is_multicast:
            continue
        if not (ip.version == 6 and ip.is_link_local) and str(ip) != "255.255.255.255":
            found[str(ip)] = None
    return list(found)


def _rank(host: str) -> tuple[bool, bool]:
    """Sort what this machine has no route to behind the rest, and IPv6 behind IPv4."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    routed = False
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 53))  # of a datagram socket: sends nothing
        routed = True
    return not routed, ":" in host
