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
from workers.engine.pending import COPY, HEDGE, RETRY, Attempt, Query
from workers.engine.publishing import Publisher
from workers.engine.resolver import NS, Resolver
from workers.engine.selection import Selection
from workers.engine.timers import NEVER, TimingWheel
from workers.engine.waiting import WaitingRoom
from workers.settings import PoolSettings

MAX_ATTEMPTS: Final = 16
"""Sendings of one query, however many resolvers refuse or lose it."""

TRIAL_RTOS: Final = 2.0
"""A trial of a resolver that is not in use is late after so many of the shortest retransmission
times: it is for learning about the resolver, and the query is not to suffer for that."""

FIRST_LOOK_S: Final = 0.04
"""When an attempt at an unknown resolver is looked at first: by then another may have answered and
show how long an answer takes here."""

DOUBT_S: Final = 10.0
"""For this long after a loss or a refusal what is late at a resolver is taken for lost, not held: a
tunnel with one question in flight stalls on every single loss, long before chance is ruled out."""

UNHEARD_OF: Final = 2.0
UNHEARD_OF_LEAST_S: Final = 0.1
SLOWEST_OVER_S: Final = 10.0
"""What takes twice as long as the slowest answer of the last 10 to 20 s is lost, not held: else the
first loss of a good resolver stalls a tunnel with one question in flight until its client asks
again. One at a time, since it may be the first held poll of a tunnel that falls silent: the answer
to that is then the slowest."""

HICCUP_S: Final = 0.1
"""Nothing is late so soon at a resolver that is fresh: its retransmission time rests on an answer
or two, and the first questions of a tunnel are its login, which some servers refuse when it comes
twice (dns2tcp: "Authentication Failed")."""

ROUNDING_S: Final = 1e-3
"""Sums of times in floating point are off by less than this."""

OVERSLEPT_S: Final = 0.5
"""When this process comes to an attempt so late, it was itself asleep (suspended, starved), and the
resolver is not blamed for the answer that nobody took."""

REFUSALS: Final = frozenset((dns.SERVFAIL, dns.REFUSED))
"""Codes by which a resolver says that it will not answer now."""


