"""The keeper: decides state, latency and loss of the resolvers of its shard.

Every worker runs one for every pool. It looks, on the tick and never on a packet, at the counters
that all workers published for the resolvers it keeps, and writes its verdict on the board. With
one worker that is the whole judgement in one place; with more, nothing else changes. A keeper
that takes over a resolver carries on from the words of the one before.
"""

from __future__ import annotations

from typing import Final

from shared import buckets, layout, rings
from shared.board import Board
from workers.engine.ceiling import Ceiling
from workers.engine.health import FIRST_TRIAL_S, FRESH_REPLIES, TRANSITIONS, Event, State
from workers.engine.latency import RoundTrip
from workers.engine.loss import LossEstimate
from workers.engine.resolver import MICRO, NS
from workers.settings import PoolSettings

EQUAL_FACTOR: Final = 1.2
EQUAL_MARGIN_NS: Final = 5_000_000
"""A resolver is among the equals while its cost is within 1.2 x the cheapest + 5 ms."""

EQUAL_LOSS: Final = 0.02
"""... and its loss is at most two percentage points above the lowest."""

TICKS_S: Final = 0.05
"""Two ticks and a little: by then the keeper has seen what another worker counted."""

JUDGE_INTERVAL_S: Final = 0.1
JUDGE_S: Final = 0.001
"""The resolvers of a pool are compared with each other this often; in a large pool so much for
every resolver, which keeps its share of the CPU."""

COUNTED: Final = layout.COUNTER_OVERDUE + 1
"""Counter words that the keeper follows: the first ones of the block."""


class Kept:
    """What a keeper remembers of one resolver between ticks."""

    __slots__ = (
        "ceiling",
        "failures",
        "loss",
        "low_loss",
        "replied_at",
        "replies",
        "round_trip",
        "slot",
        "state",
        "totals",
    )

    def __init__(self, slot: int, board: Board, now: float, per_attempt_s: float) -> None:
        words = board.words
        base = board.at.resolver(slot)
        self.slot = slot
        self.state = State(words[base + layout.RESOLVER_STATE])
        self.round_trip = RoundTrip(
            words[base + layout.RESOLVER_SRTT] / NS, words[base + layout.RESOLVER_RTTVAR] / NS
        )
        self.ceiling = Ceiling(now, per_attempt_s, words[base + layout.RESOLVER_CEILING] / MICRO)
        ended = words[base + layout.RESOLVER_LOSS_ENDED] / 1000
        self.loss = LossEstimate(now, ended, ended * words[base + layout.RESOLVER_LOSS] / MICRO)
        self.low_loss, _ = self.loss.interval()
        self.replies = 0
        self.replied_at = 0.0
        self.failures = 0
        self.totals = _totals(board, slot)

    def __repr__(self) -> str:
        return f"<Kept {self.slot} {self.state.name} failures={self.failures} {self.loss!r}>"


def _totals(board: Board, slot: int) -> list[int]:
    """Return the counter words of a slot up to COUNTER_OVERDUE, summed over the workers."""
    words = board.words
    at = board.at
    base = at.counters(0, slot)
    totals = words[base : base + COUNTED].tolist()
    for worker in range(1, at.workers):
        base = at.counters(worker, slot)
        more = words[base : base + COUNTED].tolist()
        totals = [a + b for a, b in zip(totals, more, strict=True)]
    return totals


