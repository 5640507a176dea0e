"""What becomes of a query whose attempt is refused, late or lost.

A refusal sends the query on at once. A late attempt is hedged but stays open until `per_attempt`,
and its answer still counts. A lost one is sent again. Where everybody with room has had the query
it waits for room, and when no attempt is open and nobody is left to ask it fails.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from shared.board import Board
from workers.engine import wire as dns
from workers.engine.counters import PoolCounters
from workers.engine.health import State
from workers.engine.hedging import FIRST_LOOK_S, ROUNDING_S, Hedging
from workers.engine.pending import COPY, HEDGE, PROBE, RETRY, Attempt, Query
from workers.engine.publishing import Publisher
from workers.engine.resolver import NS, Resolver
from workers.engine.selection import Selection
from workers.engine.timers import NEVER, TimingWheel
from workers.engine.waiting import WaitingRoom
from workers.settings import PoolSettings

MAX_ATTEMPTS: Final = 16
"""Sendings of one query, however many resolvers refuse or lose it."""

OVERSLEPT_S: Final = 0.5
"""When this process comes to an attempt so late, it was itself asleep (suspended, starved), and the
resolver is not blamed for the answer that nobody took."""

REFUSALS: Final = frozenset((dns.SERVFAIL, dns.REFUSED))
"""Codes by which a resolver says that it will not answer now."""


class Attempts:
    """The attempts of one pool in one worker.

    `waiting` holds the queries that wait for room, `hedging` says what becomes of late ones.
    """

    __slots__ = (
        "_board",
        "_counters",
        "_outbox",
        "_per_attempt_s",
        "_publisher",
        "_selection",
        "_settings",
        "_wheel",
        "hedging",
        "waiting",
    )

    def __init__(
        self,
        board: Board,
        settings: PoolSettings,
        selection: Selection,
        publisher: Publisher,
        counters: PoolCounters,
        wheel: TimingWheel[Attempt],
        outbox: deque[Attempt | Query],
    ) -> None:
        self._board = board
        self._settings = settings
        self._selection = selection
        self._publisher = publisher
        self._counters = counters
        self._wheel = wheel
        self._outbox = outbox
        self._per_attempt_s = settings.attempt_limit_s
        self.hedging = Hedging(board, settings, selection)
        self.waiting = WaitingRoom(selection, settings.token_wait_s, self._send_waiting, self.fail)

    def open(self, now: float, query: Query, resolver: Resolver, kind: int) -> Attempt:
        """Open an attempt, to be sent by the caller's shell."""
        expires_at = now + self._per_attempt_s
        if expires_at > query.deadline_at:
            expires_at = query.deadline_at
        attempt = Attempt(query, resolver, kind, now, expires_at)
        late_s = resolver.rto_s
        if not resolver.srtt_s:
            late_s = FIRST_LOOK_S
            self._selection.asked_stranger(now, resolver)
        elif not resolver.equal and self._settings.hedge_only_losing:
            late_s = min(late_s, self.hedging.trial_s)
        if query.tried and kind != COPY:
            # Sent to the same resolver again, it waits twice as long each time (RFC 6298, 5.5).
            late_s *= 2 ** query.tried.count(resolver)
        due_at = now + late_s
        query.open += 1
        query.tried.append(resolver)
        resolver.sent += 1
        self._wheel.add(due_at if due_at < expires_at else expires_at, attempt)
        return attempt

    def close(self, attempt: Attempt) -> bool:
        """Close an attempt and take it out of its socket's table; False if it was closed."""
        if attempt.closed:
            return False
        attempt.closed = True
        attempt.query.open -= 1
        if attempt.overdue:
            attempt.resolver.overdue -= 1
        if attempt.table is not None and attempt.table.get(attempt.id) is attempt:
            del attempt.table[attempt.id]
        return True

    def expired(self, now: float, attempt: Attempt) -> None:
        """End an attempt that had no answer in time, and see what becomes of its query."""
        self.close(attempt)
        overslept = now - attempt.expires_at > OVERSLEPT_S
        # An attempt cut short by its query's deadline says nothing about its resolver.
        had_s = attempt.expires_at - attempt.sent_at
        had_time = not attempt.waits and had_s >= self._per_attempt_s - ROUNDING_S
        # Nor does silence to a plain question: some answer for the tunnel alone.
        is_plain = attempt.kind == PROBE and attempt.resolver.state is State.FRESH
        if had_time and not overslept and not is_plain:
            attempt.query.late = True
            attempt.resolver.lost += 1
            self._publisher.urgent[attempt.resolver.slot] = attempt.resolver
            self._selection.lost(now, attempt.resolver)
        self.go_on(now, attempt, lost=True)

    def late(self, now: float, attempt: Attempt) -> float:
        """Hedge: try a late query on another resolver too. Return when to look at it again.

        What may only be held may show later that it is lost: it is looked at when twice as old. So
        is a hedge that is late too, while nothing tells that others are answered, and what is lost
        while somebody may yet turn out to work.
        """
        query = attempt.query
        if query.answered or len(query.tried) >= MAX_ATTEMPTS or query.client is None:
            return NEVER
        if attempt.kind == COPY:
            return NEVER  # it was sent for its own sake; the first sending has its own time
        hedging = self.hedging
        again_at = hedging.too_early(now, attempt)
        if again_at is not None:
            return again_at
        lost = hedging.is_lost(now, attempt)
        if hedging.holds_off(now, attempt, lost=lost):
            return 2 * now - attempt.sent_at
        if not attempt.waits:
            query.late = True
            if lost and query.doubted is None:
                query.doubted = attempt
        resolver = hedging.second(now, attempt, lost=lost)
        if resolver is not None:
            if attempt.waits and self._settings.hedge_only_losing:
                self.close(attempt)  # it goes there instead, not twice
            self._counters.hedges += 1
            self._outbox.append(self.open(now, query, resolver, HEDGE))
        elif lost and (attempt.kind != HEDGE or query.refused):
            # Those that refused it before may have room by now.
            self.waiting.admit(now, query, refused=query.refused, first=True)
        if resolver is None and lost and self._selection.has_unheard:
            return 2 * now - attempt.sent_at
        return NEVER

    def refused(self, now: float, attempt: Attempt, reply: bytes, rcode: int) -> None:
        """Send a refused query on to another resolver at once."""
        resolver = attempt.resolver
        query = attempt.query
        resolver.refused += 1
        if rcode in REFUSALS:
            query.refused = True
            self._selection.refused(now, resolver)
            if rcode == dns.REFUSED or query.client is None or query.answered:
                resolver.limited += 1
            elif query.refused_by is None:
                query.refused_by = [resolver]
            else:
                query.refused_by.append(resolver)
        else:
            query.reply = reply  # what the client gets if nobody can read its question
        self.watched_replied(resolver)
        self.go_on(now, attempt, refused=rcode in REFUSALS)

    def overtaken(self, now: float, attempt: Attempt) -> None:
        """A later sending of the query was answered first: until its own end this one is a loss.

        Only where late queries are hedged on evidence alone. Elsewhere a hedge often overtakes a
        slow answer.
        """
        if not self._settings.hedge_only_losing:
            return
        attempt.overdue = True
        attempt.resolver.overdue += 1
        self._board.words[attempt.resolver.refused_word] = int(now * NS)
        self._publisher.urgent[attempt.resolver.slot] = attempt.resolver

    def heed_refusals(self, query: Query) -> None:
        """Another resolver answered, or waited too: those that said SERVFAIL are at a limit."""
        for resolver in query.refused_by or ():
            resolver.limited += 1
            self._publisher.urgent[resolver.slot] = resolver
        query.refused_by = None

    def go_on(
        self, now: float, attempt: Attempt, *, lost: bool = False, refused: bool = False
    ) -> None:
        """Find a query whose attempt ended without an answer its next resolver, or end it.

        A lost query may go to a resolver that has had it when nobody else is left; a refused one
        may not, or it would circle. Nor may one that could not be sent, or whose connection broke:
        it goes to somebody unknown.
        """
        query = attempt.query
        if query.answered or query.client is None:
            return
        if attempt.kind == COPY and query.open:
            return
        if now < query.deadline_at and len(query.tried) < MAX_ATTEMPTS:
            resolver = self._selection.other(now, query)
            if resolver is None and query.open == 0:
                if lost:
                    resolver = self._selection.choose(now, query)
                elif not refused:
                    resolver = self._selection.unheard(query)
            if resolver is not None:
                self._counters.retries += 1
                self._outbox.append(self.open(now, query, resolver, RETRY))
                return
            if query.open == 0:
                self.wait_or_fail(now, query, refused=refused)
            elif query.doubted is not None:
                self.waiting.admit(now, query, refused=refused, first=True)
        elif query.open == 0:
            self.fail(query)

    def wait_or_fail(self, now: float, query: Query, *, refused: bool = False) -> None:
        """Let a query wait for room where there may be some in time, or end it.

        One that everybody answered SERVFAIL does not wait: the far side is down, or its name is
        broken, and asking again would only add load. It tells of no limit either, unless each of
        them is known to refuse of itself.
        """
        refusers = query.refused_by
        hopeless = (
            refusers is not None
            and len(refusers) >= 2
            and not all(resolver.refuses_of_itself(now) for resolver in refusers)
        )
        if hopeless or not self.waiting.admit(now, query, refused=refused):
            self.fail(query, hopeless=hopeless)

    def fail(self, query: Query, *, hopeless: bool = False) -> None:
        """End a query without an answer: one error for the client, or silence by the profile."""
        query.answered = True
        self._counters.pending -= 1
        self._counters.failures += 1
        if query.refused_by is not None and not hopeless:
            self.heed_refusals(query)
        if self._settings.silent_failure:
            if query.client is not None and query.client.is_stream:
                self._outbox.append(query)  # its connection counts what is in flight
            return
        if not query.reply:
            query.reply = dns.error_reply(query.wire, dns.SERVFAIL, query.end)
        self._outbox.append(query)

    def _send_waiting(self, now: float, query: Query, resolver: Resolver, kind: int) -> None:
        """Send a query for which there is room at last."""
        if kind == RETRY:
            self._counters.retries += 1
        self._outbox.append(self.open(now, query, resolver, kind))

    def watched_replied(self, resolver: Resolver) -> None:
        """A resolver that is not simply in use replied: its keeper is to know it soon."""
        self._publisher.urgent[resolver.slot] = resolver
        resolver.heard = True
        if resolver.state is State.FRESH:
            self._selection.trial_over(resolver)
