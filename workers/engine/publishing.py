"""What a worker puts on the board on its tick: counters of resolvers and of the pool.

Resolvers that have something to tell (a refusal, a loss, a ceiling to be followed, a state other
than in use) are published at once. The others take turns, a few a tick, so that a tick costs the
same with ten resolvers and with a thousand. Every publication is announced in the worker's ring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from shared import rings
from shared.board import Board
from workers.engine.resolver import Resolver

PER_TICK: Final = 8
"""Resolvers with nothing urgent to tell that are published in one tick."""


class Publisher:
    """Publishes for one pool in one worker. `urgent` are the next tick's resolvers by slot."""

    __slots__ = ("_board", "_pool_block", "_pool_counters", "_ring", "_turn", "urgent")

    def __init__(self, board: Board, worker: int, pool: int) -> None:
        self._board = board
        self._ring = board.at.ring(worker)
        self._pool_block = board.at.pool(worker, pool)
        self._pool_counters: list[int] = []
        self._turn: deque[Resolver] = deque()
        self.urgent: dict[int, Resolver] = {}

    def set_resolvers(self, resolvers: Iterable[Resolver]) -> None:
        """Learn the roster."""
        self._turn = deque(resolvers)
        self.urgent = {resolver.slot: resolver for resolver in self._turn}

    def publish(self, now: float) -> None:
        """Publish the urgent resolvers and a few of the others, and read what the keepers say."""
        words = self._board.words
        urgent = self.urgent
        self.urgent = {}
        for resolver in urgent.values():
            if resolver.publish(now):
                rings.push(words, self._ring, resolver.slot)
            resolver.read_figures(now)
            if resolver.interval_ns:
                self.urgent[resolver.slot] = resolver  # a ceiling is followed closely
        turn = self._turn
        for _ in range(min(PER_TICK, len(turn))):
            resolver = turn[0]
            turn.rotate(-1)
            if resolver.publish(now):
                rings.push(words, self._ring, resolver.slot)
                resolver.read_figures(now)

    def publish_pool(self, counters: list[int]) -> None:
        """Publish the counters of the pool, in the order of the POOL_ words."""
        if counters != self._pool_counters:
            self._pool_counters = counters
            words = self._board.words
            for offset, value in enumerate(counters):
                words[self._pool_block + offset] = value
