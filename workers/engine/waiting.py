"""Queries that wait for room.

A query that finds every resolver at its ceiling, or was refused by all, waits for a token in order
of arrival, and only then fails: a token comes within hundredths of a second, while a query sent
above the ceiling is refused a round trip later and waits all the same. While queries wait, a
resolver may get one above its ceiling now and then, to find room that the ceiling does not know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from workers.engine.pending import FIRST, RETRY, Query
from workers.engine.resolver import Resolver
from workers.engine.selection import Selection
from workers.engine.timers import NEVER


class WaitingRoom:
    """The queue of a pool in one worker. `wait_s` is how long a query may wait; 0 for not at all.

    `send(now, query, resolver, kind)` opens an attempt, `fail(query)` ends a query.
    """

    __slots__ = ("_fail", "_queue", "_selection", "_send", "_wait_s")

    def __init__(
        self,
        selection: Selection,
        wait_s: float,
        send: Callable[[float, Query, Resolver, int], None],
        fail: Callable[[Query], None],
    ) -> None:
        self._selection = selection
        self._wait_s = wait_s
        self._send = send
        self._fail = fail
        self._queue: deque[tuple[float, Query]] = deque()

    def __repr__(self) -> str:
        return f"<WaitingRoom {len(self._queue)} waiting>"

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def next_at(self) -> float:
        """When `serve` may have work again."""
        if not self._queue:
            return NEVER
        return min(self._queue[0][0], self._selection.room_at)

    def admit(self, now: float, query: Query, *, refused: bool, first: bool = False) -> bool:
        """Let a query wait, if somebody is at a ceiling or has just refused it; tell whether.

        `first` is for one that was sent before those that wait came.
        """
        room_to_come = refused or self._selection.room_at < NEVER
        if not room_to_come or self._wait_s <= 0:
            return False
        place = (now + self._wait_s, query)
        if first:
            self._queue.appendleft(place)
        else:
            self._queue.append(place)
        return True

    def serve(self, now: float) -> None:
        """Send the queries for which there is room, the first come first; end the overdue."""
        queue = self._queue
        while queue:
            until, query = queue[0]
            if query.answered:
                queue.popleft()
                continue
            if now >= until:
                queue.popleft()
                if query.open == 0:
                    self._fail(query)
                continue
            resolver = self._selection.choose(now, query) or self._selection.explore(now, query)
            if resolver is None:
                return
            queue.popleft()
            self._send(now, query, resolver, RETRY if query.tried else FIRST)
