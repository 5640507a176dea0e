"""The listening sockets of every pool: made once, never closed while the relay runs.

Owner: the supervisor. For every pool there is one UDP socket and one TCP listener per worker, all
of one address, in one reuseport group. They outlive the workers: what the kernel has queued on the
socket of a dead worker is answered by its successor.

Invariant: the first socket of an address is bound without SO_REUSEPORT, so that an address which
somebody holds is refused although the holder would share it; only then is the option set and the
rest of the group bound. Index in the group = index of the worker.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import psutil

from relay import steering
from relay.endpoints import ListenAddress, ip_of
from shared.errors import RelayError

BUFFER_BYTES: Final = 8 << 20
"""Wanted receive and send buffer of a UDP socket: a second of a fast tunnel's questions."""

BACKLOG: Final = 1024
FREE_PORT_TRIES: Final = 64

_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_NEEDS_RIGHT: Final = (
    "this needs CAP_NET_BIND_SERVICE, or net.ipv4.ip_unprivileged_port_start set to {port} or lower"
)

log = logging.getLogger(__name__)


class ListenError(RelayError):
    """A pool cannot listen where it should."""


@dataclass(slots=True)
class PoolListeners:
    """The sockets of one pool; the index in each list is the worker's."""

    address: ListenAddress
    """Where the pool really listens: never port 0."""
    udp: list[socket.socket] = field(default_factory=list)
    tcp: list[socket.socket] = field(default_factory=list)

    def close(self) -> None:
        """Close the supervisor's copies."""
        for each in (*self.udp, *self.tcp):
            each.close()


class Listeners:
    """The sockets of all pools, and the steering over them. `mode` is packet or flow."""

    def __init__(self, workers: int, mode: str) -> None:
        self.workers = workers
        self.pools: list[PoolListeners] = []
        self._by_packet = mode == "packet"
        self._programs = True
        """False once the kernel has refused a program."""

    def bind(self, addresses: Iterable[ListenAddress]) -> None:
        """Make the sockets of one pool for every address, all or none. Raises ListenError."""
        try:
            for address in addresses:
                self.pools.append(bind_pool(address, self.workers))
        except ListenError:
            self.close()
            raise
        self.steer(range(self.workers))

    def descriptors(self, worker: int) -> list[int]:
        """Return every descriptor that a worker is given."""
        return [
            each.fileno() for pool in self.pools for each in (pool.udp[worker], pool.tcp[worker])
        ]

    def steer(self, serving: Collection[int]) -> None:
        """Let the kernel choose among the workers `serving`, or among all where none does."""
        if self.workers == 1 or not self._programs:
            return
        all_serve = len(serving) in (0, self.workers)
        code = steering.program(self.workers, serving)
        for pool in self.pools:
            self._steer(pool.udp[0], code, by_packet=self._by_packet, all_serve=all_serve)
            self._steer(pool.tcp[0], code, by_packet=False, all_serve=all_serve)

    def close(self) -> None:
        """Close the supervisor's copies of all sockets."""
        for pool in self.pools:
            pool.close()
        self.pools.clear()

    def _steer(
        self, member: socket.socket, code: bytes, *, by_packet: bool, all_serve: bool
    ) -> None:
        if all_serve and not by_packet:
            with contextlib.suppress(OSError):  # most often there is none to take away
                steering.detach(member)
            return
        if not self._programs:
            return
        try:
            steering.attach(member, code)
        except OSError as error:
            self._programs = False
            log.warning(
                "the kernel takes no steering program (%s): it spreads by flow, so one client "
                "socket keeps to one worker",
                error.strerror,
            )


