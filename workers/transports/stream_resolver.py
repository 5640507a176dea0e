"""TCP to one resolver: one persistent connection, pipelined, dialled when there is a query.

At most one dial is under way; everything that wants the connection waits for it. Servers close
connections that were idle, and may do so while a query is on its way: what was open on a connection
that has served before is sent again on a fresh one, without blame. A connection that never answered
fails its attempts. Time spent on the handshake is no latency of the resolver.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from workers.engine.pending import Attempt
from workers.engine.resolver import Resolver
from workers.transports.faults import RESOLVER_ERRNOS, Backoff
from workers.transports.framing import Deframer, frame

if TYPE_CHECKING:
    from workers.pool import Pool

DIAL_TIMEOUT_S: Final = 5.0
MAX_WAITING: Final = 4_096
"""Attempts that wait for a dial; beyond them an attempt goes elsewhere."""

MAX_OPEN: Final = 16_384
"""Open attempts of one connection, a quarter of its IDs."""

MAX_UNSENT_BYTES: Final = 1 << 20
"""Bytes that a connection may hold unsent before attempts go elsewhere."""


class StreamTransport:
    """The connection of one worker to one resolver over TCP."""

    def __init__(self, pool: Pool, resolver: Resolver) -> None:
        self._pool = pool
        self._resolver = resolver
        self._connection: StreamConnection | None = None
        self._waiting: deque[Attempt] = deque()
        self._dial: asyncio.Task[None] | None = None
        self._backoff = Backoff(0.25, 2.0)
        self._dial_not_before = 0.0
        self._closed = False

    def send(self, attempt: Attempt) -> None:
        """Send an attempt now, or once the connection stands."""
        now = monotonic()
        connection = self._connection
        if connection is not None and connection.stalled(now):
            connection.abort()
            connection = None
        if connection is not None:
            connection.send(now, attempt)
        elif len(self._waiting) >= MAX_WAITING or (
            self._dial is None and now < self._dial_not_before
        ):
            self._pool.engine.unsent(now, attempt)
        else:
            self._wait(attempt)

    def renew(self) -> None:
        """Nothing to do: a connection that is of no more use is replaced when it is needed."""

    def close(self) -> None:
        """Close the connection and give up what waits for it."""
        self._closed = True
        if self._dial is not None:
            self._dial.cancel()
        if self._connection is not None:
            self._connection.abort()
        self._give_back()

    def lost(self, connection: StreamConnection, error: Exception | None) -> None:
        """The connection is gone: what was open on it is sent again, or fails."""
        if self._connection is connection:
            self._connection = None
        now = monotonic()
        attempts = list(connection.table.values())
        connection.table.clear()
        for attempt in attempts:
            if connection.has_answered and not attempt.resent and not self._closed:
                attempt.resent = True
                attempt.table = None
                self._wait(attempt)
            elif self._closed:
                self._pool.engine.unsent(now, attempt)
            else:
                self._pool.engine.failed(now, attempt)
        if attempts and not connection.has_answered and not self._closed:
            reason = f"connection lost: {error}" if error else "closed the connection unasked"
            self._hold_off(reason)
        self._pool.flush()

    def _wait(self, attempt: Attempt) -> None:
        self._waiting.append(attempt)
        if self._dial is None:
            self._dial = self._pool.loop.create_task(self._connect())

    async def _connect(self) -> None:
        entry = self._resolver.entry
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                _, protocol = await self._pool.loop.create_connection(
                    lambda: StreamConnection(self._pool, self), entry.host, entry.port
                )
        except OSError as error:  # TimeoutError is one
            self._dial = None
            self._dial_failed(error)
            return
        self._dial = None
        self._connection = protocol
        self._backoff.reset()
        self._pool.fault(self._resolver, "")
        now = monotonic()
        waiting, self._waiting = self._waiting, deque()
        for attempt in waiting:
            if not attempt.closed:
                attempt.sent_at = now
                protocol.send(now, attempt)
        self._pool.flush()

    def _dial_failed(self, error: OSError) -> None:
        timed_out = isinstance(error, TimeoutError)
        self._hold_off("connection timed out" if timed_out else error.strerror or str(error))
        now = monotonic()
        blamed = timed_out or error.errno in RESOLVER_ERRNOS
        waiting, self._waiting = self._waiting, deque()
        for attempt in waiting:
            if blamed:
                self._pool.engine.failed(now, attempt)
            else:
                self._pool.engine.unsent(now, attempt)
        self._pool.flush()

    def _hold_off(self, reason: str) -> None:
        wait_s = self._backoff.next_s()
        self._dial_not_before = monotonic() + wait_s
        self._pool.fault(self._resolver, reason)

    def _give_back(self) -> None:
        now = monotonic()
        waiting, self._waiting = self._waiting, deque()
        for attempt in waiting:
            self._pool.engine.unsent(now, attempt)


class StreamConnection(asyncio.Protocol):
    """One connection; `table` holds its open attempts by ID."""

    def __init__(self, pool: Pool, owner: StreamTransport) -> None:
        self._pool = pool
        self._owner = owner
        self._deframer = Deframer()
        self._transport: asyncio.Transport | None = None
        self._silent_since = 0.0
        self.table: dict[bytes, Attempt] = {}
        self.has_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, from either side."""
        self._transport = None
        self._owner.lost(self, exc)

    def data_received(self, data: bytes) -> None:
        """Hand the messages that are complete to the engine."""
        now = monotonic()
        answer = self._pool.engine.answer
        table = self.table
        for message in self._deframer.feed(data):
            before = len(table)
            query = answer(now, table, message)
            if len(table) < before:
                self.has_answered = True
                self._silent_since = now if table else 0.0
            if query is not None and query.client is not None:
                query.client.reply(query)
        self._pool.flush()

    def stalled(self, now: float) -> bool:
        """Tell whether it is of no more use: gone, or without an answer since long ago.

        Bytes alone prove nothing: once a length is wrong, all that follows is swallowed by it.
        """
        if self._transport is None or self._transport.is_closing():
            return True
        silent_since = self._silent_since
        return silent_since > 0 and now - silent_since > self._pool.engine.settings.per_attempt_s

    def send(self, now: float, attempt: Attempt) -> None:
        """Send an attempt under an ID of this connection."""
        transport = self._transport
        table = self.table
        if (
            transport is None
            or len(table) >= MAX_OPEN
            or transport.get_write_buffer_size() > MAX_UNSENT_BYTES
        ):
            self._pool.engine.unsent(now, attempt)
            return
        drawn = self._pool.ids.draw(table)
        attempt.id = drawn
        attempt.table = table
        table[drawn] = attempt
        if not self._silent_since:
            self._silent_since = now
        transport.write(frame(drawn + attempt.query.wire[2:]))

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
