"""Rings of slot numbers: how a worker tells the keepers which counters moved.

One writer, any number of readers that each remember how far they have read. Nothing waits: a
reader that was too slow is told so, and looks at everything it keeps.
"""

from __future__ import annotations

from shared.layout import RING_FIRST, RING_HEAD, RING_SLOTS


def push(words: memoryview[int], ring: int, slot: int) -> None:
    """Append a slot to the ring at position `ring`. Its owner only."""
    head = words[ring + RING_HEAD]
    words[ring + RING_FIRST + head % RING_SLOTS] = slot
    words[ring + RING_HEAD] = head + 1


def read(words: memoryview[int], ring: int, seen: int) -> tuple[int, list[int] | None]:
    """Return how far the ring goes and the slots beyond `seen`.

    The slots are None when more than half a ring has come since: the writer may be overtaking.
    """
    head = words[ring + RING_HEAD]
    if not 0 <= head - seen <= RING_SLOTS // 2:
        return head, None
    return head, [words[ring + RING_FIRST + number % RING_SLOTS] for number in range(seen, head)]
