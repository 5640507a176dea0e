"""Whose fault a failed check is: the resolver's, this network's, or that of the tunnel's server.

Owner: the finder. Only the resolver's lowers its score. A network with a portal in it lies and
refuses for everybody, and a tunnel's server that is down is reached through nobody: where nobody is
honest, or nobody passes, that says nothing of the single one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from relay.discovery.verdict import AT_TUNNEL, Verdict
from relay.scores import PoolScores

REACHED_S: Final = 60.0
"""How long after somebody passed a failure at the tunnel is still blamed on the resolver."""

HONEST_S: Final = 60.0
"""How long after somebody was honest others are blamed for what they answer, or do not."""


class Blame:
    """Scores the checks of one pool. To be told of every verdict before it is scored."""

    def __init__(self, scores: PoolScores, now: Callable[[], float]) -> None:
        self._scores = scores
        self._now = now
        self._reached_at = -math.inf
        """When somebody passed all checks last."""
        self._honest_at = -math.inf
        """When somebody was found to be honest last."""

    def hear(self, verdict: Verdict) -> None:
        """Take note of what one check says of the network and of the tunnel's server."""
        if verdict.passed:
            self._reached_at = self._now()
        if verdict.honest:
            self._honest_at = self._now()

    def hear_members(self, verdicts: Sequence[Verdict]) -> None:
        """Take note of what checks say, made together, of those that were let in."""
        for verdict in verdicts:
            self.hear(verdict)
        if not any(each.honest for each in verdicts) and any(
            each.honest is False for each in verdicts
        ):
            # They were honest when they were let in: now it may be the network that lies.
            self._honest_at = -math.inf

    def score(self, verdict: Verdict) -> None:
        """Change the score of who was checked, unless it may be nobody's fault."""
        now = self._now()
        is_blamed = now - self._honest_at <= HONEST_S
        if verdict.stage in AT_TUNNEL:
            is_blamed = now - self._reached_at <= REACHED_S
        if verdict.passed or is_blamed:
            self._scores.checked(verdict)
