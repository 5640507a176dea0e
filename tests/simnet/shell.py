"""What surrounds the engine in a worker, in virtual time: `workers.pool` and its UDP transport.

The order of calls is the worker's: what the engine returns is sent at once, the outbox is emptied
after every packet, one timer rings at `wake_at` or the next tick. Sockets keep their open attempts
by random IDs as the real ones do, break and are opened anew with the same waiting times.
"""

from __future__ import annotations

import errno
from heapq import heappush
from math import inf
from typing import TYPE_CHECKING, Any, Final

from tests.simnet.wire import IDS
from workers.engine.engine import TICK_S, Engine
from workers.engine.pending import Attempt, Query
from workers.engine.resolver import Resolver
from workers.pool import RENEW_S, renew_some
from workers.settings import ResolverEntry
from workers.transports.faults import PACKET_ERRNOS, Backoff
from workers.transports.udp_resolver import (
    IDS_PER_SOCKET,
    MAX_SOCKETS,
    REFUSED_IN_A_ROW,
    STALE_SOCKET_S,
)

if TYPE_CHECKING:
    from tests.simnet.net import Net
    from tests.simnet.resolver import SimResolver

OPENING_ERRNOS: Final = frozenset((errno.EMFILE, errno.ENFILE))
"""They keep a socket from being opened and leave the open ones alone."""


class Front:
    """The listening socket of a worker: what the engine knows as the client."""

    __slots__ = ("_net", "is_stream")

    def __init__(self, net: Net, is_stream: bool) -> None:
        self._net = net
        self.is_stream = is_stream

    def reply(self, query: Query) -> None:
        """Hand a reply to whoever holds the address; to nobody, if it is closed by now."""
        net = self._net
        if net.trace is not None:
            net.trace.append((net.now, "reply", query.address, query.reply))
        port = net.ports.get(query.address)
        if port is None:
            net.undelivered += 1
        elif query.reply:
            net.soon.append((port[0].receive, (query.address, query.reply)))


class Shell:
    """One worker: an engine with its timer and transports."""

    def __init__(self, net: Net, engine: Engine) -> None:
        self.net = net
        self.engine = engine
        self.front = Front(net, is_stream=False)
        self.stream_front = Front(net, is_stream=True)
        self.transports: dict[int, Transport] = {}
        self.armed_at = inf
        self._tick_at = 0.0
        self._renew_at = 0.0
        self._renew_turn = 0

    def set_roster(self, entries: list[ResolverEntry]) -> None:
        """Take over a roster."""
        joined, left = self.engine.set_roster(self.net.now, entries)
        for resolver in left:
            self.transports.pop(resolver.slot).close()
        for resolver in joined:
            transport = Transport(self, resolver, self.net.resolvers[resolver.slot])
            self.transports[resolver.slot] = transport
            resolver.transport = transport
        self.flush()

    def __repr__(self) -> str:
        return repr(self.engine)

    def start(self, now: float, _: None) -> None:
        """Begin to tick."""
        self.armed_at = now
        self.ring(now, now)

    def receive(self, now: float, packet: tuple[Any, bytes]) -> None:
        """Take a datagram of a client."""
        address, wire = packet
        engine = self.engine
        attempt = engine.query(now, self.front, address, wire)
        if attempt is not None:
            attempt.resolver.transport.send(attempt)
        if engine.outbox or engine.wake_at < self.armed_at:
            self.flush()

    def receive_stream(self, now: float, packet: tuple[Any, bytes]) -> None:
        """Take a message of a client that came over TCP."""
        address, wire = packet
        attempt = self.engine.query(now, self.stream_front, address, wire)
        if attempt is not None:
            attempt.resolver.transport.send(attempt)
        self.flush()

    def flush(self) -> None:
        """Send what the engine wants sent, and see that the timer rings in time."""
        engine = self.engine
        outbox = engine.outbox
        while outbox:
            item = outbox.popleft()
            if isinstance(item, Attempt):
                item.resolver.transport.send(item)
            elif item.client is not None:
                item.client.reply(item)
        if engine.wake_at < self.armed_at:
            self._arm()

    def _arm(self) -> None:
        at = min(self.engine.wake_at, self._tick_at)
        self.armed_at = at
        net = self.net
        heappush(net.heap, (max(at, net.now), net.order(), self.ring, at))

    def ring(self, now: float, armed_at: float) -> None:
        """The timer rings. One that was armed anew in the meantime does nothing."""
        if armed_at != self.armed_at:
            return
        engine = self.engine
        if now >= engine.wake_at:
            engine.wake(now)
        if now >= self._tick_at:
            engine.tick(now)
            if now >= self._renew_at:
                self._renew_at = now + RENEW_S
                self._renew_turn = renew_some(engine.resolvers, self._renew_turn)
            self._tick_at = now + TICK_S
        self.armed_at = 0.0
        self.flush()
        self._arm()


