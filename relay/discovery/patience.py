"""How long a check waits for an answer. Pure.

Used by: the finder. In the long lists most addresses are dead, and a check of one lasts as long as
it waits: haste finds those that work sooner. It costs nothing where others are known to be quicker:
the pool sets aside whoever is much slower. So the long lists are given a few times what good
resolvers took so far; before there are any, little for a while, and all the time after that, for
the whole network may be slow.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from relay.discovery.verdict import AT_TUNNEL, Verdict

STEPS_S: Final = (0.3, 0.6, 1.2, 2.0)
"""Waits that are given; few, because each has a checker of its own."""

TIMES: Final = 4.0
"""So many times what others take is too slow: it covers a question that was lost, too."""

HASTY_FIRST: Final = 600
"""Candidates asked in haste before anybody has answered well: three seconds of the usual pace."""

_REMEMBERED: Final = 20


class Patience:
    """Learns from verdicts how long the next check should wait."""

    longest_s: Final = STEPS_S[-1]

    def __init__(self) -> None:
        self._latencies_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._in_vain = 0

    def take(self, verdict: Verdict) -> None:
        """Learn from a verdict. Liars do not count: forged answers come quicker than any other."""
        well = verdict.passed or verdict.stage in AT_TUNNEL
        if well and verdict.latency_s and verdict.honest is not False:
            self._latencies_s.append(verdict.latency_s)
        elif not verdict.local_fault:
            self._in_vain += 1

    def wait_s(self, *, hasty: bool) -> float:
        """Return how long to wait for an answer, one of STEPS_S."""
        if not hasty:
            return self.longest_s
        if self._latencies_s:
            wanted_s = TIMES * median(self._latencies_s)
        elif self._in_vain < HASTY_FIRST:
            wanted_s = 0.0
        else:
            return self.longest_s
        return next((step for step in STEPS_S if step >= wanted_s), self.longest_s)
