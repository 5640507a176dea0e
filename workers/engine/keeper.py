"""The keeper: decides state, latency and loss of the resolvers of its shard.

Every worker runs one for every pool. It looks, on the tick and never on a packet, at the counters
that all workers published for the resolvers it keeps, and writes its verdict on the board. With
one worker that is the whole judgement in one place; with more, nothing else changes. A keeper
that takes over a resolver carries on from the words of the one before.
"""

from __future__ import annotations

from typing import Final

from shared import buckets, layout
from shared.board import Board
from workers.engine.health import FIRST_TRIAL_S, FRESH_REPLIES, TRANSITIONS, Event, State
from workers.engine.latency import RoundTrip
from workers.engine.loss import LossEstimate
from workers.settings import PoolSettings

NS: Final = 1_000_000_000

EQUAL_FACTOR: Final = 1.2
EQUAL_MARGIN_NS: Final = 5_000_000
"""A resolver is among the equals while its cost is within 1.2 x the cheapest + 5 ms."""

EQUAL_LOSS: Final = 0.02
"""... and its loss is at most two percentage points above the lowest."""

JUDGE_INTERVAL_S: Final = 0.1
"""How often the resolvers of a pool are compared with each other."""

LIVING_STATES: Final = (State.FRESH, State.IN_USE, State.ASIDE)


class Kept:
    """What a keeper remembers of one resolver between ticks."""

    __slots__ = ("failures", "loss", "low_loss", "replies", "round_trip", "slot", "state", "totals")

    def __init__(self, slot: int, board: Board, now: float) -> None:
        words = board.words
        base = board.at.resolver(slot)
        self.slot = slot
        self.state = State(words[base + layout.RESOLVER_STATE])
        self.round_trip = RoundTrip(
            words[base + layout.RESOLVER_SRTT] / NS, words[base + layout.RESOLVER_RTTVAR] / NS
        )
        self.loss = LossEstimate(now)
        self.low_loss = 0.0
        self.replies = 0
        self.failures = 0
        self.totals = _totals(board, slot)

    def __repr__(self) -> str:
        return f"<Kept {self.slot} {self.state.name} failures={self.failures} {self.loss!r}>"


def _totals(board: Board, slot: int) -> list[int]:
    """Return the first seven counter words of a slot, summed over the workers."""
    words = board.words
    at = board.at
    base = at.counters(0, slot)
    totals = words[base : base + layout.COUNTER_DEVIATION_SUM + 1].tolist()
    for worker in range(1, at.workers):
        base = at.counters(worker, slot)
        more = words[base : base + layout.COUNTER_DEVIATION_SUM + 1].tolist()
        totals = [a + b for a, b in zip(totals, more, strict=True)]
    return totals


