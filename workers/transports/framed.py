"""A connection on which messages follow each other, each after its length: TCP and DoT."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from workers.engine.pending import Attempt
from workers.transports.connection import Channel, Connection, Owner
from workers.transports.faults import FLOODS
from workers.transports.framing import Deframer, frame

if TYPE_CHECKING:
    from workers.pool import Pool

MAX_OPEN: Final = 16_384
"""Open attempts of one connection, a quarter of its IDs."""

MAX_IDLE_MESSAGES: Final = 4_096
"""Messages without an answer to an open attempt from one such answer to the next. There may be
late ones, thousands at a high rate; a flood of them would cost every pool of the worker."""

MAX_UNSENT_BYTES: Final = 1 << 20
"""Bytes that a connection may hold unsent before it takes no more."""


class FramedConnection(Connection):
    """Pipelined queries, answered in any order (RFC 7766, RFC 7858)."""

    def __init__(self, pool: Pool, owner: Owner, channel: Channel, now: float) -> None:
        super().__init__(pool, owner, channel, now)
        self._deframer = Deframer()
        self._idle_messages = 0
        self._unwritten: list[bytes] = []

    def send(self, now: float, attempt: Attempt) -> bool:
        """Take an attempt to be written by the next `flush`; False when there is no room."""
        if len(self.table) >= MAX_OPEN or self.channel.unsent_bytes > MAX_UNSENT_BYTES:
            return False
        self._unwritten.append(frame(self.opened(now, attempt) + attempt.query.wire[2:]))
        return True

    def write_out(self) -> None:
        """Write what was taken since the last flush."""
        unwritten = self._unwritten
        self.channel.write(unwritten[0] if len(unwritten) == 1 else b"".join(unwritten))
        unwritten.clear()

    def data_received(self, data: bytes) -> None:
        """Hand the messages that are complete to the engine."""
        now = monotonic()
        answer = self.pool.engine.answer
        table = self.table
        open_before = len(table)
        messages = self._deframer.feed(data)
        floods = len(messages) > MAX_IDLE_MESSAGES + open_before
        for message in messages[:MAX_IDLE_MESSAGES] if floods else messages:
            query = answer(now, table, message)
            if query is not None and query.client is not None:
                query.client.reply(query)
        if len(table) < open_before:
            self._idle_messages = 0
            self.answered(now)
        else:
            self._idle_messages += len(messages)
        if floods or self._idle_messages > MAX_IDLE_MESSAGES:
            self.owner.broken(self, FLOODS)
