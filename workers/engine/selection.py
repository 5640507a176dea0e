"""Who gets the next query.

The equals stand in a queue, the least recently used first; choosing is taking the head and putting
it at the end, however many there are. Those that are clearly worse stand in a second line, the
cheapest first, for when every equal is at its ceiling: capacity adds up. A resolver whose ceiling
has no token is out of both lines until its next token is due, so nothing is looked at twice. The
lines are rebuilt on the tick when a verdict changed. Where resolvers differ in what they let
through there is a pair of lines for each kind, see `workers.engine.fitness`.

Resolvers that are aside, or fresh and have replied, also come up for trials of live queries, when
their trial word on the board says so; the word is shared, so over all workers a trial happens once.
Those that are down and strangers are asked beside a query, see `workers.engine.scouting`.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from typing import Final

from shared import buckets
from shared.board import Board
from workers.engine.ceiling import LOSS_FACTOR, REFUSAL_FACTOR
from workers.engine.fitness import Fitness
from workers.engine.health import ASIDE_TRIAL_S, DOWN_TRIAL_S, State
from workers.engine.latency import INITIAL_RTO_S
from workers.engine.pending import Query
from workers.engine.resolver import NS, Resolver

AUTO: Final = "auto"
ROUND_ROBIN: Final = "roundrobin"
WEIGHTED: Final = "weighted"
LOWEST_LATENCY: Final = "lowest_latency"

BURST_NS: Final = 500_000_000
"""A bucket holds the tokens of half a second: a tunnel that does not wait asks in bursts that are a
resend time (some hundred ms) apart, and the limiters themselves let bursts through."""

LOOKED_AT: Final = 256
"""Resolvers looked at in one tick for whether they are due for a trial."""

TRIAL_EVERY: Final = 8
"""At most one query in so many is spent on a trial: many may stand aside, and are slower."""

REPLIED_EVERY: Final = 4
"""... or in so many, for a fresh resolver that has just replied: after an outage with little
traffic those that are back would else wait long for the replies that prove them."""

STAGGER_S: Final = 0.001
TURN_NS: Final = 100_000_000
MOST_TURNS: Final = 8
"""Workers that wait for a token look for it this far apart; who is first changes this often; with
more workers than this some share a turn."""

ROUNDING_NS: Final = 1_000
"""A time in ns that goes through seconds in floating point may come back a little earlier: whoever
looked for a token at that very moment would find it not due yet, and look again and again."""

DRAWS: Final = 8
"""Draws by weight for a query that not all let through; then it goes to who waited longest."""

EXPLORE_S: Final = 0.1
"""While queries wait, a resolver may get one above its ceiling this often."""

TROUBLE_S: Final = 1.0
"""... unless it has refused or lost something within this time."""

EXPLORE_PAUSE_S: Final = 0.02
"""Time between two looks for a resolver to explore."""


class Selection:
    """The resolvers of a pool in the order in which this worker uses them.

    `random` gives floats in [0, 1). `fitness` says what each lets through, `revivals` are resolvers
    that are down and due for a copy of a live query, `strangers` those, fresh or down, that have
    never replied. `nobody_answers` says that no resolver that is up has answered a live query yet;
    refusals, and answers to plain questions, are none.
    """

    __slots__ = (
        "_all",
        "_board",
        "_explore_at",
        "_fresh",
        "_held_back",
        "_idle",
        "_mixed",
        "_policy",
        "_random",
        "_ready",
        "_rest",
        "_since_trial",
        "_trial_every",
        "_trials",
        "_unheard",
        "_weighted",
        "_weights",
        "_worker",
        "fitness",
        "nobody_answers",
        "revivals",
        "soonest_rto_s",
        "strangers",
    )

    def __init__(self, board: Board, worker: int, policy: str, random: Callable[[], float]) -> None:
        self._board = board
        self._worker = worker
        self._policy = policy
        self._random = random
        self._all: list[Resolver] = []
        self.soonest_rto_s = INITIAL_RTO_S
        self.fitness = Fitness()
        self._mixed = False
        self._ready = self.fitness.groups[0].ready
        self._rest = self.fitness.groups[0].rest
        self._held_back: list[tuple[int, int, Resolver]] = []
        self._weighted: list[Resolver] = []
        self._weights: list[float] = []
        self._idle: deque[Resolver] = deque()
        self._fresh: list[Resolver] = []
        self._trials: deque[Resolver] = deque()
        self._explore_at = 0.0
        self._since_trial = 0
        self._trial_every = TRIAL_EVERY
        self.nobody_answers = True
        self._unheard: deque[Resolver] = deque()
        self.revivals: deque[Resolver] = deque()
        self.strangers: deque[Resolver] = deque()

    def __repr__(self) -> str:
        ready = " ".join(resolver.name for resolver in self.fitness.order())
        rest = " ".join(each.name for group in self.fitness.groups for each in group.rest)
        held_back = " ".join(entry[2].name for entry in self._held_back)
        return f"<Selection {self._policy} ready=[{ready}] rest=[{rest}] held back=[{held_back}]>"

    @property
    def room_at(self) -> float:
        """When to look for the token of the next resolver at its ceiling; infinity if none is.

        Workers that wait for the same token look one after the other, in changing order: at the
        same moment two of them would both take it.
        """
        if not self._held_back:
            return inf
        free_ns = self._held_back[0][0]
        turn = (self._worker + free_ns // TURN_NS) % min(self._board.at.workers, MOST_TURNS)
        return (free_ns + ROUNDING_NS) / NS + turn * STAGGER_S

    # -- lines ------------------------------------------------------------------------------

    def rebuild(self, resolvers: Iterable[Resolver]) -> None:
        """Sort the resolvers anew after a change of roster, verdict or usability."""
        self._all = sorted(
            (resolver for resolver in resolvers if resolver.usable),
            key=_rank,
        )
        in_use = [resolver for resolver in self._all if resolver.state is State.IN_USE]
        aside = [resolver for resolver in self._all if resolver.state is State.ASIDE]
        if self._policy in (ROUND_ROBIN, WEIGHTED):
            ready, rest = in_use + aside, []
        elif self._policy == LOWEST_LATENCY:
            ready, rest = [], in_use + aside
        else:
            ready, rest = in_use, aside
        fresh = [resolver for resolver in self._all if resolver.state is State.FRESH]
        heard = [resolver for resolver in fresh if resolver.heard]
        up = (*in_use, *aside, *heard)
        self.nobody_answers = not any(each.answers for each in up)
        if not in_use:
            # Nobody is proven yet: the fresh carry the load, or there would be no pool at all.
            ready = self._best_fresh(fresh) + ready
        chosen = set(ready)
        fitness = self.fitness
        kept = [resolver for resolver in fitness.order() if resolver in chosen]
        old = set(kept)
        fitness.sort([resolver for resolver in ready if resolver not in old] + kept, rest)
        self._mixed = fitness.mixed
        self._ready = fitness.groups[0].ready
        self._rest = fitness.groups[0].rest
        self._held_back = []
        self._weighted = ready
        self._weights = list(accumulate(float(resolver.entry.weight) for resolver in ready))
        self._fresh = [] if self.nobody_answers else heard
        self._unheard = deque(each for each in fresh if not each.heard)
        self._trials.clear()
        self.revivals.clear()
        self.strangers.clear()
        for resolver in self._all:
            resolver.equal = resolver in chosen or resolver.state is State.IN_USE
            resolver.watched = resolver.state is not State.IN_USE
            resolver.on_trial = False
        # Whoever has waited longest comes first: from a long list the dead would else be tried
        # again before the others had their first turn.
        words = self._board.words
        idle = [each for each in self._all if not each.equal or not each.heard]
        if self.nobody_answers:
            idle.reverse()  # the queries themselves begin at the front
        self._idle = deque(sorted(idle, key=lambda each: words[each.trial_word]))
        self.soonest_rto_s = min(
            (resolver.rto_s for resolver in chosen if resolver.srtt_s), default=INITIAL_RTO_S
        )
        fitness.set_copy_targets(
            resolver for resolver in in_use if not resolver.interval_ns and resolver.cost_s
        )

    def _best_fresh(self, fresh: list[Resolver]) -> list[Resolver]:
        """Return the fresh that carry the load: those that answered a query, if anybody up did.

        Else those that answered a plain question, as long as they do not just refuse; else all.
        """
        if not self.nobody_answers:
            return [each for each in fresh if each.answers]
        heard = [each for each in fresh if each.heard and not each.refused]
        first = len(fresh) * self._worker // self._board.at.workers  # they share a long search
        return heard or fresh[first:] + fresh[:first]

    def choose(self, now: float, query: Query) -> Resolver | None:
        """Return the resolver for the next sending of a query, or None when none has room."""
        self._since_trial += 1
        if self._trials and self._since_trial >= self._trial_every:
            resolver = self.take_trial(now, self._trials, query)
            if resolver is not None:
                self._since_trial = 0
                self._trial_every = TRIAL_EVERY
                return resolver
        if self._held_back:
            self._let_back(now)
        if self._policy == WEIGHTED and self._weighted:
            drawn = self._by_weight(query)
            if drawn is not None and (not drawn.interval_ns or self._has_token(now, drawn)):
                return drawn
        ready = self.fitness.ready(query) if self._mixed else self._ready
        while ready:
            resolver = ready[0]
            if not resolver.interval_ns or self._has_token(now, resolver):
                ready.rotate(-1)
                if self._mixed:
                    self.fitness.took(resolver)
                return resolver
            ready.popleft()
            self._hold_back(resolver)
            if self._mixed:
                ready = self.fitness.ready(query)
        rest = self.fitness.rest(query) if self._mixed else self._rest
        while rest:
            resolver = rest[0]
            if not resolver.interval_ns or self._has_token(now, resolver):
                return resolver
            del rest[0]
            self._hold_back(resolver)
            if self._mixed:
                rest = self.fitness.rest(query)
        return None if self._held_back else self.stranger(now, query)

    def other(self, now: float, query: Query, *, equals_only: bool = False) -> Resolver | None:
        """Return a resolver with room that has not had the query yet, or None.

        The equals come first, in turn; then, unless `equals_only`, the others that answer, the
        cheapest first; where nobody does, a stranger, or one that is down and due for a trial.
        """
        if self._held_back:
            self._let_back(now)
        tried = query.tried
        for ready in self.fitness.lines(query) if self._mixed else (self._ready,):
            for _ in range(len(ready)):
                resolver = ready[0]
                if resolver in tried:
                    ready.rotate(-1)
                elif not resolver.interval_ns or self._has_token(now, resolver):
                    ready.rotate(-1)
                    self.fitness.took(resolver)
                    return resolver
                else:
                    ready.popleft()
                    self._hold_back(resolver)
        for rest in self.fitness.rests(query) if self._mixed else (self._rest,):
            position = 0
            while position < len(rest):
                resolver = rest[position]
                if equals_only and not resolver.equal:
                    break
                if resolver in tried:
                    position += 1
                elif not resolver.interval_ns or self._has_token(now, resolver):
                    return resolver
                else:
                    del rest[position]
                    self._hold_back(resolver)
        if equals_only:
            return None
        for resolver in self._fresh:
            if resolver not in tried and self.fitness.passes(query, resolver):
                return resolver
        return self.stranger(now, query, tried) if self.nobody_answers else None

    def stranger(self, now: float, query: Query, tried: Sequence[Resolver] = ()) -> Resolver | None:
        """Return one that is down or has never replied and is due, for want of anybody better."""
        known = self.take_trial(now, self.revivals, query, tried)
        return known or self.take_trial(now, self.strangers, query, tried)

    @property
    def has_unheard(self) -> bool:
        """Whether there are resolvers that have never replied and are not down."""
        return bool(self._unheard)

    def unheard(self, query: Query) -> Resolver | None:
        """Return one that has never replied and is not down, in turn, whether it is due or not."""
        line = self._unheard
        for _ in range(min(len(line), len(query.tried) + 1)):
            resolver = line[0]
            line.rotate(-1)
            if resolver not in query.tried and self.fitness.passes(query, resolver):
                return resolver
        return None

    def copy_target(self, query: Query) -> Resolver | None:
        """Return the resolver without a ceiling that answers soonest and surest, for a copy."""
        return self.fitness.copy_target(query)

    def explore(self, now: float, query: Query) -> Resolver | None:
        """Return a resolver that may get a waiting query above its ceiling, or None."""
        if now < self._explore_at:
            return None
        now_ns = int(now * NS)
        words = self._board.words
        for _, _, resolver in self._held_back:
            calm = now_ns - words[resolver.refused_word] >= int(TROUBLE_S * NS)
            calm = calm and self.fitness.passes(query, resolver)
            if calm and buckets.take(words, resolver.explore_word, now_ns, int(EXPLORE_S * NS), 0):
                resolver.extra_at = now
                return resolver
        self._explore_at = now + EXPLORE_PAUSE_S
        return None

    def refused(self, now: float, resolver: Resolver) -> None:
        """A refusal empties the bucket, whatever the ceiling says; without one it makes one do.

        Until the keeper has set a ceiling the resolver is taken to allow what it answered lately.
        """
        resolver.expect_ceiling(now, REFUSAL_FACTOR)
        self._empty(now, resolver)

    def lost(self, now: float, resolver: Resolver) -> None:
        """A loss. If losses outweigh answers just now, no more goes there than it answered lately.

        Queries come back from a resolver that drops them in one burst, per_attempt after they
        were sent, and must not all go there again before the keeper has thought it over.
        """
        if not resolver.interval_ns and resolver.loses_in_a_burst:
            resolver.expect_ceiling(now, LOSS_FACTOR)
            self._empty(now, resolver)
        self._board.words[resolver.refused_word] = int(now * NS)

    def _empty(self, now: float, resolver: Resolver) -> None:
        now_ns = int(now * NS)
        words = self._board.words
        words[resolver.refused_word] = now_ns
        empty = now_ns < words[resolver.bucket] < now_ns + resolver.interval_ns
        if resolver.interval_ns and not empty:
            buckets.hold_until(words, resolver.bucket, now_ns + resolver.interval_ns)

    def _has_token(self, now: float, resolver: Resolver) -> bool:
        return buckets.take(
            self._board.words, resolver.bucket, int(now * NS), resolver.interval_ns, BURST_NS
        )

    def _hold_back(self, resolver: Resolver) -> None:
        """Take a resolver without a token out of the lines until it has one."""
        resolver.held += 1
        free_ns = self._board.words[resolver.bucket]
        heappush(self._held_back, (free_ns, resolver.slot, resolver))

    def _let_back(self, now: float) -> None:
        now_ns = int(now * NS)
        held_back = self._held_back
        while held_back and held_back[0][0] <= now_ns:
            resolver = heappop(held_back)[2]
            if resolver.equal and self._policy != LOWEST_LATENCY:
                resolver.group.ready.appendleft(resolver)  # it has waited longest
            else:
                insort(resolver.group.rest, resolver, key=_rank)

    def _by_weight(self, query: Query) -> Resolver | None:
        """Draw a resolver; None if by chance none was drawn that lets the query through."""
        for _ in range(DRAWS if self._mixed else 1):
            point = self._random() * self._weights[-1]
            last = len(self._weighted) - 1
            resolver = self._weighted[min(bisect_right(self._weights, point), last)]
            if not self._mixed or self.fitness.passes_whole(query, resolver):
                return resolver
        return None

    # -- trials -----------------------------------------------------------------------------

    def call_trials(self, now: float) -> None:
        """On the tick: line up the idle resolvers that are due for a trial."""
        now_ns = int(now * NS)
        words = self._board.words
        idle = self._idle
        for _ in range(min(len(idle), LOOKED_AT)):
            resolver = idle[0]
            idle.rotate(-1)
            if not resolver.on_trial and words[resolver.trial_word] <= now_ns:
                resolver.on_trial = True
                if not resolver.heard:
                    self.strangers.append(resolver)
                elif resolver.state is State.DOWN:
                    self.revivals.append(resolver)
                else:
                    self._trials.append(resolver)

    def take_trial(
        self,
        now: float,
        line: deque[Resolver],
        query: Query,
        tried: Sequence[Resolver] = (),
    ) -> Resolver | None:
        """Return the next resolver of a line of trials whose turn no other worker took.

        Those that the query has `tried` keep their turn for another query; one that it cannot pass
        stays due, for the next tick to line it up again.
        """
        now_ns = int(now * NS)
        words = self._board.words
        for _ in range(len(line)):
            resolver = line.popleft()
            if resolver in tried:
                line.append(resolver)
                continue
            resolver.on_trial = False
            if not self.fitness.passes(query, resolver):
                continue
            if resolver.state is State.FRESH:
                wait_s = resolver.per_attempt_s  # given back by its reply, see `trial_over`
            else:
                wait_s = DOWN_TRIAL_S if resolver.state is State.DOWN else ASIDE_TRIAL_S
            if not buckets.take(words, resolver.trial_word, now_ns, int(wait_s * NS), 0):
                continue
            proven = resolver.state is not State.FRESH  # one at a time is limit enough
            if not proven or not resolver.interval_ns or self._has_token(now, resolver):
                return resolver
        return None

    def asked_stranger(self, now: float, resolver: Resolver) -> None:
        """A resolver of which nothing is known was sent something: it has its time to answer."""
        if resolver.state is State.FRESH:
            due_ns = int((now + resolver.per_attempt_s) * NS)
            buckets.hold_until(self._board.words, resolver.trial_word, due_ns)

    def trial_over(self, resolver: Resolver) -> None:
        """A fresh resolver replied: it may have its next query at once.

        While it is among those that take turns it needs no trials, but it may be none of them when
        it is looked at next.
        """
        buckets.hold_until(self._board.words, resolver.trial_word, 0)
        if not resolver.equal and not resolver.on_trial:
            resolver.on_trial = True
            self._trials.appendleft(resolver)
            self._trial_every = REPLIED_EVERY


def _rank(resolver: Resolver) -> tuple[bool, float]:
    """Order of resolvers: those in use first, then by cost, the unknown last."""
    return resolver.state is not State.IN_USE, resolver.cost_s or inf
