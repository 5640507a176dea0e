"""A resolver as one worker sees it: its own counters, and what the keeper's verdict says.

The packet path only adds to plain attributes; `publish` copies them to the board on the tick, and
`read_verdict` takes the keeper's words from it. The counters carry on from what a dead predecessor
of this worker left on the board, so they never run backwards.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

from shared import layout
from shared.board import Board
from workers.engine.ceiling import FIRST_ANSWERS
from workers.engine.health import State
from workers.engine.latency import INITIAL_RTO_S, WindowedMinimum, retransmission_s
from workers.settings import ResolverEntry

if TYPE_CHECKING:
    from workers.engine.fitness import Group

NS: Final = 1_000_000_000
MICRO: Final = 1_000_000

LOSS_BURST: Final = 8
"""Losses within one tick that are many."""

EXPECT_S: Final = 0.06
"""By then the keeper, in whatever worker, has published a ceiling, if there is to be one."""

NO_LIMIT: Final = 1 << 16
"""Above every name and every reply."""

ANY_NAME: Final = 253
"""No name is longer (RFC 1035, 2.3.4, without the last dot): who lets this through has no limit."""

ANY_REPLY: Final = 4_096
"""The largest reply that is asked for in a check: who lets this through has no known limit."""


class Resolver:
    """One resolver of one pool in one worker. Times in seconds.

    `heard` says that it has ever replied, as far as this worker knows; one of which nothing was
    heard is a stranger, see `workers.engine.scouting`.
    """

    __slots__ = (
        "_board",
        "_counters",
        "_expecting_until",
        "_published",
        "_verdict",
        "answered",
        "bucket",
        "cost_s",
        "deviation_sum_s",
        "entry",
        "equal",
        "errors",
        "explore_word",
        "extra_at",
        "group",
        "heard",
        "held",
        "interval_ns",
        "is_stream",
        "largest_reply",
        "late",
        "latency_s",
        "limited",
        "longest_name",
        "losing",
        "lost",
        "name",
        "on_trial",
        "overdue",
        "per_attempt_s",
        "random_until",
        "rate_qps",
        "refused",
        "refused_word",
        "rto_s",
        "rtt_min_s",
        "rtt_sum_s",
        "sent",
        "slot",
        "srtt_s",
        "state",
        "transport",
        "trial_word",
        "turn",
        "usable",
        "watched",
        "window",
    )

    def __init__(
        self, entry: ResolverEntry, board: Board, worker: int, per_attempt_s: float
    ) -> None:
        self.set_entry(entry)
        self.name = entry.name
        self.slot = entry.slot
        self.is_stream = entry.scheme != "udp"
        self.transport: Any = None
        self.per_attempt_s = per_attempt_s
        self.state = State.FRESH
        self.usable = True
        self.equal = False
        self.watched = True
        self.interval_ns = 0
        self.rate_qps = 0.0
        self.on_trial = False
        self.losing = False
        self.latency_s = 0.0
        self.cost_s = 0.0
        self.srtt_s = 0.0
        self.rto_s = min(INITIAL_RTO_S, per_attempt_s)
        self.rtt_min_s = inf
        self.window = WindowedMinimum()
        self._board = board
        self._counters = board.at.counters(worker, entry.slot)
        self._verdict = board.at.resolver(entry.slot)
        self.bucket = self._verdict + layout.RESOLVER_BUCKET_AT
        self.trial_word = self._verdict + layout.RESOLVER_TRIAL_AT
        self.explore_word = self._verdict + layout.RESOLVER_EXPLORE_AT
        self.refused_word = self._verdict + layout.RESOLVER_REFUSED_AT
        self.extra_at = 0.0
        self.group: Group
        self.turn = 0
        words = board.words
        left = self._counters
        self.sent = words[left + layout.COUNTER_SENT]
        self.answered = words[left + layout.COUNTER_ANSWERED]
        self.refused = words[left + layout.COUNTER_REFUSED]
        self.lost = words[left + layout.COUNTER_LOST]
        self.errors = words[left + layout.COUNTER_ERRORS]
        self.late = words[left + layout.COUNTER_LATE]
        self.limited = words[left + layout.COUNTER_LIMITED]
        self.held = words[left + layout.COUNTER_HELD]
        self.overdue = words[left + layout.COUNTER_OVERDUE]
        self.rtt_sum_s = words[left + layout.COUNTER_RTT_SUM] / NS
        self.deviation_sum_s = words[left + layout.COUNTER_DEVIATION_SUM] / NS
        self.heard = self.answered > 0 or self.refused > 0
        self._published = self._activity()
        self._expecting_until = 0.0
        self.random_until = 0.0
        self.read_verdict(0.0)

    def __repr__(self) -> str:
        return f"<Resolver {self.name} {self.state.name} sent={self.sent} answered={self.answered}>"

    def set_entry(self, entry: ResolverEntry) -> None:
        """Take over the entry of the roster, and the limits that stand in it."""
        self.entry = entry
        self.longest_name = entry.longest_name if 0 < entry.longest_name < ANY_NAME else NO_LIMIT
        self.largest_reply = (
            entry.largest_reply if 0 < entry.largest_reply < ANY_REPLY else NO_LIMIT
        )

    @property
    def answers(self) -> bool:
        """Tell whether it has ever answered a live query, as far as this worker knows."""
        return self.answered > 0 or self.srtt_s > 0.0

    def _activity(self) -> int:
        return (
            (self.sent + self.answered + self.refused + self.lost + self.errors + self.late)
            + self.limited
            + self.held
            + (self.overdue << 40)
        )

    def publish(self, now: float) -> bool:
        """Copy the counters to the board if they moved; tell whether they did."""
        activity = self._activity()
        if activity == self._published:
            return False
        self._published = activity
        words = self._board.words
        base = self._counters
        if self.rtt_min_s < inf:
            window = self.window
            window.add(now, self.rtt_min_s)
            self.rtt_min_s = inf
            words[base + layout.COUNTER_RTT_MIN] = int(window.get(now) * NS)
            words[base + layout.COUNTER_RTT_MIN_UNTIL] = int(window.until * NS)
        words[base + layout.COUNTER_RTT_SUM] = int(self.rtt_sum_s * NS)
        words[base + layout.COUNTER_DEVIATION_SUM] = int(self.deviation_sum_s * NS)
        words[base + layout.COUNTER_SENT] = self.sent
        words[base + layout.COUNTER_ANSWERED] = self.answered
        words[base + layout.COUNTER_REFUSED] = self.refused
        words[base + layout.COUNTER_LOST] = self.lost
        words[base + layout.COUNTER_ERRORS] = self.errors
        words[base + layout.COUNTER_LATE] = self.late
        words[base + layout.COUNTER_LIMITED] = self.limited
        words[base + layout.COUNTER_HELD] = self.held
        words[base + layout.COUNTER_OVERDUE] = self.overdue
        words[base + layout.COUNTER_EXTRA_AT] = int(self.extra_at * NS)
        return True

    def read_verdict(self, now: float) -> None:
        """Take over what the keeper wrote on the board."""
        words = self._board.words
        base = self._verdict
        self.state = State(words[base + layout.RESOLVER_STATE])
        self.losing = words[base + layout.RESOLVER_LOSING] != 0
        self.latency_s = words[base + layout.RESOLVER_LATENCY] / NS
        self.cost_s = words[base + layout.RESOLVER_COST] / NS
        self.read_figures(now)
        if self.state in (State.IN_USE, State.ASIDE) or self.srtt_s:
            self.heard = True
        elif self.state is State.DOWN:
            self.heard = self.answered > 0  # what a plain question alone brought is of no use

    def read_figures(self, now: float) -> None:
        """Take over the figures that move with every batch of answers: round trip and rates."""
        words = self._board.words
        base = self._verdict
        ceiling = words[base + layout.RESOLVER_CEILING]
        if ceiling or now >= self._expecting_until:
            self.interval_ns = MICRO * NS // ceiling if ceiling else 0
        self.rate_qps = words[base + layout.RESOLVER_RATE] / MICRO
        self.random_until = words[base + layout.RESOLVER_RANDOM_UNTIL] / NS
        self.srtt_s = words[base + layout.RESOLVER_SRTT] / NS
        self.rto_s = retransmission_s(
            self.srtt_s,
            words[base + layout.RESOLVER_RTTVAR] / NS,
            self.per_attempt_s,
            losing=self.losing,
        )

    def refuses_of_itself(self, now: float) -> bool:
        """Tell whether it is known to refuse, at a limit or by chance, what others answer."""
        has_ceiling = self._board.words[self._verdict + layout.RESOLVER_CEILING] > 0
        return has_ceiling or now < self.random_until

    @property
    def loses_in_a_burst(self) -> bool:
        """Tell whether since the last tick many attempts were lost, and more than answered."""
        words = self._board.words
        base = self._counters
        lost = self.lost - words[base + layout.COUNTER_LOST]
        return lost >= LOSS_BURST and lost > self.answered - words[base + layout.COUNTER_ANSWERED]

    def expect_ceiling(self, now: float, factor: float) -> None:
        """Hold a resolver without a ceiling to what it answered lately, until the keeper speaks."""
        if not self.interval_ns and now >= self.random_until:
            self.interval_ns = int(NS / (factor * max(self.rate_qps, float(FIRST_ANSWERS))))
            self._expecting_until = now + EXPECT_S
