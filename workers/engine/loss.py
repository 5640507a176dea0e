"""How much a resolver loses, with its uncertainty.

Owner: the keeper of the resolver. Attempts are counted as they end: answered (or refused, which is
a reply too) or lost. Old counts fade with a half-life, so the estimate follows the network.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Final

HALF_LIFE_S: Final = 10.0
"""After this long a counted attempt weighs half."""

Z: Final = 1.96
"""Standard score of the interval: 95 % two-sided."""


class LossEstimate:
    """Faded counts of ended and of lost attempts, and what they say."""

    __slots__ = ("_at", "ended", "lost")

    def __init__(self, now: float, ended: float = 0.0, lost: float = 0.0) -> None:
        self.ended = ended
        self.lost = lost
        self._at = now

    def __repr__(self) -> str:
        low, high = self.interval()
        return f"<LossEstimate {self.lost:.1f}/{self.ended:.1f} [{low:.3f}, {high:.3f}]>"

    def count(self, now: float, answered: int, lost: int) -> None:
        """Add attempts that ended since the last call; fewer than none where some were no loss."""
        fade = exp(-(now - self._at) * log(2) / HALF_LIFE_S)
        self._at = now
        self.ended = max(self.ended * fade + answered + lost, 0.0)
        self.lost = max(self.lost * fade + lost, 0.0)

    @property
    def ratio(self) -> float:
        """The share of attempts that were lost, 0 while nothing ended."""
        return self.lost / self.ended if self.ended else 0.0

    def interval(self) -> tuple[float, float]:
        """Return the bounds between which the true share lies, by Wilson's score interval.

        E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
        1927; it holds up for few samples and for shares near 0, where a plain +-z*sigma does not.
        """
        n = self.ended
        if n <= 0.0:
            return 0.0, 1.0
        p = min(self.lost / n, 1.0)
        centre = p + Z * Z / (2 * n)
        spread = Z * sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
        scale = 1 + Z * Z / n
        return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
