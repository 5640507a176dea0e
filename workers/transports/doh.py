"""DNS over HTTPS (RFC 8484): what is asked over HTTP, and what a response is worth.

Owner: the stream transport of the resolver. A question goes out with ID 0, as the RFC has it, and
its response is known by its stream; the ID that the attempt has in the connection's table is put in
front of it for the engine, which checks the question as everywhere.

How responses are told apart:

* 2xx with a DNS message: an answer, or by its code a refusal.
* 429: a refusal, with or without Retry-After; the ceiling finds the rate better than the header.
* Any other status or content type, no body or too much, another question: a failed attempt.
* The server says that it did not look at it (GOAWAY): sent again, without blame.
* It has no room for the stream (REFUSED_STREAM): sent again on the connection, once. The second
  time it is a refusal as by 429.
* The stream is reset otherwise: a failed attempt.

What failed last is told in words for people. It is told, and withdrawn, at most once in `TELL_S`,
since a server may answer every question with another fault.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from workers.engine.pending import Attempt
from workers.settings import ResolverEntry
from workers.transports.connection import Channel, Connection, Owner
from workers.transports.http1 import Http1Session
from workers.transports.http2 import Http2Session
from workers.transports.http_exchange import (
    ANSWERED,
    DNS_MESSAGE,
    MALFORMED,
    MAX_BODY_BYTES,
    OVERSIZE,
    REFUSED,
    UNSERVED,
    Exchange,
    HttpError,
    Session,
    Target,
)

if TYPE_CHECKING:
    from workers.pool import Pool

DOH_ALPN: Final = ("h2", "http/1.1")
"""Protocols offered in the TLS handshake, the preferred one first."""

HTTPS_PORT: Final = 443
TOO_MANY_REQUESTS: Final = 429

MAX_UNSENT_BYTES: Final = 1 << 20
"""Bytes that a connection may hold unsent before it takes no more."""

TELL_S: Final = 1.0
"""See the module."""

PING_SHARE: Final = 0.25
"""A connection that said nothing for this share of `per_attempt`, or for the resolver's
retransmission time if that is longer, is asked for a sign of life, which has as long to come."""

PING_IDLE_S: Final = 3.0
"""A query on a connection that stood unused for so long brings a ping with it: what lies between
may have forgotten the connection."""

SHOWN_TYPES: Final = frozenset(
    (
        b"application/dns-json",
        b"application/json",
        b"application/octet-stream",
        b"application/problem+json",
        b"text/html",
        b"text/plain",
        b"text/xml",
    )
)
"""Content types that are named to people. Any other may be a question thrown back."""


def doh_connection(pool: Pool, owner: Owner, channel: Channel, now: float) -> Connection:
    """Make the connection for what the TLS handshake agreed on."""
    target = target_of(owner.resolver.entry)
    if channel.alpn == "h2":
        return DohConnection(pool, owner, channel, now, Http2Session(target))
    return Doh1Connection(pool, owner, channel, now, Http1Session(target))


def target_of(entry: ResolverEntry) -> Target:
    """Return what a resolver is asked for."""
    host = entry.server_name or entry.host
    authority = f"[{host}]" if ":" in host else host
    if entry.port != HTTPS_PORT:
        authority += f":{entry.port}"
    return Target(authority.encode(), entry.path.encode(), entry.get)


def flaw_of(exchange: Exchange) -> str:
    """Say in words for people why a response brings no DNS message; "" where it does."""
    if exchange.outcome == OVERSIZE:
        return f"answered with more than {MAX_BODY_BYTES:,} bytes"
    if exchange.outcome == MALFORMED:
        return f"answered no valid HTTP: {exchange.error}"
    if exchange.outcome != ANSWERED:
        return f"the server reset the request: {exchange.error}"
    if not 200 <= exchange.status < 300:
        return f"HTTP {exchange.status} from the server"
    if exchange.content_type != DNS_MESSAGE:
        kind = exchange.content_type.partition(b";")[0].strip().lower()
        if not kind:
            return "answered without a content type"
        if kind != DNS_MESSAGE:
            shown = kind.decode() if kind in SHOWN_TYPES else "another content type"
            return f"answered {shown} instead of DNS"
    if exchange.length not in (-1, len(exchange.body)):
        return "answered with a body of another length than its header says"
    return "" if exchange.body else "answered with an empty body"


class DohConnection(Connection):
    """Questions over one HTTP connection; this class as it is for HTTP/2."""

    def __init__(
        self, pool: Pool, owner: Owner, channel: Channel, now: float, session: Session
    ) -> None:
        super().__init__(pool, owner, channel, now)
        self.session = session
        self._heard_at = now
        self._pinged_at = 0.0
        self._barred_at = 0.0
        self._flaw_told_at = -inf
        self._flawless_from = now
        self.line_up()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} open={len(self.table)} {self.session!r}>"

    def send(self, now: float, attempt: Attempt) -> bool:
        """Take an attempt to be written by the next `flush`; False when there is no room."""
        session = self.session
        if self.closing or self.channel.unsent_bytes > MAX_UNSENT_BYTES:
            return False
        if not session.room and not self._make_room():
            if not session.held:
                self._bar(now)
            return False
        self._barred_at = 0.0
        if not self.table and now - self.idle_since > PING_IDLE_S and session.ping():
            self._pinged_at = now
        self.opened(now, attempt)
        session.request(attempt, b"\0\0" + attempt.query.wire[2:])
        self.closing = session.closing
        return True

    def write_out(self) -> None:
        """Write what was taken since the last flush."""
        data = self.session.take()
        if data:
            self.channel.write(data)

    def data_received(self, data: bytes) -> None:
        """Hand the responses that are complete to the engine."""
        now = monotonic()
        self._heard_at = now
        session = self.session
        try:
            session.receive(data)
        except HttpError as error:
            self.closing = True
            self._serve(now)
            self.write_out()
            self.owner.broken(self, str(error))
            return
        self.closing = session.closing
        if session.left:
            for attempt in session.left:
                attempt.leave(now)
            session.left.clear()
        if session.ended:
            self._serve(now)
        if session.has_output:
            self.line_up()
        if (self.closing and not self.table) or (self.owner.waiting and session.room):
            self.owner.attend(self)

    def at_end(self) -> None:
        """Take in that the server closed in order: over HTTP/1.1 that ends some responses."""
        self.session.receive_end()
        self.closing = True
        if self.session.ended:
            self._serve(monotonic())

    def check(self, now: float) -> float:
        """Return in how many seconds to be checked again; 0 for a connection of no more use.

        It is of no more use when it leaves a ping unanswered, or all queries for `per_attempt`.
        """
        self._make_room()
        left_s = super().check(now)
        patience_s = PING_SHARE * self.pool.engine.settings.per_attempt_s
        patience_s = max(patience_s, self.owner.resolver.rto_s)
        if self._pinged_at > self._heard_at:
            return max(min(left_s, self._pinged_at + patience_s - now), 0.0)
        quiet_s = now - max(self._heard_at, self.silent_since)
        if quiet_s < patience_s:
            return min(left_s, patience_s - quiet_s)
        if left_s > 0.0 and self.session.ping():
            self._pinged_at = now
            self.line_up()
            return min(left_s, patience_s)
        return left_s

    def _make_room(self) -> bool:
        """Give up the requests that nobody waits for any more; tell whether there is room."""
        session = self.session
        if session.held > len(self.table):
            session.drop_closed()
            self.line_up()
        return session.room

    def _bar(self, now: float) -> None:
        """The server allows no request at all (RFC 9113, 6.5.2: for a short time only).

        A connection on which that lasts for `per_attempt` is given up for another.
        """
        self._barred_at = self._barred_at or now
        self.closing = now - self._barred_at >= self.pool.engine.settings.per_attempt_s
        self.owner.watch()

    def _serve(self, now: float) -> None:
        """See what became of the requests that ended."""
        engine = self.pool.engine
        table = self.table
        ended = self.session.ended
        unserved: list[Attempt] = []
        responses = 0
        flaw = ""
        for exchange in ended:
            attempt = exchange.attempt
            if exchange.outcome == UNSERVED:
                unserved.append(attempt)
                continue
            if exchange.outcome == REFUSED and not (attempt.resent or attempt.closed):
                if self.closing or not self.session.room:
                    unserved.append(attempt)
                else:
                    self._ask_again(now, attempt)
                continue
            responses += 1
            if attempt.closed:
                pass  # its time was over, or its query's
            elif exchange.outcome == REFUSED or (
                exchange.status == TOO_MANY_REQUESTS and exchange.outcome == ANSWERED
            ):
                engine.limited(now, attempt)
            elif reason := flaw_of(exchange):
                flaw = reason
                engine.failed(now, attempt)
            else:
                query = engine.answer(now, table, attempt.id + exchange.body[2:])
                if query is not None and query.client is not None:
                    query.client.reply(query)
                elif not attempt.closed:
                    flaw = "answered something else than the question"
                    engine.failed(now, attempt)
        ended.clear()
        if unserved:
            self.owner.again(self, unserved)
        if responses:
            self.answered(now)
            self._tell(now, flaw)

    def _ask_again(self, now: float, attempt: Attempt) -> None:
        """Ask once more what the server had no room for; the attempt keeps its ID."""
        attempt.resent = True
        attempt.sent_at = now
        self.session.request(attempt, b"\0\0" + attempt.query.wire[2:])

    def _tell(self, now: float, flaw: str) -> None:
        """Tell what is wrong with the responses, or that nothing is."""
        if flaw:
            self._flawless_from = now + TELL_S
            if now - self._flaw_told_at >= TELL_S:
                self._flaw_told_at = now
                self.pool.fault(self.owner.resolver, flaw)
        elif now >= self._flawless_from:
            self._flawless_from = now + TELL_S
            self.pool.fault(self.owner.resolver, "")


class Doh1Connection(DohConnection):
    """The same over HTTP/1.1: one question at a time, on more connections."""

    most_connections = 16
