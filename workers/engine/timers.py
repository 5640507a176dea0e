"""One timing wheel for an engine: what is due, in slots of a few milliseconds.

The wheel is sparse: a slot exists only while it holds something, and a heap knows the next one.
Putting an entry in costs a dictionary look-up and an append, however many entries there are.
Nothing is ever taken out early: whoever is due and finds itself done does nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

SLOTS_PER_SECOND: Final = 250
"""Resolution: 4 ms, fine beside any retransmission time, coarse enough to keep slots few."""

NEVER: Final = float("inf")

Entry = TypeVar("Entry")


class TimingWheel(Generic[Entry]):
    """Entries by the time at which they are due. `next_at` is when `due` has work again."""

    __slots__ = ("_heap", "_slots", "next_at")

    def __init__(self) -> None:
        self._slots: dict[int, list[Entry]] = {}
        self._heap: list[int] = []
        self.next_at: float = NEVER

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._slots.values())

    def __repr__(self) -> str:
        return f"<TimingWheel entries={len(self)} next_at={self.next_at:.3f}>"

    def add(self, at: float, entry: Entry) -> None:
        """Make `entry` due at the monotonic time `at`, or up to one slot later."""
        slot = int(at * SLOTS_PER_SECOND) + 1
        entries = self._slots.get(slot)
        if entries is not None:
            entries.append(entry)
            return
        self._slots[slot] = [entry]
        heappush(self._heap, slot)
        self.next_at = self._heap[0] / SLOTS_PER_SECOND

    def due(self, now: float) -> list[Entry]:
        """Take out and return everything due at `now`, oldest slot first."""
        heap = self._heap
        entries: list[Entry] = []
        while heap and heap[0] / SLOTS_PER_SECOND <= now:
            entries += self._slots.pop(heappop(heap))
        self.next_at = heap[0] / SLOTS_PER_SECOND if heap else NEVER
        return entries
