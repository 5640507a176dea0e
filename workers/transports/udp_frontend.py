"""UDP towards clients: a listening socket of one pool in one worker.

Replies leave from the address that was asked. On a socket bound to one address the kernel sees to
that; on a wildcard socket every datagram brings along where it was sent to (IP_PKTINFO), and the
reply is sent from there.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from workers.engine.pending import Query

if TYPE_CHECKING:
    from workers.pool import Pool

BATCH: Final = 64
"""Datagrams taken from a socket before others get their turn."""

MAX_DATAGRAM_BYTES: Final = 65_535
ANCILLARY_BYTES: Final = 256
WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to

IP_PKTINFO: Final = getattr(socket, "IP_PKTINFO", 8)  # named in the socket module from 3.14 on


class UdpFrontend:
    """A socket bound to one address. `address` of its queries is the client's."""

    is_stream: bool = False

    def __init__(self, pool: Pool, sock: socket.socket) -> None:
        self._pool = pool
        self._sock = sock
        self._quota = 1
        self._receive = self._receiver()
        sock.setblocking(False)
        pool.loop.add_reader(sock.fileno(), self._readable)

    def close(self) -> None:
        """Take no more queries; the socket stays open for the replies."""
        self._pool.loop.remove_reader(self._sock.fileno())

    async def emptied(self) -> None:
        """Return at once: a datagram leaves when it is written, or never."""

    def reply(self, query: Query) -> None:
        """Send a reply; a client that is gone is counted."""
        try:
            self._sock.sendto(query.reply, query.address)
        except OSError:
            self._pool.engine.counters.drop("client_gone")

    def _receiver(self) -> Callable[[int], tuple[bytes, Any]]:
        """Return what takes a datagram, given the most bytes, and says where it came from."""
        return self._sock.recvfrom

    def _readable(self) -> None:
        # The quota follows the size of recent batches: a lone datagram is not followed by a call
        # that only says there is no other (the loop would call again if there were).
        pool = self._pool
        engine = pool.engine
        receive = self._receive
        quota = self._quota
        taken = 0
        while taken < quota:
            try:
                wire, address = receive(MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                quota = 0
                break
            except OSError as error:
                if error.errno in (errno.EBADF, errno.ENOTSOCK):
                    raise
                continue  # an ICMP error about an earlier reply
            taken += 1
            attempt = engine.query(monotonic(), self, address, wire)
            if attempt is not None:
                attempt.resolver.transport.send(attempt)
        self._quota = max(taken, 1) if not quota else min(taken * 2, BATCH)
        pool.flush()


class WildcardUdpFrontend(UdpFrontend):
    """A socket bound to every address. `address` of its queries is (client, asked address)."""

    def __init__(self, pool: Pool, sock: socket.socket) -> None:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        super().__init__(pool, sock)

    def reply(self, query: Query) -> None:
        """Send a reply from the address that was asked."""
        client, asked = query.address
        try:
            self._sock.sendmsg([query.reply], asked, 0, client)
        except OSError:
            self._pool.engine.counters.drop("client_gone")

    def _receiver(self) -> Callable[[int], tuple[bytes, Any]]:
        def receive(most_bytes: int) -> tuple[bytes, Any]:
            wire, ancillary, _, client = self._sock.recvmsg(most_bytes, ANCILLARY_BYTES)
            asked = [(level, kind, _as_source(level, data)) for level, kind, data in ancillary]
            return wire, (client, asked)

        return receive


def _as_source(level: int, pktinfo: bytes) -> bytes:
    """Turn a received pktinfo into one that chooses the source address.

    in_pktinfo is interface, local address, destination address (4 bytes each): replies take the
    local address as their source and no fixed interface. in6_pktinfo is address, interface; the
    interface is kept, since link-local addresses need it.
    """
    if level == socket.IPPROTO_IP:
        return bytes(4) + pktinfo[8:12] + bytes(4)
    return pktinfo


def udp_frontend(pool: Pool, sock: socket.socket) -> UdpFrontend:
    """Return the frontend that fits what the socket is bound to."""
    if sock.getsockname()[0] in WILDCARDS:
        return WildcardUdpFrontend(pool, sock)
    return UdpFrontend(pool, sock)
