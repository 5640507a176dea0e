"""The connections of one worker to one resolver that is reached over streams: TCP, DoT, DoH.

Dialled when there is a query. At most one dial is under way; everything that wants a connection
waits for it, and the time it takes is no latency of the resolver. After a failed dial there is a
pause, which doubles. The first dial after a connection that served has no pause.

Servers close connections that were idle, and may do so while a query is on its way: what was open
on a connection is sent again on another one, once, without blame. Connections made before any has
answered fail their attempts: whoever hangs up on everybody is no resolver. How long a server lets
a connection idle is learned from its closings, and one about as old is not used any more.

In a pause, and when a dial fails, queries go to other resolvers at once. Where there is no other,
and the resolver has served before, they wait for the next dial: to fail them would help nobody.
While a dial is slow they go to others too: at a server to which nothing comes through a dial takes
seconds, in which each query would wait here until it is hedged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from workers.engine.health import State
from workers.engine.pending import Attempt
from workers.engine.resolver import Resolver
from workers.transports.connection import Connection, Kind
from workers.transports.dial import Dialler
from workers.transports.faults import Backoff, DialFailed, Floods, in_words
from workers.transports.framed import FramedConnection

if TYPE_CHECKING:
    from workers.pool import Pool

MAX_WAITING: Final = 4_096
"""Attempts that wait for a connection; beyond them an attempt goes elsewhere."""

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
"""Pauses between dials that fail. The longest bounds how late a server's return is noticed."""

SLOW_DIAL_S: Final = 0.5
"""A dial is slow when it has taken so long: three turns to the other side of the world."""

PATIENCE_S: Final = 1.5
"""So long an attempt waits through failing dials where no other resolver can take it."""

OTHERS_LOOKED_AT: Final = 32
"""Resolvers looked at for whether one can take a query; in a longer list one surely can."""

LEAST_IDLE_S: Final = 0.3
"""Shorter idle times of connections that closed are not learned from."""

IDLE_MARGIN_S: Final = 0.25
IDLE_MARGIN_SHARE: Final = 0.1
"""A connection is given up so long before its server closes it, the shorter of the two."""

SAME_IDLE_SHARE: Final = 0.1
SAME_IDLE_S: Final = 0.05
"""Ends of connections after idle times that differ by no more than this are one server's rule."""

ROUNDING_S: Final = 1e-3
"""Sums of times in floating point are off by less than this."""

UNSERVED: Final = "ends its connections without serving a query"
MUTE: Final = "takes queries and answers none"

LEARNED_FOR_S: Final = 600.0
"""A learned idle lifetime is forgotten after this long: servers are set up anew."""


