"""Late answers: when an attempt is late, whether it is lost or only held, and who is asked instead.

Theory of operation. An attempt is late after its resolver's retransmission time. A tunnel's server
may hold its question as long as that and longer, so being late is no proof of a loss:

- What is **lost** (`is_lost`) may go to any resolver. What may only be held goes to one that is
  about as fast as the best, where a second sending does little harm. For a profile that suffers
  from copies it stays where it is until it is older than any answer (`_is_unheard_of`).
- A resolver that has just lost or refused something is **in doubt**, and what is late there taken
  for lost. A healthy one never causes this.
- Where nobody else is left, what is lost goes **again** (`_goes_again`) to one that has had it.
- A hedge that is late too **goes on** (`_goes_on`) to the next only while others get through.

This decides; `workers.engine.attempts` sends. The retransmission time is in
`workers.engine.latency`.
"""

from __future__ import annotations

from typing import Final

from shared.board import Board
from workers.engine.health import State
from workers.engine.pending import HEDGE, Attempt, Query
from workers.engine.resolver import NS, Resolver
from workers.engine.selection import Selection
from workers.engine.timers import NEVER
from workers.settings import PoolSettings

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


class Hedging:
    """What one pool in one worker knows of late answers.

    The engine tells it of every answer: `newest_answered_at` is when the latest sent of all
    attempts that were answered had been sent, `slowest_s` the slowest answer lately.
    """

    __slots__ = (
        "_board",
        "_only_losing",
        "_pathfinder",
        "_per_attempt_s",
        "_selection",
        "_slowest_before_s",
        "_slowest_until",
        "_unheard_from",
        "newest_answered_at",
        "slowest_s",
    )

    def __init__(self, board: Board, settings: PoolSettings, selection: Selection) -> None:
        self._board = board
        self._selection = selection
        self._only_losing = settings.hedge_only_losing
        self._per_attempt_s = settings.attempt_limit_s
        self.newest_answered_at = 0.0
        self.slowest_s = 0.0
        self._slowest_before_s = 0.0
        self._slowest_until = 0.0
        self._unheard_from = 0.0
        self._pathfinder: Query | None = None

    def __repr__(self) -> str:
        return f"<Hedging unheard of after {self._unheard_of_s:.3f} s>"

    def tick(self, now: float) -> None:
        """Let time pass: the slowest answer counts for SLOWEST_OVER_S more, then no longer."""
        if now >= self._slowest_until:
            self._slowest_until = now + SLOWEST_OVER_S
            self._slowest_before_s = self.slowest_s
            self.slowest_s = 0.0

    # -- when ---------------------------------------------------------------------------------

    @property
    def trial_s(self) -> float:
        """After how long a trial of a resolver that is not in use is late."""
        return TRIAL_RTOS * self._selection.soonest_rto_s

    def too_early(self, now: float, attempt: Attempt) -> float | None:
        """Return when to look again at an attempt that is not late yet; None if it is late."""
        late = attempt.resolver
        sent_at = attempt.sent_at
        if attempt.delayed:
            attempt.delayed = False
            if now < sent_at + late.rto_s - ROUNDING_S:
                return sent_at + late.rto_s
        if not late.srtt_s:
            least_s = min(late.rto_s, self.trial_s)
            if now - sent_at < least_s - ROUNDING_S:
                return min(2 * now - sent_at, sent_at + least_s)
        if late.state is State.FRESH and not attempt.waits and self._only_losing:
            settled_at = sent_at + HICCUP_S
            if now < settled_at - ROUNDING_S:
                return settled_at
        return None

    def holds_off(self, now: float, attempt: Attempt, *, lost: bool) -> bool:
        """Tell whether a late attempt is left alone for now: it is held, or a hedge is to wait."""
        if self._only_losing and not lost:
            return True
        return (
            attempt.kind == HEDGE
            and not self._is_overtaken(attempt)
            and not self._goes_on(now, attempt)
        )

    # -- lost or held -------------------------------------------------------------------------

    def is_lost(self, now: float, attempt: Attempt) -> bool:
        """Tell whether a late attempt is taken for lost; else it may only be held.

        What has not left yet is surely not held, and is no loss of its resolver either.
        """
        late = attempt.resolver
        return (
            attempt.waits
            or late.losing
            or self._is_overtaken(attempt)
            or self._is_in_doubt(now, late)
            or late.state in (State.FRESH, State.DOWN)
            or (self._only_losing and (not late.equal or self._is_unheard_of(now, attempt)))
        )

    def _is_overtaken(self, attempt: Attempt) -> bool:
        """What was sent later, to whomever, has been answered: this is no poll that is held."""
        return self.newest_answered_at > attempt.sent_at

    def _is_in_doubt(self, now: float, resolver: Resolver) -> bool:
        """It has lost or refused something lately."""
        return int(now * NS) - self._board.words[resolver.refused_word] < int(DOUBT_S * NS)

    def _is_unheard_of(self, now: float, attempt: Attempt) -> bool:
        """It takes longer than any answer. That is believed of one at a time."""
        if now < self._unheard_from or now - attempt.sent_at < self._unheard_of_s:
            return False
        self._unheard_from = now + self._per_attempt_s
        return True

    @property
    def _unheard_of_s(self) -> float:
        """After how long a question is lost, whatever the server holds; infinity while unknown."""
        slowest_s = max(self.slowest_s, self._slowest_before_s)
        return max(UNHEARD_OF * slowest_s, UNHEARD_OF_LEAST_S) if slowest_s else NEVER

    # -- where --------------------------------------------------------------------------------

    def second(self, now: float, attempt: Attempt, *, lost: bool) -> Resolver | None:
        """Return who is asked besides the resolver of a late attempt, or None."""
        query = attempt.query
        resolver = self._selection.other(now, query, equals_only=not lost)
        if resolver is None and self._goes_again(now, attempt):
            # Nobody else is there, or all are lossy: better again than to wait for per_attempt.
            resolver = self._selection.choose(now, query)
        if resolver is None and lost and (attempt.waits or not self._is_overtaken(attempt)):
            # Nobody has been answered since: then who works is to be found.
            resolver = self._selection.stranger(now, query, query.tried)
        return resolver

    def _goes_again(self, now: float, attempt: Attempt) -> bool:
        """Tell whether a query that nobody else can take goes to one that has had it."""
        late = attempt.resolver
        # A ceiling is for fresh questions, and a stream repeats what is lost by itself.
        is_free = not late.interval_ns and not late.is_stream
        if attempt.waits or not (late.losing or (is_free and self._is_in_doubt(now, late))):
            return False
        if attempt.kind != HEDGE or now < late.random_until:
            may_go = True
        else:
            # One that is at a limit would be asked many times what it allows.
            knows = self._unheard_of_s < NEVER
            may_go = knows and not late.is_stream and self._goes_on(now, attempt)
        return may_go and late.state is not State.DOWN

    def _goes_on(self, now: float, hedge: Attempt) -> bool:
        """Tell whether the query of a late hedge goes on with no sign that others get through.

        When all are late the way to them is full or cut, and were every query sent again and again
        the load would be many times what it was. So one at a time looks for a way, and only when
        no answer takes as long.
        """
        if now - hedge.sent_at < self._unheard_of_s < NEVER:
            return False
        pathfinder = self._pathfinder
        if pathfinder is None or pathfinder.answered or not pathfinder.open:
            self._pathfinder = hedge.query
        return self._pathfinder is hedge.query
