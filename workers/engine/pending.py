"""What is open: a client's query, and each sending of it to a resolver.

Both are made once a packet, so they hold little and compute nothing.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from workers.engine.resolver import Resolver

FIRST: Final = 0  # the first sending
RETRY: Final = 1  # after a refusal, a loss or a network error
HEDGE: Final = 2  # the one before is late
COPY: Final = 3  # on purpose
PROBE: Final = 4  # a question of the relay's own


class Client(Protocol):
    """A socket or connection on which queries arrive and replies leave."""

    is_stream: bool

    def reply(self, query: Query) -> None:
        """Send `query.reply`, which carries the client's own ID, to whoever asked.

        It is empty for a query on a stream that failed in silence.
        """


class Query:
    """A question of a client, or of the relay's own (then `client` is None).

    `wire` is as it came, `end` is the end of its question, `reply` the message for the client.
    `refused` says that a resolver refused it, `late` that an attempt of it was late or lost,
    `doubted` is its first attempt taken for lost.
    """

    __slots__ = (
        "address",
        "answered",
        "client",
        "deadline_at",
        "doubted",
        "end",
        "late",
        "open",
        "refused",
        "refused_by",
        "reply",
        "tried",
        "wire",
    )

    def __init__(
        self, client: Client | None, address: Any, wire: bytes, end: int, deadline_at: float
    ) -> None:
        self.client = client
        self.address = address
        self.wire = wire
        self.end = end
        self.deadline_at = deadline_at
        self.open = 0
        self.answered = False
        self.doubted: Attempt | None = None
        self.tried: list[Resolver] = []
        self.refused = False
        self.late = False
        self.refused_by: list[Resolver] | None = None
        self.reply = b""

    def __repr__(self) -> str:
        return f"<Query open={self.open} answered={self.answered} tried={len(self.tried)}>"


class Attempt:
    """One sending of a query to one resolver.

    `table` and `id` are set by the transport that sends it: the open attempts of a socket by the
    two ID bytes that it put on the wire. Whoever closes an attempt takes it out of its table.
    `resent` says that a connection closed under it once. `waits` says that it is not on the wire:
    its transport keeps it until there is a connection or a stream for it; `delayed` that it left
    after it had waited, and that its time runs from then.
    """

    __slots__ = (
        "closed",
        "delayed",
        "expires_at",
        "id",
        "kind",
        "over_stream",
        "overdue",
        "query",
        "resent",
        "resolver",
        "sent_at",
        "table",
        "waits",
    )

    def __init__(
        self, query: Query, resolver: Resolver, kind: int, sent_at: float, expires_at: float
    ) -> None:
        self.query = query
        self.resolver = resolver
        self.kind = kind
        self.sent_at = sent_at
        self.expires_at = expires_at
        self.closed = False
        self.overdue = False
        self.resent = False
        self.waits = False
        self.delayed = False
        self.over_stream = resolver.is_stream
        self.id = b""
        self.table: dict[bytes, Attempt] | None = None

    def leave(self, now: float) -> None:
        """Note that it waits no longer: the time before is nobody's latency or loss."""
        self.sent_at = now
        self.waits = False
        self.delayed = True

    def __repr__(self) -> str:
        return f"<Attempt {self.resolver.name} kind={self.kind} closed={self.closed}>"
