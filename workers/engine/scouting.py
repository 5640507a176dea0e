"""Looking for those that work among those that are dead, beside the traffic.

A user may name a thousand resolvers of which ten work. Whoever has not answered yet (a *stranger*)
and whoever is down is asked beside a query, never instead of somebody that answers: no client waits
for a trial. The line is served longest waiting first, those that have answered before ahead of the
strangers, and what is sent is bounded however long the list is.

**A copy or a question of our own.** A copy of the live query is the better trial: it shows that the
tunnel itself gets through, and its answer is delivered as that of every copy. It reaches the
tunnel's server once for each resolver that works; the next ones are trials of live queries. Where
a pool wants no copies (dns2tcp refuses a login that comes twice), a stranger is asked a plain
question first. Its answer proves no more than that somebody is there, so it counts for nothing,
neither for latency nor among the first replies: the resolver is then tried as any fresh one that
answers. One silent to that gets copies the next times: some answer for the tunnel alone.

**While nobody has answered** a live query the queries go to those that answered a plain question,
then to the strangers in turn, for want of anybody better; a refusal is no answer. When they wait
for long, plain questions go out besides, from the other end of the list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from shared import buckets
from shared.board import Board
from workers.engine import wire as dns
from workers.engine.attempts import Attempts
from workers.engine.counters import PoolCounters
from workers.engine.health import DOWN_TRIAL_S, State
from workers.engine.keeper import Keeper
from workers.engine.pending import COPY, PROBE, Attempt, Query
from workers.engine.resolver import NS, Resolver
from workers.engine.selection import Selection
from workers.settings import PoolSettings

SCOUTS_QPS: Final = 50.0
"""At most so many a second, over all workers: a thousand strangers are gone through in 20 s, for
some 50 kbit/s."""

QUERIES_PER_SCOUT: Final = 10
"""... or beside one query in so many, if that is more."""

PLAIN_FIRST: Final = 2
"""Plain questions that a stranger is asked before it gets copies where a pool wants none: by then
the login of a tunnel that has just begun is over."""

PATIENCE_S: Final = 0.1
"""When queries have waited for so long and nobody has ever answered, plain questions go out."""

QUIET_PROBES: Final = 32
"""Resolvers that are down and probed by one worker in one interval without traffic, at most."""


class Scouting:
    """The scouts of one pool in one worker: copies of live queries, and probes."""

    __slots__ = (
        "_attempts",
        "_board",
        "_counters",
        "_interval_s",
        "_keeper",
        "_lonely_since",
        "_next_at",
        "_outbox",
        "_per_attempt_s",
        "_probe",
        "_probe_at",
        "_queries",
        "_selection",
        "_settings",
    )

    def __init__(
        self,
        board: Board,
        settings: PoolSettings,
        selection: Selection,
        keeper: Keeper,
        attempts: Attempts,
        counters: PoolCounters,
        outbox: deque[Attempt | Query],
    ) -> None:
        self._board = board
        self._settings = settings
        self._selection = selection
        self._keeper = keeper
        self._attempts = attempts
        self._counters = counters
        self._outbox = outbox
        self._per_attempt_s = settings.attempt_limit_s
        self._probe = dns.probe(settings.probe_name)
        self._interval_s = board.at.workers / SCOUTS_QPS
        self._next_at = 0.0
        self._queries = 0
        self._lonely_since = 0.0
        self._probe_at = 0.0

    def __repr__(self) -> str:
        return f"<Scouting next_at={self._next_at:.3f}>"

    def beside(self, now: float, query: Query, chosen: Resolver) -> None:
        """Ask one that is down or a stranger, if one is due, beside a query that `chosen` gets."""
        self._queries += 1
        if now < self._next_at and self._queries < QUERIES_PER_SCOUT:
            return
        selection = self._selection
        resolver = selection.take_trial(now, selection.revivals, query, (chosen,))
        if resolver is None and not selection.nobody_answers:
            resolver = selection.take_trial(now, selection.strangers, query, (chosen,))
        if resolver is None:
            return
        self._sent(now)
        is_new = resolver.state is State.FRESH and resolver.sent < PLAIN_FIRST
        if is_new and self._settings.duplicate == 1:
            self._send_probe(now, resolver)
        else:
            self._counters.copies += 1
            self._outbox.append(self._attempts.open(now, query, resolver, COPY))

    def tick(self, now: float, resolvers: Iterable[Resolver]) -> None:
        """Send the probes that are due."""
        selection = self._selection
        if not (selection.nobody_answers and selection.strangers and self._counters.pending):
            self._lonely_since = now
        elif now - self._lonely_since >= PATIENCE_S and now >= self._next_at:
            query = self._probe_query(now)
            resolver = selection.take_trial(now, selection.strangers, query)
            if resolver is not None:
                self._sent(now)
                self._outbox.append(self._attempts.open(now, query, resolver, PROBE))
        if now >= self._probe_at:
            self._probe_at = now + self._settings.probe_interval_s
            self._probe_when_quiet(now, resolvers)

    def _probe_when_quiet(self, now: float, resolvers: Iterable[Resolver]) -> None:
        """Ask resolvers of the shard that are down ourselves, if no live query went there."""
        words = self._board.words
        quiet_since_ns = int((now - self._settings.probe_interval_s + DOWN_TRIAL_S) * NS)
        due = [
            resolver
            for resolver in resolvers
            if resolver.state is State.DOWN
            and self._keeper.keeps(resolver.slot)
            and words[resolver.trial_word] <= quiet_since_ns
        ]
        if len(due) > QUIET_PROBES:
            due.sort(key=lambda resolver: (not resolver.heard, words[resolver.trial_word]))
            del due[QUIET_PROBES:]
            for resolver in due:
                buckets.hold_until(words, resolver.trial_word, int(now * NS))
        for resolver in due:
            self._send_probe(now, resolver)

    def _send_probe(self, now: float, resolver: Resolver) -> None:
        probe = self._probe_query(now)
        self._outbox.append(self._attempts.open(now, probe, resolver, PROBE))

    def _probe_query(self, now: float) -> Query:
        return Query(None, None, self._probe, len(self._probe), now + self._per_attempt_s)

    def _sent(self, now: float) -> None:
        self._queries = 0
        self._next_at = max(self._next_at, now - self._interval_s) + self._interval_s