class Transport:
    """The sockets of one worker to one resolver. `fault` is an errno that they meet, or 0."""

    def __init__(self, shell: Shell, resolver: Resolver, node: SimResolver) -> None:
        self.shell = shell
        self.fault = shell.net.fault
        self.refused_in_a_row = 0
        self._net = shell.net
        self._resolver = resolver
        self.node = node
        self._sockets: list[SimSocket] = []
        self._current: SimSocket | None = None
        self._stream = SimSocket(self, is_stream=True)
        self._backoff = Backoff(0.1, 5.0)
        self._reopening = False
        self._opened_at = 0.0
        self._open()

    def send(self, attempt: Attempt) -> None:
        """Send an attempt; a failure goes back to the engine at once."""
        net = self._net
        now = net.now
        socket = self._current
        if socket is None or attempt.over_stream or len(socket.table) >= IDS_PER_SOCKET:
            socket = self._another_way(attempt)
            if socket is None:
                self.shell.engine.unsent(now, attempt)
                return
        table = socket.table
        random = net.random
        drawn = IDS[int(random.random() * 65_536)]
        while drawn in table:
            drawn = IDS[int(random.random() * 65_536)]
        attempt.id = drawn
        attempt.table = table
        table[drawn] = attempt
        if self.fault and self.fault not in OPENING_ERRNOS:
            self.shell.engine.unsent(now, attempt)
            if self.fault not in PACKET_ERRNOS:
                self._broken()
            return
        query = attempt.query
        wire = drawn + query.wire[2:]
        self.node.carry(now, socket, wire, query.end)

    def set_fault(self, number: int) -> None:
        """Meet this errno from now on, 0 for none. All but a lack of buffers break the sockets."""
        self.fault = number
        if number and number not in PACKET_ERRNOS:
            self._broken()

    def renew(self) -> None:
        """Make the socket anew, for a resolver that is down: the old one may be of no more use."""
        if self._current is not None and self._net.now - self._opened_at > STALE_SOCKET_S:
            self._drop_sockets()
            self._open()

    def close(self) -> None:
        """Close every socket; attempts that are still open go elsewhere."""
        self._drop_sockets()

    def refused(self, socket: SimSocket) -> None:
        """ICMP says that the port is closed: what is open on the socket fails."""
        now = self._net.now
        engine = self.shell.engine
        for attempt in list(socket.table.values()):
            engine.failed(now, attempt)
        if socket.is_stream:
            socket.is_connected = False
        else:
            self.refused_in_a_row += 1
            if self.refused_in_a_row >= REFUSED_IN_A_ROW:
                self.refused_in_a_row = 0
                self._broken()
        self.shell.flush()

    def reopen(self, _now: float, _: None) -> None:
        """The wait is over: try a new socket."""
        self._reopening = False
        self._open()
        self.shell.flush()

    def _broken(self) -> None:
        self._drop_sockets()
        self.shell.engine.set_usable(self._resolver, False)
        if not self._reopening:
            self._reopening = True
            net = self._net
            at = net.now + self._backoff.next_s()
            heappush(net.heap, (at, net.order(), self.reopen, None))

    def _open(self) -> None:
        if self.fault and self.fault not in PACKET_ERRNOS:
            self._broken()
            return
        self._current = SimSocket(self)
        self._sockets.append(self._current)
        self._opened_at = self._net.now
        self._backoff.reset()
        self.shell.engine.set_usable(self._resolver, True)

    def _another_way(self, attempt: Attempt) -> SimSocket | None:
        """Return the stream for what must go there, or a socket with free IDs."""
        if attempt.over_stream:
            return self._stream
        roomy = self._with_room()
        if roomy is not None:
            self._current = roomy
        return roomy

    def _with_room(self) -> SimSocket | None:
        sockets = self._sockets
        if not sockets:
            return None
        roomiest = min(sockets, key=lambda socket: len(socket.table))
        may_open = not self.fault or self.fault in PACKET_ERRNOS
        if may_open and len(roomiest.table) > IDS_PER_SOCKET // 2 and len(sockets) < MAX_SOCKETS:
            roomiest = SimSocket(self)
            sockets.append(roomiest)
        return roomiest if len(roomiest.table) < IDS_PER_SOCKET else None

    def _drop_sockets(self) -> None:
        now = self._net.now
        sockets = self._sockets
        self._sockets = []
        self._current = None
        for socket in sockets:
            socket.is_open = False
            for attempt in list(socket.table.values()):
                self.shell.engine.unsent(now, attempt)


class SimSocket:
    """One socket towards a resolver; `table` holds its open attempts by ID."""

    __slots__ = ("_net", "_shell", "is_connected", "is_open", "is_stream", "table", "transport")

    def __init__(self, transport: Transport, is_stream: bool = False) -> None:
        self.transport = transport
        self.table: dict[bytes, Attempt] = {}
        self.is_stream = is_stream
        self.is_open = True
        self.is_connected = not is_stream
        self._shell = transport.shell
        self._net = transport.shell.net

    def deliver(self, now: float, wire: bytes) -> None:
        """A datagram of the resolver arrives."""
        net = self._net
        if not self.is_open or not net.is_connected:
            return
        if now < net.frozen_until:
            if net.keeps_packets:
                heappush(net.heap, (net.frozen_until, net.order(), self.deliver, wire))
            return
        shell = self._shell
        engine = shell.engine
        query = engine.answer(now, self.table, wire)
        if query is not None and query.client is not None:
            query.client.reply(query)
        self.transport.refused_in_a_row = 0
        if engine.outbox or engine.wake_at < shell.armed_at:
            shell.flush()

    def unreachable(self, now: float, _: None) -> None:
        """An ICMP error arrives."""
        if self.is_open and self._net.is_connected and now >= self._net.frozen_until:
            self.transport.refused(self)