def bind_pool(address: ListenAddress, workers: int) -> PoolListeners:
    """Make the sockets of one pool. Port 0 finds a port that is free for UDP and TCP alike."""
    if address.port:
        return _bind_group(address, workers)
    for _ in range(FREE_PORT_TRIES):
        probe = _bound(socket.SOCK_DGRAM, address)
        free = ListenAddress(address.host, probe.getsockname()[1])
        try:
            return _bind_group(free, workers, probe)
        except ListenError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != (
                errno.EADDRINUSE
            ):
                raise
    raise ListenError(f"no port of {address.host} is free for both UDP and TCP")


def _bind_group(
    address: ListenAddress, workers: int, first_udp: socket.socket | None = None
) -> PoolListeners:
    made = PoolListeners(address)
    try:
        for kind, group in ((socket.SOCK_DGRAM, made.udp), (socket.SOCK_STREAM, made.tcp)):
            if kind == socket.SOCK_DGRAM and first_udp is not None:
                first = first_udp
            else:
                first = _bound(kind, address)
            group.append(first)
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            group.extend(_bound(kind, address, shared=True) for _ in range(workers - 1))
        for each in made.udp:
            _enlarge(each)
        for each in made.tcp:
            each.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise ListenError(f"cannot listen on {address}: {error.strerror}") from error
    except ListenError:
        made.close()
        raise
    return made


def _bound(
    kind: socket.SocketKind, address: ListenAddress, *, shared: bool = False
) -> socket.socket:
    """Return a non-blocking socket bound to `address`; raise ListenError that says who holds it."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        made = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {error.strerror}") from error
    try:
        if family == socket.AF_INET6:
            # One pool, one address: `::` must not take what another pool has on 0.0.0.0.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_STREAM:
            # Connections of the relay before this one, still in TIME_WAIT, do not hold the port.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        target = socket.getaddrinfo(
            address.host, address.port, family, kind, flags=socket.AI_NUMERICHOST
        )[0][4]
        made.bind(target)
    except OSError as error:
        made.close()
        protocol = "UDP" if kind == socket.SOCK_DGRAM else "TCP"
        reason = _reason(error, protocol, address)
        raise ListenError(f"cannot listen on {address} ({protocol}): {reason}") from error
    return made


def _reason(error: OSError, protocol: str, address: ListenAddress) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = holder_of(protocol, address.host, address.port)
        return f"the address is in use by {holder}" if holder else "the address is already in use"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{error.strerror}; {_NEEDS_RIGHT.format(port=address.port)}"
    if error.errno == errno.EADDRNOTAVAIL:
        return "no interface of this machine has this address"
    return error.strerror or str(error)


def holder_of(protocol: str, host: str, port: int) -> str:
    """Return the name and pid of a process that has the address, empty where that is not known."""
    try:
        rows = psutil.net_connections(protocol.lower())
    except (psutil.Error, OSError):
        return ""
    wanted = ip_of(host.partition("%")[0])
    pids = set()
    for row in rows:
        if not row.pid or not row.laddr or row.laddr.port != port:
            continue
        held = ip_of(row.laddr.ip)
        if held == wanted or (held and held.is_unspecified) or (wanted and wanted.is_unspecified):
            pids.add(row.pid)
    pid = min(pids, default=0)
    if not pid:
        return ""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if _title(process).startswith("relay: worker"):
            # A relay's workers hold its sockets too; the one to stop is their supervisor.
            process = process.parent() or process
        if process.pid == os.getpid():
            return "another pool of this relay"
        return f"{_title(process) or process.name()} (pid {process.pid})"
    return f"pid {pid}"


def _title(process: psutil.Process) -> str:
    """Return the title that a relay's process gave itself, empty for any other process."""
    words = process.cmdline()
    return words[0] if words and words[0].startswith("relay: ") else ""


def _enlarge(udp: socket.socket) -> None:
    """Give a UDP socket large buffers: beyond the system's limit where that is allowed."""
    for force, plain in (
        (_SO_RCVBUFFORCE, socket.SO_RCVBUF),
        (_SO_SNDBUFFORCE, socket.SO_SNDBUF),
    ):
        try:
            udp.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
        except OSError:
            udp.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)
