"""Who gets the next query.

The equals stand in a queue, the least recently used first; choosing is taking the head and putting
it at the end, however many there are. The queue is rebuilt on the tick when a verdict changed.
Resolvers that are fresh, aside or down wait in `idle` and come up for a trial when their bucket
word says so; the word is shared, so over all workers a trial happens once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate
from math import inf

from shared import buckets
from shared.board import Board
from workers.engine.health import ASIDE_TRIAL_S, DOWN_TRIAL_S, State
from workers.engine.resolver import NS, Resolver

AUTO = "auto"
ROUND_ROBIN = "roundrobin"
WEIGHTED = "weighted"
LOWEST_LATENCY = "lowest_latency"


class Selection:
    """The resolvers of a pool in the order in which this worker uses them.

    `random` gives floats in [0, 1). `revivals` are resolvers that are down and due for a copy of
    a live query.
    """

    __slots__ = (
        "_all",
        "_board",
        "_idle",
        "_policy",
        "_random",
        "_ready",
        "_trials",
        "_weighted",
        "_weights",
        "revivals",
    )

    def __init__(self, board: Board, policy: str, random: Callable[[], float]) -> None:
        self._board = board
        self._policy = policy
        self._random = random
        self._all: list[Resolver] = []
        self._ready: deque[Resolver] = deque()
        self._weighted: list[Resolver] = []
        self._weights: list[float] = []
        self._idle: list[Resolver] = []
        self._trials: deque[Resolver] = deque()
        self.revivals: deque[Resolver] = deque()

    def __repr__(self) -> str:
        ready = " ".join(resolver.name for resolver in self._ready)
        return f"<Selection {self._policy} ready=[{ready}] idle={len(self._idle)}>"

    def rebuild(self, resolvers: Iterable[Resolver]) -> None:
        """Sort the resolvers anew after a change of roster, verdict or usability."""
        self._all = sorted(
            (resolver for resolver in resolvers if resolver.usable),
            key=lambda resolver: resolver.cost_s or inf,
        )
        settled = (State.IN_USE,) if self._policy == AUTO else (State.IN_USE, State.ASIDE)
        ready = [resolver for resolver in self._all if resolver.state in settled]
        if self._policy == LOWEST_LATENCY:
            ready = ready[:1]
        if not ready:
            # Nobody is proven yet: the fresh carry the load, or there would be no pool at all.
            ready = [resolver for resolver in self._all if resolver.state is State.FRESH]
        chosen = set(ready)
        kept = [resolver for resolver in self._ready if resolver in chosen]
        old = set(kept)
        self._ready = deque([resolver for resolver in ready if resolver not in old] + kept)
        self._weighted = ready
        self._weights = list(accumulate(float(resolver.entry.weight) for resolver in ready))
        self._idle = [resolver for resolver in self._all if resolver not in chosen]
        for resolver in self._all:
            resolver.idle = resolver not in chosen
            resolver.on_trial = False
        self._trials.clear()
        self.revivals.clear()

    def call_trials(self, now: float) -> None:
        """On the tick: line up the idle resolvers whose bucket has a token."""
        now_ns = int(now * NS)
        words = self._board.words
        for resolver in self._idle:
            if not resolver.on_trial and words[resolver.bucket] <= now_ns:
                resolver.on_trial = True
                line = self.revivals if resolver.state is State.DOWN else self._trials
                line.append(resolver)

    def choose(self, now: float) -> Resolver | None:
        """Return the resolver for the first sending of a query, or None when none can take it."""
        if self._trials:
            resolver = self.take_trial(now, self._trials)
            if resolver is not None:
                return resolver
        ready = self._ready
        if not ready:
            return self.take_trial(now, self.revivals)
        if self._policy == WEIGHTED:
            return self._by_weight()
        resolver = ready[0]
        ready.rotate(-1)
        return resolver

    def other(
        self, now: float, tried: list[Resolver], *, equals_only: bool = False
    ) -> Resolver | None:
        """Return a resolver that has not had the query yet, or None.

        The equals come first, in turn; then, unless `equals_only`, the others that answer, the
        cheapest first; then one that is down and due for a trial.
        """
        ready = self._ready
        for _ in range(len(ready)):
            resolver = ready[0]
            ready.rotate(-1)
            if resolver not in tried:
                return resolver
        if equals_only:
            return None
        for resolver in self._all:
            if resolver.state is not State.DOWN and resolver not in tried:
                return resolver
        resolver_down = self.take_trial(now, self.revivals)
        return resolver_down if resolver_down not in tried else None

    def take_trial(self, now: float, line: deque[Resolver]) -> Resolver | None:
        """Return the next resolver of a line of trials whose token no other worker took."""
        now_ns = int(now * NS)
        while line:
            resolver = line.popleft()
            resolver.on_trial = False
            if resolver.state is State.FRESH:
                wait_s = resolver.per_attempt_s  # given back by its reply, see `trial_over`
            else:
                wait_s = DOWN_TRIAL_S if resolver.state is State.DOWN else ASIDE_TRIAL_S
            if buckets.take(self._board.words, resolver.bucket, now_ns, int(wait_s * NS), 0):
                return resolver
        return None

    def trial_over(self, resolver: Resolver) -> None:
        """A fresh resolver replied: it may have its next query at once."""
        if resolver.idle and not resolver.on_trial:
            buckets.hold_until(self._board.words, resolver.bucket, 0)
            resolver.on_trial = True
            self._trials.append(resolver)

    def _by_weight(self) -> Resolver:
        point = self._random() * self._weights[-1]
        return self._weighted[min(bisect_right(self._weights, point), len(self._weighted) - 1)]
