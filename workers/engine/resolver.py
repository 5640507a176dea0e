"""A resolver as one worker sees it: its own counters, and what the keeper's verdict says.

The packet path only adds to plain attributes; `publish` copies them to the board on the tick, and
`read_verdict` takes the keeper's words from it. The counters carry on from what a dead predecessor
of this worker left on the board, so they never run backwards.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from shared import layout
from shared.board import Board
from workers.engine.health import State
from workers.engine.latency import INITIAL_RTO_S, WindowedMinimum, retransmission_s
from workers.settings import ResolverEntry

NS: Final = 1_000_000_000


class Resolver:
    """One resolver of one pool in one worker. Times in seconds."""

    __slots__ = (
        "_board",
        "_counters",
        "_published",
        "_verdict",
        "answered",
        "bucket",
        "cost_s",
        "deviation_sum_s",
        "entry",
        "errors",
        "idle",
        "is_stream",
        "late",
        "latency_s",
        "losing",
        "lost",
        "name",
        "on_trial",
        "per_attempt_s",
        "refused",
        "rto_s",
        "rtt_min_s",
        "rtt_sum_s",
        "sent",
        "slot",
        "srtt_s",
        "state",
        "transport",
        "usable",
        "window",
    )

    def __init__(
        self, entry: ResolverEntry, board: Board, worker: int, per_attempt_s: float
    ) -> None:
        self.entry = entry
        self.name = entry.name
        self.slot = entry.slot
        self.is_stream = entry.scheme != "udp"
        self.transport: Any = None
        self.per_attempt_s = per_attempt_s
        self.state = State.FRESH
        self.usable = True
        self.idle = True
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
        words = board.words
        left = self._counters
        self.sent = words[left + layout.COUNTER_SENT]
        self.answered = words[left + layout.COUNTER_ANSWERED]
        self.refused = words[left + layout.COUNTER_REFUSED]
        self.lost = words[left + layout.COUNTER_LOST]
        self.errors = words[left + layout.COUNTER_ERRORS]
        self.late = words[left + layout.COUNTER_LATE]
        self.rtt_sum_s = words[left + layout.COUNTER_RTT_SUM] / NS
        self.deviation_sum_s = words[left + layout.COUNTER_DEVIATION_SUM] / NS
        self._published = self._activity()
        self.read_verdict()

    def __repr__(self) -> str:
        return f"<Resolver {self.name} {self.state.name} sent={self.sent} answered={self.answered}>"

    def _activity(self) -> int:
        return self.sent + self.answered + self.refused + self.lost + self.errors + self.late

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
        return True

    def read_verdict(self) -> None:
        """Take over what the keeper wrote on the board."""
        words = self._board.words
        base = self._verdict
        self.state = State(words[base + layout.RESOLVER_STATE])
        self.losing = words[base + layout.RESOLVER_LOSING] != 0
        self.latency_s = words[base + layout.RESOLVER_LATENCY] / NS
        self.cost_s = words[base + layout.RESOLVER_COST] / NS
        self.read_round_trip()

    def read_round_trip(self) -> None:
        """Take over the round trip alone: it moves with every batch of answers."""
        words = self._board.words
        base = self._verdict
        self.srtt_s = words[base + layout.RESOLVER_SRTT] / NS
        self.rto_s = retransmission_s(
            self.srtt_s, words[base + layout.RESOLVER_RTTVAR] / NS, self.per_attempt_s
        )
