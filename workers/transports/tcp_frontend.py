"""TCP towards clients: a listener of one pool in one worker, and its connections.

Queries may be pipelined and are answered in the order in which the answers come (RFC 7766, 6.2).
Everything a client can make grow is bounded: connections, queries in flight, bytes held for a
client that does not read, and the time a connection may be idle.
"""

from __future__ import annotations

import asyncio
import socket
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from workers.engine.pending import Query
from workers.transports.framing import Deframer, frame

if TYPE_CHECKING:
    from workers.pool import Pool

MAX_IN_FLIGHT: Final = 512
"""Queries of one connection in flight; with more the relay reads on only as answers leave."""

MAX_HELD_BYTES: Final = 4 << 20
"""Reply bytes held for one client; one that lets more pile up is closed."""

BACKLOG: Final = 1_024
"""Connections that wait to be accepted; asyncio's own default would cut the supervisor's to 100."""

SWEEP_S: Final = 1.0
"""How often idle connections are looked for."""


class TcpFrontend:
    """A listener with the connections that it accepted."""

    def __init__(self, pool: Pool, server: asyncio.Server) -> None:
        self._pool = pool
        self._server = server
        self._connections: set[TcpConnection] = set()
        self._emptied: asyncio.Future[None] | None = None
        self._sweep = pool.loop.call_later(SWEEP_S, self._on_sweep)

    @classmethod
    async def start(cls, pool: Pool, sock: socket.socket) -> TcpFrontend:
        """Accept connections on a bound socket."""
        frontend: TcpFrontend
        server = await pool.loop.create_server(
            lambda: TcpConnection(pool, frontend), sock=sock, backlog=BACKLOG, start_serving=False
        )
        frontend = cls(pool, server)
        await server.start_serving()
        return frontend

    def close(self) -> None:
        """Accept and read no more; connections stay until their replies are out."""
        self._sweep.cancel()
        self._server.close()
        for connection in list(self._connections):
            connection.stop_reading()

    async def emptied(self) -> None:
        """Wait until every connection is closed: what was written to its client has then left."""
        if self._connections:
            self._emptied = self._pool.loop.create_future()
            await self._emptied

    def joined(self, connection: TcpConnection) -> bool:
        """Take in a new connection, or say that there are too many."""
        if len(self._connections) >= self._pool.engine.settings.max_connections:
            self._pool.engine.counters.drop("client_connection_limit")
            return False
        self._connections.add(connection)
        return True

    def left(self, connection: TcpConnection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)

    def _on_sweep(self) -> None:
        now = monotonic()
        for connection in list(self._connections):
            connection.close_if_idle(now, self._pool.engine.settings.tcp_idle_s)
        self._sweep = self._pool.loop.call_later(SWEEP_S, self._on_sweep)


class TcpConnection(asyncio.Protocol):
    """One client's connection."""

    is_stream: bool = True

    def __init__(self, pool: Pool, frontend: TcpFrontend) -> None:
        self._pool = pool
        self._frontend = frontend
        self._deframer = Deframer()
        self._transport: asyncio.Transport | None = None
        self._active_at = monotonic()
        self._in_flight = 0
        self._unread: list[bytes] = []
        self._reading = True
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, unless there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        if not self._frontend.joined(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone; answers still on their way to it are counted as they come."""
        self._transport = None
        self._frontend.left(self)

    def eof_received(self) -> bool:
        """The client will ask no more; what it asked is still answered (RFC 7766, 6.2.4)."""
        self._ended = True
        return self._in_flight > 0 or bool(self._unread)

    def data_received(self, data: bytes) -> None:
        """Take the messages that are complete."""
        self._take(self._deframer.feed(data))
        self._pool.flush()

    def reply(self, query: Query) -> None:
        """Send a reply, and read on if too many were in flight."""
        self._in_flight -= 1
        self._active_at = monotonic()
        transport = self._transport
        if transport is None or transport.is_closing():
            self._pool.engine.counters.drop("client_gone")
            return
        if not query.reply:
            pass  # failed in silence, as its profile says
        elif transport.get_write_buffer_size() > MAX_HELD_BYTES:
            self._pool.engine.counters.drop("client_slow")
            transport.abort()
            return
        else:
            transport.write(frame(query.reply))
        query.reply = b""  # the timing wheel holds the query for a while yet
        if self._unread and self._in_flight < MAX_IN_FLIGHT:
            unread, self._unread = self._unread, []
            self._take(unread)
        if self._ended and not self._in_flight and not self._unread:
            transport.close()

    def stop_reading(self) -> None:
        """The relay stops: answer what is in flight, take nothing more."""
        self._ended = True
        self._unread.clear()
        transport = self._transport
        if transport is not None:
            if self._in_flight:
                transport.pause_reading()
            else:
                transport.close()

    def close_if_idle(self, now: float, idle_s: float) -> None:
        """Close a connection on which nothing has happened for too long.

        Half a message does not keep it open, and neither does a query that is never answered.
        """
        transport = self._transport
        if transport is None or now - self._active_at < idle_s:
            return
        if transport.is_closing():
            transport.abort()  # it was asked to close, and its client does not take the rest
        else:
            transport.close()

    def _take(self, messages: list[bytes]) -> None:
        engine = self._pool.engine
        for position, message in enumerate(messages):
            if self._in_flight >= MAX_IN_FLIGHT:
                self._unread += messages[position:]
                break
            now = monotonic()
            self._active_at = now
            outbox_before = len(engine.outbox)
            attempt = engine.query(now, self, None, message)
            if attempt is not None:
                self._in_flight += 1
                attempt.resolver.transport.send(attempt)
            elif len(engine.outbox) > outbox_before:
                self._in_flight += 1  # an error of the relay's own is on its way
        self._pace()

    def _pace(self) -> None:
        transport = self._transport
        if transport is None or self._ended:
            return
        reading = not self._unread
        if reading != self._reading:
            self._reading = reading
            if reading:
                transport.resume_reading()
            else:
                transport.pause_reading()
