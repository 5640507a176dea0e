"""Queries that wait for room.

A query that finds every resolver at its ceiling, or was refused by all, waits for a token in order
of arrival, and only then fails: a token comes within hundredths of a second, while a query sent
above the ceiling is refused a round trip later and waits all the same. While queries wait, a
resolver may get one above its ceiling now and then, to find room that the ceiling does not know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from workers.engine.pending import FIRST, RETRY, Query
from workers.engine.resolver import Resolver
from workers.engine.selection import Selection
from workers.engine.timers import NEVER


class WaitingRoom:
    """The queue of a pool in one worker. `wait_s` is how long a query may wait; 0 for not at all.

    `send(now, query, resolver, kind)` opens an attempt, `fail(query)` ends a query.

    A place is a list of one query; it is empty when its query has gone. The order of service is not
    that of the ends: what was sent before goes first, and no wait outlasts its query's deadline.
    """

    __slots__ = ("_ends", "_fail", "_number", "_queue", "_selection", "_send", "_wait_s")

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
        self._queue: deque[list[Query]] = deque()
        self._ends: list[tuple[float, int, list[Query]]] = []  # when each place ends, a heap
        self._number = count().__next__

    def __repr__(self) -> str:
        return f"<WaitingRoom {len(self._queue)} waiting>"

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def next_at(self) -> float:
        """When `serve` may have work again."""
        if not self._queue:
            return NEVER
        return min(self._ends[0][0], self._selection.room_at)

    def admit(self, now: float, query: Query, *, refused: bool, first: bool = False) -> bool:
        """Let a query wait, if there is room to come for it; tell whether.

        That is so when somebody is at a ceiling or has just refused it, and when others wait
        already: what they wait for is to come for it too, in its turn. `first` is for one that was
        sent before those that wait came.
        """
        room_to_come = refused or bool(self._queue) or self._selection.room_at < NEVER
        if not room_to_come or self._wait_s <= 0:
            return False
        place = [query]
        heappush(self._ends, (min(now + self._wait_s, query.deadline_at), self._number(), place))
        if first:
            self._queue.appendleft(place)
        else:
            self._queue.append(place)
        return True

    def serve(self, now: float) -> None:
        """End the overdue; send the queries for which there is room, the first come first."""
        ends = self._ends
        while ends and ends[0][0] <= now:
            place = heappop(ends)[2]
            if place:
                query = place.pop()
                if query.open == 0 and not query.answered:
                    self._fail(query)
        queue = self._queue
        while queue:
            place = queue[0]
            if place and not place[0].answered:
                query = place[0]
                resolver = self._selection.choose(now, query) or self._selection.explore(now, query)
                if resolver is None:
                    return
                place.pop()
                self._send(now, query, resolver, RETRY if query.tried else FIRST)
            queue.popleft()