class Attempts:
    """The attempts of one pool in one worker.

    `waiting` holds the queries that wait for room. `newest_answered_at` is when the latest sent
    of all attempts that were answered had been sent, `slowest_s` the slowest answer lately.
    """

    __slots__ = (
        "_board",
        "_counters",
        "_outbox",
        "_per_attempt_s",
        "_publisher",
        "_scout",
        "_selection",
        "_settings",
        "_slowest_before_s",
        "_slowest_until",
        "_unheard_from",
        "_wheel",
        "newest_answered_at",
        "slowest_s",
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
        self._per_attempt_s = min(settings.per_attempt_s, settings.deadline_s)
        self.newest_answered_at = 0.0
        self.slowest_s = 0.0
        self._slowest_before_s = 0.0
        self._slowest_until = 0.0
        self._unheard_from = 0.0
        self._scout: Query | None = None
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
            late_s = min(late_s, self._trial_s)
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
        if not overslept and not attempt.waits and had_s >= self._per_attempt_s - ROUNDING_S:
            attempt.query.late = True
            attempt.resolver.lost += 1
            self._publisher.urgent[attempt.resolver.slot] = attempt.resolver
            self._selection.lost(now, attempt.resolver)
        self.go_on(now, attempt, lost=True)

    def late(self, now: float, attempt: Attempt) -> float:
        """Hedge: try a late query on another resolver too. Return when to look at it again.

        What may only be held may show later that it is lost: it is looked at when twice as old. So
        is a hedge that is late too, while nothing tells that others are answered. What has not left
        yet is surely not held, and is no loss of its resolver either.
        """
        query = attempt.query
        if query.answered or len(query.tried) >= MAX_ATTEMPTS or query.client is None:
            return NEVER
        if attempt.kind == COPY:
            return NEVER  # it was sent for its own sake; the first sending has its own time
        late = attempt.resolver
        if attempt.delayed:
            attempt.delayed = False
            if now < attempt.sent_at + late.rto_s - ROUNDING_S:
                return attempt.sent_at + late.rto_s
        least_s = min(late.rto_s, self._trial_s)
        waits = attempt.waits
        if not late.srtt_s and now - attempt.sent_at < least_s - ROUNDING_S:
            return min(2 * now - attempt.sent_at, attempt.sent_at + least_s)
        if late.state is State.FRESH and not waits and self._settings.hedge_only_losing:
            settled_at = attempt.sent_at + HICCUP_S
            if now < settled_at - ROUNDING_S:
                return settled_at
        # What was sent later has been answered: this one is lost, and no poll that is held.
        overtaken = self.newest_answered_at > attempt.sent_at
        in_doubt = int(now * NS) - self._board.words[late.refused_word] < int(DOUBT_S * NS)
        lost = (
            waits
            or late.losing
            or overtaken
            or in_doubt
            or late.state in (State.FRESH, State.DOWN)
            or (self._settings.hedge_only_losing and not late.equal)
        )
        if self._settings.hedge_only_losing and not lost:
            if now < self._unheard_from or now - attempt.sent_at < self._unheard_of_s:
                return 2 * now - attempt.sent_at
            self._unheard_from = now + self._per_attempt_s
            lost = True
        if attempt.kind == HEDGE and not overtaken and not self._goes_on(now, attempt):
            return 2 * now - attempt.sent_at
        if not waits:
            query.late = True
            if lost and query.doubted is None:
                query.doubted = attempt
        resolver = self._selection.other(now, query, equals_only=not lost)
        down = late.state is State.DOWN
        # A ceiling is for fresh questions, and a stream repeats what is lost by itself.
        in_doubt = in_doubt and not late.interval_ns and not late.is_stream
        again = not waits and (late.losing or in_doubt)
        if resolver is None and again and attempt.kind == HEDGE:
            # One that is at a limit would be asked many times what it allows.
            may_go_on = self._unheard_of_s < NEVER and not late.is_stream
            again = now < late.random_until or (may_go_on and self._goes_on(now, attempt))
        if resolver is None and again and not down:
            # Nobody else is there, or all are lossy: better again than to wait for per_attempt.
            resolver = self._selection.choose(now, query)
        if resolver is None and waits:
            resolver = self._selection.stranger(now, query)
        if resolver is not None:
            if waits and self._settings.hedge_only_losing:
                self.close(attempt)  # it goes there instead, not twice
            self._counters.hedges += 1
            self._outbox.append(self.open(now, query, resolver, HEDGE))
        elif lost and (attempt.kind != HEDGE or query.refused):
            # Those that refused it before may have room by now.
            self.waiting.admit(now, query, refused=query.refused, first=True)
        return NEVER

    def _goes_on(self, now: float, hedge: Attempt) -> bool:
        """Tell whether the query of a late hedge goes on with no sign that others get through.

        When all are late the way to them is full or cut, and were every query sent again and again
        the load would be many times what it was. So one at a time looks for a way, and only when
        no answer takes as long.
        """
        if now - hedge.sent_at < self._unheard_of_s < NEVER:
            return False
        scout = self._scout
        if scout is None or scout.answered or not scout.open:
            self._scout = hedge.query
        return self._scout is hedge.query

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
        may not, or it would circle.
        """
        query = attempt.query
        if query.answered or query.client is None:
            return
        if attempt.kind == COPY and query.open:
            return
        if now < query.deadline_at and len(query.tried) < MAX_ATTEMPTS:
            resolver = self._selection.other(now, query)
            if resolver is None and lost and query.open == 0:
                resolver = self._selection.choose(now, query)
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
        broken, and asking again would only add load.
        """
        refusers = query.refused_by
        hopeless = refusers is not None and len(refusers) >= 2 and not self._limited(refusers)
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

    @staticmethod
    def _limited(resolvers: list[Resolver]) -> bool:
        return any(resolver.limited for resolver in resolvers)

    def forget_slowest(self, now: float) -> None:
        """On the tick: the slowest answer so far counts for SLOWEST_OVER_S more, then no longer."""
        if now >= self._slowest_until:
            self._slowest_until = now + SLOWEST_OVER_S
            self._slowest_before_s = self.slowest_s
            self.slowest_s = 0.0

    @property
    def _unheard_of_s(self) -> float:
        """After how long a question is lost, whatever the server holds; infinity while unknown."""
        slowest_s = max(self.slowest_s, self._slowest_before_s)
        return max(UNHEARD_OF * slowest_s, UNHEARD_OF_LEAST_S) if slowest_s else NEVER

    @property
    def _trial_s(self) -> float:
        """After how long a trial of a resolver that is not in use is late."""
        return TRIAL_RTOS * self._selection.soonest_rto_s

    def watched_replied(self, resolver: Resolver) -> None:
        """A resolver that is not simply in use replied: its keeper is to know it soon."""
        self._publisher.urgent[resolver.slot] = resolver
        resolver.heard = True
        if resolver.state is State.FRESH:
            self._selection.trial_over(resolver)
