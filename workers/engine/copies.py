"""Copies: sendings made on purpose although nothing is wrong.

A tunnel's server answers every question it gets with the next packet of its queue, so a copy
brings more data, until the server has nothing left to send or the client is busy with itself: then
copies come back empty. As many go out as pay. What is empty is judged by the answers
themselves: a tunnel's empty answers are its smallest.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from workers.engine.pending import Query
from workers.engine.timers import NEVER

JUDGED: Final = 16
"""Copies that came back, after which their number is thought over."""

MORE_SHARE: Final = 0.7
"""With at least this share of them full, more are sent."""

FEWER_SHARE: Final = 0.6
"""With no more than this share full, fewer."""

STEP: Final = 0.25
"""How much is added to the copies per query."""

LEAST: Final = 0.05
"""Fewer copies per query than this are none."""

TRY_S: Final = 2.0
"""At none, a few are tried this often."""

TRY_COPIES: Final = 4
"""How many."""

DELAY_SHARE: Final = 0.25
"""A copy leaves this share of a round trip after the first sending: acknowledgements of answers
that arrive apart are questions apart, and keep more in flight."""

SIZE_MEMORY_S: Final = 60.0
"""How long the smallest and the largest answers are remembered, in two halves."""

EMPTY_SHARE: Final = 0.25
"""An answer is empty up to this share of the way from the smallest to the largest."""

UNIFORM_BYTES: Final = 16
"""Answers whose sizes differ by less tell nothing; they count as full."""


class AnswerSizes:
    """The range of recent answer sizes, and which of them are empty."""

    __slots__ = ("_high", "_high_before", "_low", "_low_before", "_turn_at", "empty_bytes")

    def __init__(self) -> None:
        self._turn_at = 0.0
        self._low = self._low_before = 1 << 30
        self._high = self._high_before = 0
        self.empty_bytes = -1

    def add(self, now: float, size_bytes: int) -> None:
        """Take in the size of an answer, without its header and question."""
        if now >= self._turn_at:
            self._turn_at = now + SIZE_MEMORY_S / 2
            self._low_before, self._high_before = self._low, self._high
            self._low, self._high = 1 << 30, 0
        elif self._low <= size_bytes <= self._high:
            return
        self._low = min(self._low, size_bytes)
        self._high = max(self._high, size_bytes)
        low = min(self._low, self._low_before)
        high = max(self._high, self._high_before)
        uniform = high - low < UNIFORM_BYTES
        self.empty_bytes = -1 if uniform else low + int((high - low) * EMPTY_SHARE)


class Copies:
    """How many copies a query gets, and those that wait for their moment."""

    __slots__ = (
        "_due",
        "_full",
        "_most",
        "_owed",
        "_returned",
        "_sizes",
        "_tries",
        "_try_at",
        "next_at",
        "per_query",
    )

    def __init__(self, duplicate: int) -> None:
        self._most = float(duplicate - 1)
        self._sizes = AnswerSizes()
        self._due: deque[tuple[float, Query]] = deque()
        self._owed = 0.0
        self._full = 0
        self._returned = 0
        self._tries = 0
        self._try_at = 0.0
        self.next_at = NEVER
        self.per_query = self._most

    def __repr__(self) -> str:
        return f"<Copies {self.per_query:.2f} a query, {len(self._due)} due>"

    def wanted(self, now: float) -> int:
        """Return how many copies the next query gets."""
        if not self.per_query:
            if now >= self._try_at:
                self._try_at = now + TRY_S
                self._tries = TRY_COPIES
            if not self._tries:
                return 0
            self._tries -= 1
            return 1
        self._owed += self.per_query
        whole = int(self._owed)
        self._owed -= whole
        return whole

    def schedule(self, at: float, query: Query) -> None:
        """Have a copy of `query` sent at `at`."""
        self._due.append((at, query))
        if at < self.next_at:
            self.next_at = at

    def due(self, now: float) -> list[Query]:
        """Take out the queries whose copies are due. They come about in order of their time."""
        due: list[Query] = []
        waiting = self._due
        while waiting and waiting[0][0] <= now:
            due.append(waiting.popleft()[1])
        self.next_at = waiting[0][0] if waiting else NEVER
        return due

    def size(self, now: float, size_bytes: int) -> None:
        """Take in the size of an answer, whatever attempt it came to."""
        self._sizes.add(now, size_bytes)

    def returned(self, now: float, size_bytes: int) -> None:
        """A copy came back: think over how many more to send."""
        self._returned += 1
        self._full += size_bytes > self._sizes.empty_bytes
        if not self.per_query:
            if self._returned >= TRY_COPIES:
                if self._full > self._returned * MORE_SHARE:
                    self.per_query = min(STEP, self._most)
                self._returned = self._full = 0
            return
        if self._returned < JUDGED:
            return
        share = self._full / self._returned
        self._returned = self._full = 0
        if share >= MORE_SHARE:
            self.per_query = min(self.per_query + STEP, self._most)
        elif share <= FEWER_SHARE:
            self.per_query /= 2
            if self.per_query < LEAST:
                self.per_query = 0.0
                self._try_at = now + TRY_S
                self._tries = 0