class Keeper:
    """The judgement over one shard of one pool. `epoch` rises when a state changed."""

    __slots__ = (
        "_board",
        "_heads",
        "_judge_at",
        "_kept",
        "_per_attempt_s",
        "_settings",
        "_slots",
        "epoch",
    )

    def __init__(self, board: Board, settings: PoolSettings) -> None:
        self._board = board
        self._settings = settings
        self._per_attempt_s = settings.attempt_limit_s
        self._kept: dict[int, Kept] = {}
        self._slots: list[int] = []
        self._judge_at = 0.0
        self._heads = [0] * board.at.workers
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
                kept[slot] = self._kept.get(slot) or Kept(
                    slot, self._board, now, self._per_attempt_s
                )
        self._kept = kept

    def keeps(self, slot: int) -> bool:
        """Tell whether a resolver belongs to the shard."""
        return slot in self._kept

    def tick(self, now: float) -> None:
        """Take in what the workers published, and move the resolvers whose time has come."""
        for slot in self._published_slots():
            kept = self._kept.get(slot)
            if kept is not None:
                self._observe(now, kept, _totals(self._board, slot))
        if now >= self._judge_at:
            self._judge_at = now + max(JUDGE_INTERVAL_S, JUDGE_S * len(self._slots))
            self._judge(now)

    def _published_slots(self) -> set[int]:
        """Return the slots of which any worker published counters since the last call."""
        words = self._board.words
        at = self._board.at
        slots: set[int] = set()
        for worker in range(at.workers):
            self._heads[worker], published = rings.read(words, at.ring(worker), self._heads[worker])
            slots.update(self._kept if published is None else published)
        return slots

    def _observe(self, now: float, kept: Kept, totals: list[int]) -> None:
        """Fold the counters that came in since the last tick into the estimates of a resolver."""
        before = kept.totals
        kept.totals = totals
        answered = totals[layout.COUNTER_ANSWERED] - before[layout.COUNTER_ANSWERED]
        refused = totals[layout.COUNTER_REFUSED] - before[layout.COUNTER_REFUSED]
        lost = totals[layout.COUNTER_LOST] - before[layout.COUNTER_LOST]
        errors = totals[layout.COUNTER_ERRORS] - before[layout.COUNTER_ERRORS]
        replies = answered + refused
        # Taken for lost until they are, or are answered after all.
        overdue = totals[layout.COUNTER_OVERDUE] - before[layout.COUNTER_OVERDUE]
        words = self._board.words
        base = self._board.at.resolver(kept.slot)
        if replies or lost or overdue:
            kept.loss.count(now, replies, lost + overdue)
            kept.low_loss, _ = kept.loss.interval()
            words[base + layout.RESOLVER_LOSS] = int(kept.loss.ratio * MICRO)
            words[base + layout.RESOLVER_LOSS_ENDED] = int(kept.loss.ended * 1000)
            losing = int(kept.low_loss > EQUAL_LOSS)
            if losing != words[base + layout.RESOLVER_LOSING]:
                words[base + layout.RESOLVER_LOSING] = losing
                self.epoch += 1
        if answered:
            rtt_sum = totals[layout.COUNTER_RTT_SUM] - before[layout.COUNTER_RTT_SUM]
            deviation = totals[layout.COUNTER_DEVIATION_SUM] - before[layout.COUNTER_DEVIATION_SUM]
            kept.round_trip.add(answered, rtt_sum / NS, deviation / NS)
            words[base + layout.RESOLVER_SRTT] = int(kept.round_trip.mean * NS)
            words[base + layout.RESOLVER_RTTVAR] = int(kept.round_trip.deviation * NS)
        self._learn_ceiling(now, kept, totals, before)
        if replies:
            kept.failures = 0
            if kept.state is State.FRESH and not kept.replies:
                self.epoch += 1
            kept.replies += replies
            kept.replied_at = now
            if kept.state is State.DOWN:
                self._move(now, kept, Event.ANSWERED)
        elif lost or errors:
            self._count_failures(now, kept, lost, errors)

    def _count_failures(self, now: float, kept: Kept, lost: int, errors: int) -> None:
        """Set a resolver down after `down_after` failures in a row with no answer between.

        A time-out is known per_attempt after its query was sent: it counts only if nothing was
        answered since then. A network error speaks of the moment.
        """
        if now - kept.replied_at > self._per_attempt_s + TICKS_S:
            kept.failures += lost
        kept.failures += errors
        if kept.failures >= self._settings.down_after:
            self._move(now, kept, Event.FAILED)

    def _learn_ceiling(self, now: float, kept: Kept, totals: list[int], before: list[int]) -> None:
        """Feed the ceiling of a resolver and publish it with the rate that it follows."""
        words = self._board.words
        base = self._board.at.resolver(kept.slot)
        limited = totals[layout.COUNTER_LIMITED] - before[layout.COUNTER_LIMITED]
        had_ceiling = kept.ceiling.qps > 0
        kept.ceiling.observe(
            now,
            sent=totals[layout.COUNTER_SENT] - before[layout.COUNTER_SENT],
            answered=totals[layout.COUNTER_ANSWERED] - before[layout.COUNTER_ANSWERED],
            limited=limited,
            lost=totals[layout.COUNTER_LOST] - before[layout.COUNTER_LOST],
            held=totals[layout.COUNTER_HELD] - before[layout.COUNTER_HELD],
            extra_at=self._extra_at(kept.slot) if limited else 0.0,
            losing=kept.low_loss > EQUAL_LOSS,
        )
        words[base + layout.RESOLVER_CEILING] = int(kept.ceiling.qps * MICRO)
        words[base + layout.RESOLVER_RATE] = int(kept.ceiling.rate(now) * MICRO)
        words[base + layout.RESOLVER_RANDOM_UNTIL] = int(kept.ceiling.random_until * NS)
        if had_ceiling != (kept.ceiling.qps > 0):
            self.epoch += 1

    def _extra_at(self, slot: int) -> float:
        """Return when any worker last sent extra traffic to a resolver."""
        words = self._board.words
        at = self._board.at
        return (
            max(
                words[at.counters(worker, slot) + layout.COUNTER_EXTRA_AT]
                for worker in range(at.workers)
            )
            / NS
        )

    def _judge(self, now: float) -> None:
        """Renew the costs of the shard and find out who is among the equals of the pool."""
        now_ns = int(now * NS)
        words = self._board.words
        at = self._board.at
        for kept in self._kept.values():
            if kept.ceiling.qps:
                self._observe(now, kept, kept.totals)  # time passes for a ceiling too
            base = at.resolver(kept.slot)
            latency = self._latency(kept.slot, now_ns) or words[base + layout.RESOLVER_LATENCY]
            words[base + layout.RESOLVER_LATENCY] = latency
            words[base + layout.RESOLVER_COST] = cost_ns(latency, kept.loss.ratio)
        compared = [
            (cost, words[base + layout.RESOLVER_LOSS] / MICRO)
            for slot in self._slots
            if self._is_proven(slot)
            and (cost := words[(base := at.resolver(slot)) + layout.RESOLVER_COST])
        ]
        most = int(min(compared, default=(0, 0.0))[0] * EQUAL_FACTOR) + EQUAL_MARGIN_NS
        # The lowest loss counts among those that are near enough, or none might be equal at all.
        lowest_loss = min((loss for cost, loss in compared if cost <= most), default=0.0)
        for kept in self._kept.values():
            if kept.state is State.FRESH and kept.replies < FRESH_REPLIES:
                continue
            cost = words[at.resolver(kept.slot) + layout.RESOLVER_COST]
            equal = 0 < cost <= most and kept.low_loss <= lowest_loss + EQUAL_LOSS
            if equal and kept.state is State.ASIDE:
                # Back only when the estimate itself is good, not for lack of samples.
                equal = kept.loss.ratio <= lowest_loss + EQUAL_LOSS
            self._move(now, kept, Event.PROVEN_EQUAL if equal else Event.PROVEN_WORSE)

    def _is_proven(self, slot: int) -> bool:
        """Tell whether a resolver of the pool, whoever keeps it, has shown what it is worth."""
        state = self._board.words[self._board.at.resolver(slot) + layout.RESOLVER_STATE]
        if state == State.FRESH:
            kept = self._kept.get(slot)
            return kept is not None and kept.replies >= FRESH_REPLIES
        return state != State.DOWN

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
        if state in (State.FRESH, State.DOWN):
            kept.failures = 0
        if state is State.FRESH:
            # What it was before it died says nothing of what it is now.
            kept.replies = 0
            kept.loss = LossEstimate(now)
            kept.low_loss = 0.0
            kept.ceiling.restart(now)
        words = self._board.words
        base = self._board.at.resolver(kept.slot)
        buckets.hold_until(
            words, base + layout.RESOLVER_TRIAL_AT, int((now + FIRST_TRIAL_S[state]) * NS)
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