class Keeper:
    """The judgement over one shard of one pool. `epoch` rises when a state changed."""

    __slots__ = ("_board", "_judge_at", "_kept", "_settings", "_slots", "epoch")

    def __init__(self, board: Board, settings: PoolSettings) -> None:
        self._board = board
        self._settings = settings
        self._kept: dict[int, Kept] = {}
        self._slots: list[int] = []
        self._judge_at = 0.0
        self.epoch = 0

    def __repr__(self) -> str:
        return f"<Keeper {self._settings.name} kept={len(self._kept)} of {len(self._slots)}>"

    def assign(self, now: float, slots: list[int], worker: int) -> None:
        """Learn the slots of the pool, and take over those that the board gives to `worker`."""
        words = self._board.words
        self._slots = slots
        kept: dict[int, Kept] = {}
        for slot in slots:
            if words[self._board.at.resolver(slot) + layout.RESOLVER_KEEPER] == worker:
                kept[slot] = self._kept.get(slot) or Kept(slot, self._board, now)
        self._kept = kept

    def tick(self, now: float) -> None:
        """Take in what the workers published, and move the resolvers whose time has come."""
        for kept in self._kept.values():
            totals = _totals(self._board, kept.slot)
            if totals != kept.totals:
                self._observe(now, kept, totals)
        if now >= self._judge_at:
            self._judge_at = now + JUDGE_INTERVAL_S
            self._judge(now)

    def _observe(self, now: float, kept: Kept, totals: list[int]) -> None:
        """Fold the counters that came in since the last tick into the estimates of a resolver."""
        before = kept.totals
        kept.totals = totals
        answered = totals[layout.COUNTER_ANSWERED] - before[layout.COUNTER_ANSWERED]
        refused = totals[layout.COUNTER_REFUSED] - before[layout.COUNTER_REFUSED]
        lost = totals[layout.COUNTER_LOST] - before[layout.COUNTER_LOST]
        errors = totals[layout.COUNTER_ERRORS] - before[layout.COUNTER_ERRORS]
        replies = answered + refused
        words = self._board.words
        base = self._board.at.resolver(kept.slot)
        if replies or lost:
            kept.loss.count(now, replies, lost)
            kept.low_loss, _ = kept.loss.interval()
            words[base + layout.RESOLVER_LOSS] = int(kept.loss.ratio * 1_000_000)
            words[base + layout.RESOLVER_LOSING] = int(kept.low_loss > EQUAL_LOSS)
        if answered:
            rtt_sum = totals[layout.COUNTER_RTT_SUM] - before[layout.COUNTER_RTT_SUM]
            deviation = totals[layout.COUNTER_DEVIATION_SUM] - before[layout.COUNTER_DEVIATION_SUM]
            kept.round_trip.add(answered, rtt_sum / NS, deviation / NS)
            words[base + layout.RESOLVER_SRTT] = int(kept.round_trip.mean * NS)
            words[base + layout.RESOLVER_RTTVAR] = int(kept.round_trip.deviation * NS)
        if replies:
            kept.failures = 0
            kept.replies += replies
            if kept.state is State.DOWN:
                self._move(now, kept, Event.ANSWERED)
        else:
            kept.failures += lost + errors
            if kept.failures >= self._settings.down_after:
                self._move(now, kept, Event.FAILED)

    def _judge(self, now: float) -> None:
        """Renew the costs of the shard and find out who is among the equals of the pool."""
        now_ns = int(now * NS)
        words = self._board.words
        at = self._board.at
        for kept in self._kept.values():
            base = at.resolver(kept.slot)
            latency = self._latency(kept.slot, now_ns) or words[base + layout.RESOLVER_LATENCY]
            words[base + layout.RESOLVER_LATENCY] = latency
            words[base + layout.RESOLVER_COST] = cost_ns(latency, kept.loss.ratio)
        cheapest = 0
        lowest_loss = 1.0
        for slot in self._slots:
            base = at.resolver(slot)
            cost = words[base + layout.RESOLVER_COST]
            if cost and words[base + layout.RESOLVER_STATE] in LIVING_STATES:
                cheapest = min(cheapest or cost, cost)
                lowest_loss = min(lowest_loss, words[base + layout.RESOLVER_LOSS] / 1_000_000)
        most = int(cheapest * EQUAL_FACTOR) + EQUAL_MARGIN_NS
        for kept in self._kept.values():
            if kept.state is State.FRESH and kept.replies < FRESH_REPLIES:
                continue
            cost = words[at.resolver(kept.slot) + layout.RESOLVER_COST]
            equal = 0 < cost <= most and kept.low_loss <= lowest_loss + EQUAL_LOSS
            if equal and kept.state is State.ASIDE:
                # Back only when the estimate itself is good, not for lack of samples.
                equal = kept.loss.ratio <= lowest_loss + EQUAL_LOSS
            self._move(now, kept, Event.PROVEN_EQUAL if equal else Event.PROVEN_WORSE)

    def _latency(self, slot: int, now_ns: int) -> int:
        """Return the smallest of the workers' windowed minima that still count, in ns, or 0."""
        words = self._board.words
        at = self._board.at
        least = 0
        for worker in range(at.workers):
            base = at.counters(worker, slot)
            if words[base + layout.COUNTER_RTT_MIN_UNTIL] > now_ns:
                value = words[base + layout.COUNTER_RTT_MIN]
                least = min(least or value, value)
        return least

    def _move(self, now: float, kept: Kept, event: Event) -> None:
        """Apply the table of `workers.engine.health` to a resolver."""
        state = TRANSITIONS.get((kept.state, event))
        if state is None:
            return
        kept.state = state
        kept.failures = 0
        if state is State.FRESH:
            kept.replies = 0
        words = self._board.words
        base = self._board.at.resolver(kept.slot)
        buckets.hold_until(
            words, base + layout.RESOLVER_BUCKET_AT, int((now + FIRST_TRIAL_S[state]) * NS)
        )
        words[base + layout.RESOLVER_STATE_SINCE_AT] = int(now * NS)
        words[base + layout.RESOLVER_STATE] = state
        self.epoch += 1


def cost_ns(latency_ns: int, loss: float) -> int:
    """Return what selection compares: the latency, weighted up by the share that is lost.

    A question that is lost with probability p takes 1 / (1 - p) sendings on average (the mean of
    the geometric distribution), so that many latencies.
    """
    return int(latency_ns / max(1.0 - loss, 0.05))
