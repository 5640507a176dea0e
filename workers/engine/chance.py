"""Telling refusals by chance from those of a limit.

Owner: the ceiling of a resolver. A resolver may refuse a share of what it is asked, whatever the
rate: it is short of something else, or its path to the server is. A ceiling that followed each of
these refusals down would strangle it.

The share alone tells nothing, nor does how it moves while the ceiling comes down: bursts, whole
seconds and limits that move bring limiters to every share. So where it is suspicious, a test moves
the rate. First the ceiling goes up for a moment: a limiter refuses all that is more, and shows
within a third of a second. Where it does not, the ceiling goes well down: a limiter now refuses
next to nothing, chance the same share.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

PERIOD_S: Final = 3.0
PERIOD_REPLIES: Final = 16
"""The share that is refused is taken over so long and so many replies at least. Limits are counted
by the second: over a part of one the share says more about the clock than about the limit."""

PERIOD_MOST_S: Final = 60.0
"""What takes longer had no one rate, and says nothing."""

CHANCE_LEAST: Final = 0.2
"""A limiter that is kept at its ceiling, 1.2 times its limit, refuses 0.17, a little more while the
ceiling grows. As much by chance does no harm, since the ceiling stays above what is sent."""

CHANCE_MOST: Final = 0.7
"""A resolver that refuses more than this is not left without a ceiling."""

SETTLED_SHARE: Final = 0.35
"""A ceiling that has come to less than this share of what was sent in the period is still on its
way down to a limit: there is nothing to suspect yet."""

HIGH_FACTOR: Final = 3.0
"""A test first puts the ceiling at this multiple of what was sent. A limiter refuses all that is
more, so only chance, or too little traffic, leaves the share as it was."""

HIGH_LEAST_QPS: Final = 10.0
"""... but at no less than this: a resolver that was strangled would take long to tell anything."""

HIGH_S: Final = 1.0
HIGH_LEAST_S: Final = 0.3
HIGH_REPLIES: Final = 20
"""This part of the test takes so long; it ends after the second time, and with the test, when a
limit shows in so many replies."""

HIGH_SHARE: Final = 0.5
"""A limit shows when less than this share is left of the share that was answered; at three times
the rate it would be a third."""

LOW_FACTOR: Final = 0.5
"""Then the ceiling is put at this multiple of the rate that was answered, where a limiter refuses
next to nothing."""

LOW_SETTLE_S: Final = 1.0
"""What is refused in the beginning may have been sent before, or in a second that the limiter had
already counted full: it is no sign of chance."""

LOW_S: Final = 2.0
"""Refusals must go on for this long to be chance."""

LOW_REFUSALS: Final = 6
LOW_SHARE: Final = 0.33
"""When so many refusals were to be expected of chance, less than this share of them is a limit."""

TEST_PAUSE_S: Final = 5.0
TEST_PAUSE_MOST_S: Final = 320.0
"""Time from a test that found a limit to the next; twice as long after every one, up to the second
figure."""

AFTER_OUTAGE_S: Final = 10.0
"""No test begins so soon after an outage: a limiter that was not asked for a while has room to give
away."""

CHANCE_S: Final = 60.0
"""Refusals found to be chance do not lower the ceiling for this long after they were last seen."""

MORE_FACTOR: Final = 1.5
MORE_MARGIN: Final = 0.05
MORE_DEVIATIONS: Final = 4.0
"""... unless their share comes to more than this multiple of it, or exceeds it by so many standard
deviations where that is more, and so much beside."""

MORE_S: Final = 1.0
"""That shows over so long: limits are counted by the second, and who refuses everything for so long
is out of service. Without a ceiling what is refused is asked again at once, so until it is seen a
new limit is asked many times what it allows."""


class Chance:
    """What is known of the refusals of one resolver.

    `until` is when they cease to be taken for chance; `ceiling_qps` is the ceiling to go back to
    while a test has it, else 0.
    """

    __slots__ = (
        "_answered",
        "_at",
        "_is_low",
        "_limited",
        "_pause_s",
        "_settled",
        "_share",
        "_share_replies",
        "_test_at",
        "ceiling_qps",
        "until",
    )

    def __init__(self, now: float) -> None:
        self.until = 0.0
        self._share = 0.0
        self._share_replies = 0
        self.ceiling_qps = 0.0
        self._is_low = False
        self._settled = False
        self._test_at = now
        self._pause_s = TEST_PAUSE_S
        self.begin(now)

    def __repr__(self) -> str:
        return f"<Chance {self._share:.2f} until {self.until:.0f} testing={self.is_testing}>"

    @property
    def is_testing(self) -> bool:
        """Whether the ceiling is what a test wants it to be."""
        return self.ceiling_qps > 0.0

    def begin(self, now: float) -> None:
        """Begin to count anew."""
        self._at = now
        self._answered = 0
        self._limited = 0

    def outage(self, now: float) -> None:
        """Note a refusal of an outage: what was found out holds on, and the next test waits."""
        if now < self.until:
            self.until = now + CHANCE_S
        self._test_at = max(self._test_at, now + AFTER_OUTAGE_S)
        self.begin(now)

    def count(self, now: float, answered: int, limited: int, qps: float) -> float:
        """Take in replies; return what the ceiling, now `qps`, is to be."""
        self._answered += answered
        self._limited += limited
        replies = self._answered + self._limited
        length_s = now - self._at
        if self.is_testing:
            if length_s > PERIOD_MOST_S:
                return self._found_limit(now)
            if self._is_low:
                return self._low(now, replies, length_s, qps)
            return self._high(now, replies, length_s, qps)
        if not answered or replies < PERIOD_REPLIES:
            return qps
        if now < self.until and length_s >= MORE_S and self._is_more(replies):
            self.until = 0.0
            self.begin(now)
        elif length_s >= PERIOD_S:
            qps = self._judge(now, replies, length_s, qps)
            self.begin(now)
        return qps

    def _judge(self, now: float, replies: int, length_s: float, qps: float) -> float:
        """Look at a period: keep or give up what was found out before, or begin a test."""
        share = self._limited / replies
        if now < self.until:
            if share > self._share / 2:
                self.until = now + CHANCE_S
            return qps
        rate = replies / length_s
        is_suspect = CHANCE_LEAST < share <= CHANCE_MOST and qps >= SETTLED_SHARE * rate
        if not qps or not is_suspect or now < self._test_at or length_s > PERIOD_MOST_S:
            return qps
        self._share = share
        self._share_replies = replies
        self.ceiling_qps = qps
        self._is_low = False
        return max(rate * HIGH_FACTOR, HIGH_LEAST_QPS)

    def _high(self, now: float, replies: int, length_s: float, qps: float) -> float:
        if length_s < HIGH_LEAST_S or replies < HIGH_REPLIES:
            return qps
        if self._answered < replies * (1.0 - self._share) * HIGH_SHARE:
            return self._found_limit(now)
        if length_s < HIGH_S:
            return qps
        rate = self._answered / length_s
        watched = self._share_replies + replies
        self._share += (self._limited / replies - self._share) * replies / watched
        self._is_low = True
        self._settled = False
        self.begin(now)
        return rate * LOW_FACTOR

    def _low(self, now: float, replies: int, length_s: float, qps: float) -> float:
        expected = replies * self._share
        is_clear = expected >= LOW_REFUSALS
        if is_clear and self._limited < expected * LOW_SHARE:
            return self._found_limit(now)
        if not self._settled:
            if length_s >= LOW_SETTLE_S:
                self._settled = True
                self.begin(now)
            return qps
        if not is_clear or length_s < LOW_S:
            return qps
        if self._is_more(replies):
            return self._found_limit(now)
        self.until = now + CHANCE_S
        self._pause_s = TEST_PAUSE_S
        self.ceiling_qps = 0.0
        self.begin(now)
        return 0.0

    def _found_limit(self, now: float) -> float:
        before = self.ceiling_qps
        self._test_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, TEST_PAUSE_MOST_S)
        self.ceiling_qps = 0.0
        self.begin(now)
        return before

    def _is_more(self, replies: int) -> bool:
        """Tell whether clearly more is refused than chance did."""
        usual = self._share
        noise = MORE_DEVIATIONS * sqrt(usual * (1.0 - usual) / replies)
        more = usual + max(usual * (MORE_FACTOR - 1.0), noise) + MORE_MARGIN
        return self._limited > replies * more
