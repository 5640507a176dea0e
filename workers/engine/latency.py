"""How long a resolver takes: its fastest answer lately, and its retransmission time.

Two figures with two uses. Selection compares the *fastest* answer of the last ten seconds, since
a tunnel's server holds poll questions for a second and more and a held poll says nothing about the
resolver. Retransmission needs the ordinary spread, as TCP's does.
"""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 10.0
"""The fastest answer counts for this long."""

BUCKETS: Final = 10
"""The window is kept in this many parts; it forgets one part at a time."""

INITIAL_RTO_S: Final = 1.0
"""Retransmission time before anything is known (RFC 6298, 2.1)."""

MIN_RTO_S: Final = 0.02
"""Never sooner: below this a busy machine's own scheduling looks like a late answer."""

GAIN_MEAN: Final = 1 / 8
GAIN_DEVIATION: Final = 1 / 4
"""Weights of a new sample in the mean and the mean deviation (RFC 6298, 2.3)."""


class WindowedMinimum:
    """The smallest value of the last `WINDOW_S` seconds, to the tenth of the window."""

    __slots__ = ("_bucket", "_least", "_values", "until")

    def __init__(self) -> None:
        self._values: list[float] = [0.0] * BUCKETS
        self._bucket = 0
        self._least = 0.0
        self.until = 0.0

    def add(self, now: float, value: float) -> None:
        """Take in a value seen at `now`."""
        self._advance(now)
        part = self._bucket % BUCKETS
        held = self._values[part]
        if not held or value < held:
            self._values[part] = value
            if not self._least or value < self._least:
                self._least = value
        self.until = now + WINDOW_S

    def get(self, now: float) -> float:
        """Return the minimum, or 0 when the window is empty."""
        self._advance(now)
        return self._least

    def _advance(self, now: float) -> None:
        bucket = int(now * BUCKETS / WINDOW_S)
        gone = min(bucket - self._bucket, BUCKETS)
        for step in range(1, gone + 1):
            self._values[(bucket - gone + step) % BUCKETS] = 0.0
        if gone > 0:
            self._bucket = bucket
            self._least = min((value for value in self._values if value), default=0.0)


class RoundTrip:
    """Smoothed round trip and mean deviation in seconds, fed with batches (RFC 6298)."""

    __slots__ = ("deviation", "mean")

    def __init__(self, mean: float = 0.0, deviation: float = 0.0) -> None:
        self.mean = mean
        self.deviation = deviation

    def __repr__(self) -> str:
        return f"<RoundTrip mean={self.mean:.4f} deviation={self.deviation:.4f}>"

    def add(self, samples: int, total: float, deviation_total: float) -> None:
        """Take in `samples` answers: the sum of their round trips and of their deviations.

        The weight of a batch is what its samples would have had one by one.
        """
        average = total / samples
        if not self.mean:
            self.mean = average
            self.deviation = average / 2
            return
        gain = 1 - (1 - GAIN_DEVIATION) ** samples
        self.deviation += gain * (deviation_total / samples - self.deviation)
        gain = 1 - (1 - GAIN_MEAN) ** samples
        self.mean += gain * (average - self.mean)


DEVIATIONS: Final = 4
"""An attempt is late after the mean and this many deviations (RFC 6298, 2.3)."""

DEVIATIONS_LOSING: Final = 1
"""... on a resolver that is losing: what is unanswered there goes to a second one earlier."""


def retransmission_s(
    mean: float, deviation: float, per_attempt_s: float, *, losing: bool = False
) -> float:
    """Return after how long an attempt is late, within bounds. `mean` is 0 while unknown."""
    if not mean:
        return min(INITIAL_RTO_S, per_attempt_s)
    late_s = mean + (DEVIATIONS_LOSING if losing else DEVIATIONS) * deviation
    return min(max(late_s, MIN_RTO_S), per_attempt_s)