class StreamTransport:
    """The connections of one worker to one resolver. See the module for the rules.

    `waiting` are the attempts that wait for a dial or for room; some may be closed by now. `dials`
    counts the dials begun.
    """

    def __init__(
        self,
        pool: Pool,
        resolver: Resolver,
        kind: Kind = FramedConnection,
        alpn: tuple[str, ...] = (),
    ) -> None:
        self.pool = pool
        self.resolver = resolver
        self.waiting: deque[Attempt] = deque()
        self.dials = 0
        self._kind = kind
        self._dialler = Dialler(pool, resolver.entry, alpn)
        self._connections: list[Connection] = []
        self._current: Connection | None = None
        self._dial: asyncio.Task[None] | None = None
        self._dial_began_at = 0.0
        self._dial_not_before = 0.0
        self._pause_over: asyncio.TimerHandle | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._check: asyncio.TimerHandle | None = None
        self._idle = IdleLifetime()
        self._has_served = False
        self._unserved_in_a_row = 0
        self._dial_fault = False
        self._closed = False

    # -- called by the pool -----------------------------------------------------------------

    def send(self, attempt: Attempt) -> None:
        """Send an attempt now, or once a connection stands."""
        now = monotonic()
        connection = self._current
        if (
            connection is None
            or (not connection.silent_since and now >= connection.idle_since + self._idle.limit_s)
            or not connection.send(now, attempt)
        ):
            self._send_another_way(now, attempt)

    def renew(self) -> None:
        """Nothing to do: a connection that is of no more use is replaced when it is needed."""

    def close(self) -> None:
        """Close the connections and give up what is open on them or waits."""
        self._closed = True
        if self._dial is not None:
            self._dial.cancel()
        for timer in (self._pause_over, self._check):
            if timer is not None:
                timer.cancel()
        now = monotonic()
        for connection in list(self._connections):
            self._remove(connection)
            self._fail(now, list(connection.table.values()), blamed=False)
        self._fail(now, self._take_waiting(), blamed=False)

    @property
    def reachable(self) -> bool:
        """Tell whether there is a connection, or no dial that is slow or has just failed."""
        now = monotonic()
        return bool(self._connections) or (
            now >= self._dial_not_before and not self._dials_slowly(now)
        )

    # -- called by the connections ----------------------------------------------------------

    def again(self, connection: Connection, attempts: list[Attempt]) -> None:
        """Send attempts that `connection` did not serve once more elsewhere, without blame.

        Those that it says it did not look at as it closes may go again any number of times, as
        long as every connection serves some: servers limit the requests of a connection.
        """
        serves = connection.has_answered or len(connection.table) > len(attempts)
        if not serves:
            self.pool.fault(self.resolver, UNSERVED)
            connection.turned_away = True
            if connection.closing:
                self._served_none(UNSERVED)
        self._send_again(connection, attempts, counted=not (connection.closing and serves))
        if not connection.table:
            connection.silent_since = 0.0
            if connection.closing:
                self._remove(connection)

    def broken(self, connection: Connection, reason: str) -> None:
        """Close a connection whose peer breaks the protocol; `reason` is in words for people.

        It is an error of the resolver also where no attempt fails with it.
        """
        if connection.has_answered or not connection.table:
            self._pause(reason)
            self.pool.engine.unreachable(self.resolver)
        self._end(connection, reason)

    def proven(self, connection: Connection) -> None:
        """A connection got its first answer."""
        self._has_served = True
        self._unserved_in_a_row = 0
        self._dial_not_before = 0.0
        self._backoff.reset()
        self._dialler.remember(connection.channel)
        self.pool.fault(self.resolver, "")

    def attend(self, connection: Connection) -> None:
        """A connection has room for what waits, or is done with what it had."""
        if connection.closing and not connection.table:
            self._remove(connection)
        self._serve_waiting(monotonic())

    def watch(self) -> None:
        """A connection waits for an answer from now on: see that it is checked."""
        if self._check is None:
            self._check = self.pool.loop.call_later(
                self.pool.engine.settings.per_attempt_s / 2, self._on_check
            )

    # -- ways of an attempt -----------------------------------------------------------------

    def _send_another_way(self, now: float, attempt: Attempt) -> None:
        """Send over any connection with room, or have the attempt wait for one."""
        if self._send_over_any(now, attempt):
            return
        if len(self.waiting) >= MAX_WAITING:
            self.waiting = deque(each for each in self.waiting if not each.closed)
        waits_long = self._dial is None and (now < self._dial_not_before or not self._may_dial())
        if (
            self._closed
            or len(self.waiting) >= MAX_WAITING
            or (waits_long and not self._waits_patiently)
            or (self._dials_slowly(now) and self._has_others)
        ):
            self.pool.engine.unsent(now, attempt)
            return
        attempt.waits = True
        self.waiting.append(attempt)
        self._dial_soon(now)

    def _send_over_any(self, now: float, attempt: Attempt) -> bool:
        """Send over a connection with room, and close those that are of no more use.

        What was lost with a connection goes to one made since: its siblings may be ending too.
        """
        made_since = attempt.sent_at if attempt.resent and self._may_dial() else 0.0
        for connection in list(self._connections):
            if not connection.silent_since and (
                connection.closing or self._idle.is_over(now, now - connection.idle_since)
            ):
                self._remove(connection)
            elif connection.made_at >= made_since and connection.send(now, attempt):
                attempt.sent_at = now
                self._current = connection
                return True
        return False

    def _send_again(
        self, connection: Connection, attempts: list[Attempt], *, counted: bool
    ) -> None:
        """Send attempts on another connection; where it counts, once only."""
        now = monotonic()
        for attempt in attempts:
            if attempt.closed:
                continue
            if counted and attempt.resent:
                self.pool.engine.failed(now, attempt)
                continue
            connection.table.pop(attempt.id, None)
            attempt.table = None
            attempt.resent = attempt.resent or counted
            attempt.sent_at = now
            self._send_another_way(now, attempt)

    @property
    def _waits_patiently(self) -> bool:
        """Tell whether to wait for this resolver: it has served, and no other can take a query."""
        return self._has_served and not self._has_others

    @property
    def _has_others(self) -> bool:
        """Tell whether another resolver can take a query. Strangers take one now and then only."""
        for other in islice(self.pool.resolvers, OTHERS_LOOKED_AT):
            if other is self.resolver or not other.usable or other.state is State.DOWN:
                continue
            if not other.srtt_s:
                continue
            transport = other.transport
            if not isinstance(transport, StreamTransport) or transport.reachable:
                return True
        return len(self.pool.resolvers) > OTHERS_LOOKED_AT

    def _take_waiting(self) -> list[Attempt]:
        waiting, self.waiting = self.waiting, deque()
        return [attempt for attempt in waiting if not attempt.closed]

    def _serve_waiting(self, now: float) -> None:
        """Send what waits over the connections that have room."""
        waiting = self.waiting
        while waiting:
            attempt = waiting[0]
            if not attempt.closed and not self._send_over_any(now, attempt):
                self._dial_soon(now)
                return
            waiting.popleft()

    def _fail(self, now: float, attempts: list[Attempt], *, blamed: bool) -> None:
        engine = self.pool.engine
        end = engine.failed if blamed else engine.unsent
        for attempt in attempts:
            end(now, attempt)

    # -- dialling ---------------------------------------------------------------------------

    def _may_dial(self) -> bool:
        """Tell whether one more connection is within the bound of its kind."""
        connections = self._connections
        if not connections:
            return True
        most = connections[0].most_connections
        taking = len([connection for connection in connections if not connection.closing])
        return taking < most and len(connections) < 2 * most

    def _dials_slowly(self, now: float) -> bool:
        """Tell whether a dial is under way and takes long, or the one before it failed."""
        return self._dial is not None and (
            self._dial_fault or now - self._dial_began_at > SLOW_DIAL_S
        )

    def _dial_soon(self, now: float) -> None:
        """Dial, at the end of the pause if there is one."""
        if self._dial is not None or self._pause_over is not None or not self._may_dial():
            return
        if now < self._dial_not_before:
            self._pause_over = self.pool.loop.call_later(
                self._dial_not_before - now, self._on_pause_over
            )
        else:
            self._dial_began_at = now
            self._dial = self.pool.loop.create_task(self._connect())

    def _on_pause_over(self) -> None:
        self._pause_over = None
        if any(not attempt.closed for attempt in self.waiting):
            self._dial_soon(self._dial_not_before)

    async def _connect(self) -> None:
        self.dials += 1
        try:
            channel = await self._dialler.dial()
        except DialFailed as error:
            self._dial = None
            self._dial_failed(error)
            self.pool.flush()
            return
        self._dial = None
        now = monotonic()
        connection = self._kind(self.pool, self, channel, now)
        self._connections.append(connection)
        self._current = connection
        channel.start(connection, self._lost)
        if self._dial_fault:
            self._dial_fault = False
            self.pool.fault(self.resolver, "")
        self._serve_waiting(now)
        self.pool.flush()

    def _dial_failed(self, error: DialFailed) -> None:
        self._pause(str(error))
        self._dial_fault = True
        now = monotonic()
        waiting = self._take_waiting()
        if error.blamed and self._waits_patiently:
            self.waiting.extend(each for each in waiting if now - each.sent_at < PATIENCE_S)
            waiting = [each for each in waiting if now - each.sent_at >= PATIENCE_S]
        self._fail(now, waiting, blamed=error.blamed)
        if error.blamed and not waiting and not self.waiting:
            self.pool.engine.unreachable(self.resolver)
        if self.waiting:
            self._dial_soon(now)

    def _pause(self, reason: str) -> None:
        self._dial_not_before = monotonic() + self._backoff.next_s()
        self._dial_fault = False
        self.pool.fault(self.resolver, reason)

    # -- ends of connections ----------------------------------------------------------------

    def _lost(self, connection: Connection, error: OSError | None) -> None:
        """The server ended a connection, or the network did, or what it sends is too much."""
        if isinstance(error, Floods):
            self.broken(connection, in_words(error))
            return
        self._idle.ended_after((connection.silent_since or monotonic()) - connection.idle_since)
        reason = in_words(error)
        self._end(connection, reason if error is None else f"connection lost: {reason}")

    def _end(self, connection: Connection, reason: str) -> None:
        """Close a connection; what was open on it is sent again, or fails."""
        self._remove(connection)
        attempts = list(connection.table.values())
        taken = connection.turned_away or (attempts and not connection.may_be_stale)
        if taken and not connection.has_answered:
            self._pause(reason)
            if not self._has_served:
                self._fail(monotonic(), attempts, blamed=True)
                return
            self._served_none(reason)
        self._send_again(connection, attempts, counted=True)

    def _served_none(self, reason: str) -> None:
        """A connection ends that took queries and answered none.

        The first may have met a server that was going down. Of the next ones nobody hears while
        their queries are sent elsewhere unblamed: each is an error, and followed by a pause.
        """
        self._unserved_in_a_row += 1
        if self._unserved_in_a_row > 1:
            if monotonic() >= self._dial_not_before:
                self._pause(reason)
            self.pool.engine.unreachable(self.resolver)

    def _let_expire(self, now: float, connection: Connection) -> None:
        """Leave the attempts whose time is over to the engine, which counts them lost."""
        sent_by = now - self.pool.engine.settings.per_attempt_s + ROUNDING_S
        for attempt in list(connection.table.values()):
            if attempt.sent_at <= sent_by and not attempt.waits:
                del connection.table[attempt.id]
                attempt.table = None

    def _remove(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            if connection.has_answered:
                self._dialler.remember(connection.channel)
        if self._current is connection:
            self._current = None
        connection.channel.close()

    def _on_check(self) -> None:
        """Retire connections that swallow what is written to them."""
        self._check = None
        now = monotonic()
        next_s = inf
        for connection in list(self._connections):
            if not connection.silent_since:
                continue
            wait_s = connection.check(now)
            if wait_s > 0.0:
                next_s = min(next_s, wait_s)
                continue
            self._idle.ended_after(connection.silent_since - connection.idle_since)
            self._let_expire(now, connection)
            self.pool.fault(self.resolver, MUTE)
            self._end(connection, MUTE)
        if next_s < inf and self._check is None:
            self._check = self.pool.loop.call_later(next_s, self._on_check)
        self._serve_waiting(now)
        self.pool.flush()


class IdleLifetime:
    """How long a server lets a connection idle, learned from those that ended.

    A restart ends connections too, so it takes two ends in a row after about the same idle time.
    `limit_s` is the age from which an idle connection is not to be used; infinity if unknown.
    """

    __slots__ = ("_learned_at", "_seen_s", "limit_s")

    def __init__(self) -> None:
        self.limit_s = inf
        self._seen_s = inf
        self._learned_at = 0.0

    def ended_after(self, idle_s: float) -> None:
        """A connection was ended by its server when it had been idle for so long."""
        if idle_s < LEAST_IDLE_S:
            return
        if abs(idle_s - self._seen_s) <= SAME_IDLE_S + SAME_IDLE_SHARE * idle_s:
            shortest_s = min(idle_s, self._seen_s)
            self.limit_s = shortest_s - min(IDLE_MARGIN_S, IDLE_MARGIN_SHARE * shortest_s)
            self._learned_at = monotonic()
        self._seen_s = idle_s

    def is_over(self, now: float, idle_s: float) -> bool:
        """Tell whether a connection that has been idle for so long is not to be used."""
        if idle_s < self.limit_s:
            return False
        if now - self._learned_at > LEARNED_FOR_S:
            self.limit_s = inf
            return False
        return True
