"""UDP to one resolver: persistent connected sockets, more of them when one runs short of IDs.

A connected socket takes packets of its resolver only and hears of a closed port at once (ICMP comes
back as ECONNREFUSED). Its source port is chosen by the kernel, its IDs are random.

What is wrong is told in words for people: an error at once, its end at the first answer. Errors may
come with every packet, and answers between them, so there is at most one change in `TELL_S`, and no
end while the last error is not that old.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from workers.engine.pending import Attempt
from workers.engine.resolver import Resolver
from workers.transports.dial import bind_source
from workers.transports.faults import PACKET_ERRNOS, RESOLVER_ERRNOS, Backoff, in_words
from workers.transports.stream_resolver import StreamTransport

if TYPE_CHECKING:
    from workers.pool import Pool

log = logging.getLogger(__name__)

BATCH: Final = 64
"""Datagrams taken from a socket before others get their turn."""

MAX_DATAGRAM_BYTES: Final = 65_535

IDS_PER_SOCKET: Final = 16_384
"""Open attempts of one socket, a quarter of its IDs: drawing a free one stays cheap, and a spoofer
has to guess a port besides."""

MAX_SOCKETS: Final = 16

RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Asked for; the kernel grants what its limits allow."""

REFUSED_IN_A_ROW: Final = 16
"""After so many closed-port errors without a reply the socket is made anew, with backoff."""

STALE_SOCKET_S: Final = 5.0
"""A resolver that is down gets a new socket this often."""

TELL_S: Final = 1.0
"""See the module."""


class UdpTransport:
    """All UDP sockets of one worker to one resolver, and the TCP way for what came truncated."""

    def __init__(self, pool: Pool, resolver: Resolver) -> None:
        self._pool = pool
        self._resolver = resolver
        self._sockets: list[UdpSocket] = []
        self._current: UdpSocket | None = None
        self._backoff = Backoff(0.1, 5.0)
        self._reopen: asyncio.TimerHandle | None = None
        self._opened_at = 0.0
        self._refused_in_a_row = 0
        self._told = SteadyFault(pool, resolver)
        self._could_open = True
        self.suspect = False
        self._tcp: StreamTransport | None = None
        self._open()

    def send(self, attempt: Attempt) -> None:
        """Send an attempt; a failure goes back to the engine at once."""
        udp_socket = self._current
        if udp_socket is None or attempt.over_stream or len(udp_socket.table) >= IDS_PER_SOCKET:
            self._send_another_way(attempt)
        else:
            udp_socket.send(attempt)

    def renew(self) -> None:
        """Make the socket anew, for a resolver that is down.

        The old one may be bound to a local address that is gone, and packets sent from it vanish.
        """
        if self._current is not None and monotonic() - self._opened_at > STALE_SOCKET_S:
            self._drop_sockets()
            self._open()

    def close(self) -> None:
        """Close every socket; attempts that are still open go elsewhere."""
        if self._reopen is not None:
            self._reopen.cancel()
        self._told.close()
        self._drop_sockets()
        if self._tcp is not None:
            self._tcp.close()

    def replied(self) -> None:
        """Something came back: the port is open."""
        self.suspect = False
        self._refused_in_a_row = 0
        self._backoff.reset()
        self._told.answered(monotonic())

    def refused(self, table: dict[bytes, Attempt], error: OSError) -> None:
        """The port is closed: what is open on the socket fails, and goes elsewhere at once."""
        now = monotonic()
        self._told.failed(now, in_words(error))
        engine = self._pool.engine
        for attempt in list(table.values()):
            engine.failed(now, attempt)
        self.suspect = True
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= REFUSED_IN_A_ROW:
            self._refused_in_a_row = 0
            self._start_over()

    def broken(self, error: OSError) -> None:
        """A socket is no good any more: make it anew after a while."""
        self._told.failed(monotonic(), f"{in_words(error)}; opening a new socket")
        self._start_over()

    def _start_over(self) -> None:
        self.suspect = True
        self._drop_sockets()
        self._pool.engine.set_usable(self._resolver, False)
        if self._reopen is None:
            self._reopen = self._pool.loop.call_later(self._backoff.next_s(), self._on_reopen)

    def _on_reopen(self) -> None:
        self._reopen = None
        self._open()
        self._pool.flush()

    def _open(self) -> None:
        try:
            self._current = UdpSocket(self._pool, self._resolver, self)
        except OSError as error:
            self._could_open = False
            self.broken(error)
            return
        self._sockets.append(self._current)
        self._opened_at = monotonic()
        if not self._could_open:
            self._could_open = True
            self._told.over()
        self._pool.engine.set_usable(self._resolver, True)

    def _send_another_way(self, attempt: Attempt) -> None:
        """Send over TCP what must go there, or over a socket with free IDs."""
        if attempt.over_stream:
            if self._tcp is None:
                self._tcp = StreamTransport(self._pool, self._resolver)
            self._tcp.send(attempt)
            return
        roomy = self._with_room()
        if roomy is None:
            self._pool.engine.unsent(monotonic(), attempt)
        else:
            self._current = roomy
            roomy.send(attempt)

    def _with_room(self) -> UdpSocket | None:
        """Return the socket with the most free IDs, or one more if none has many; None if full."""
        sockets = self._sockets
        if not sockets:
            return None
        roomiest = min(sockets, key=lambda udp_socket: len(udp_socket.table))
        if len(roomiest.table) > IDS_PER_SOCKET // 2 and len(sockets) < MAX_SOCKETS:
            try:
                roomiest = UdpSocket(self._pool, self._resolver, self)
                sockets.append(roomiest)
            except OSError as error:
                log.info("%s: no further socket: %s", self._resolver.name, in_words(error))
        return roomiest if len(roomiest.table) < IDS_PER_SOCKET else None

    def _drop_sockets(self) -> None:
        now = monotonic()
        sockets = self._sockets
        self._sockets = []
        self._current = None
        for udp_socket in sockets:
            udp_socket.close()
            for attempt in list(udp_socket.table.values()):
                self._pool.engine.unsent(now, attempt)


