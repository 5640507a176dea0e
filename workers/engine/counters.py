"""What a pool has counted in one worker, carried on from a predecessor that died."""

from __future__ import annotations

from typing import Final

from shared import layout
from shared.board import Board

DROPS: Final = {reason: position for position, reason in enumerate(layout.DROP_REASONS)}


class PoolCounters:
    """Plain numbers that the packet path adds to. `pending` are the queries that are open now."""

    __slots__ = (
        "answered",
        "answers",
        "copies",
        "dropped",
        "failures",
        "hedges",
        "pending",
        "queries",
        "retries",
    )

    def __init__(self, board: Board, worker: int, pool: int) -> None:
        words = board.words
        left = board.at.pool(worker, pool)
        self.pending = 0
        self.queries = words[left + layout.POOL_QUERIES]
        self.answers = words[left + layout.POOL_ANSWERS]
        self.answered = words[left + layout.POOL_ANSWERED]
        self.failures = words[left + layout.POOL_FAILURES]
        self.retries = words[left + layout.POOL_RETRIES]
        self.hedges = words[left + layout.POOL_HEDGES]
        self.copies = words[left + layout.POOL_COPIES]
        first = left + layout.POOL_DROPPED
        self.dropped = [words[first + reason] for reason in range(len(layout.DROP_REASONS))]

    def drop(self, reason: str) -> None:
        """Count a message that was dropped; `reason` is one of `layout.DROP_REASONS`."""
        self.dropped[DROPS[reason]] += 1

    def words(self) -> list[int]:
        """Return the counters in the order of the POOL_ words of the board."""
        return [
            self.queries,
            self.answers,
            self.answered,
            self.failures,
            self.retries,
            self.hedges,
            self.copies,
            0,  # a word that nothing stands in
            *self.dropped,
        ]