class SteadyFault:
    """What is told of a resolver where errors and answers come in any order. See the module."""

    __slots__ = ("_failed_at", "_pool", "_reason", "_resolver", "_timer", "_told_at")

    def __init__(self, pool: Pool, resolver: Resolver) -> None:
        self._pool = pool
        self._resolver = resolver
        self._reason = ""
        self._failed_at = -inf
        self._told_at = -inf
        self._timer: asyncio.TimerHandle | None = None

    def failed(self, now: float, reason: str) -> None:
        """An error came; `reason` says in words for people what it is."""
        self._reason = reason
        self._failed_at = now
        self._settle(now)

    def answered(self, now: float) -> None:
        """An answer came."""
        self._reason = ""
        self._settle(now)

    def over(self) -> None:
        """What was wrong is known to be over."""
        self.close()
        self._reason = ""
        self._pool.fault(self._resolver, "")

    def close(self) -> None:
        """Tell nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settle(self, now: float) -> None:
        """Tell how it is, now or when it may be told."""
        if self._timer is not None:
            return
        due_at = TELL_S + (self._told_at if self._reason else max(self._told_at, self._failed_at))
        if now >= due_at:
            self._told_at = now
            self._pool.fault(self._resolver, self._reason)
        else:
            self._timer = self._pool.loop.call_later(due_at - now, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._settle(monotonic())


class UdpSocket:
    """One connected socket; `table` holds its open attempts by ID."""

    __slots__ = ("_draw", "_fd_sock", "_owner", "_pool", "_recv", "_send", "table")

    def __init__(self, pool: Pool, resolver: Resolver, owner: UdpTransport) -> None:
        self._pool = pool
        self._owner = owner
        self.table: dict[bytes, Attempt] = {}
        entry = resolver.entry
        family = socket.AF_INET6 if ":" in entry.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            bind_source(sock, entry.bind)
            sock.connect((entry.host, entry.port))
            pool.poller.add(sock.fileno(), self._readable)
        except BaseException:
            sock.close()
            raise
        self._fd_sock = sock
        self._recv = sock.recv
        self._send = sock.send
        self._draw = pool.ids.draw

    def send(self, attempt: Attempt) -> None:
        """Send an attempt under an ID of this socket."""
        table = self.table
        drawn = self._draw(table)
        attempt.id = drawn
        attempt.table = table
        table[drawn] = attempt
        message = drawn + attempt.query.wire[2:]
        try:
            self._send(message)
        except OSError as error:
            self._send_failed(attempt, message, error)

    def close(self) -> None:
        """Close the socket. Its open attempts are the caller's."""
        self._pool.poller.remove(self._fd_sock.fileno())
        self._fd_sock.close()

    def _send_failed(self, attempt: Attempt, message: bytes, error: OSError) -> None:
        if error.errno in RESOLVER_ERRNOS:
            # The error belongs to an earlier packet, this one has not left: it tries once more.
            others = {key: value for key, value in self.table.items() if value is not attempt}
            self._owner.refused(others, error)
            if attempt.closed:
                return
            try:
                self._send(message)
                return
            except OSError as again:
                if again.errno in RESOLVER_ERRNOS:
                    self._pool.engine.failed(monotonic(), attempt)
                    return
                error = again
        self._pool.engine.unsent(monotonic(), attempt)
        if error.errno not in PACKET_ERRNOS:
            self._owner.broken(error)

    def _readable(self) -> None:
        pool = self._pool
        recv = self._recv
        table = self.table
        answer = pool.engine.answer
        received = False
        for _ in range(BATCH):
            try:
                wire = recv(MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in RESOLVER_ERRNOS:
                    self._owner.broken(error)
                    break
                self._owner.refused(table, error)
                if self._fd_sock.fileno() < 0:
                    break
                continue
            received = True
            query = answer(monotonic(), table, wire)
            if query is not None and query.client is not None:
                query.client.reply(query)
            if not table:
                break  # nothing more is expected: spare the call that would say so
        if received and self._owner.suspect:
            self._owner.replied()
