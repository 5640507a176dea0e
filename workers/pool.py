"""One pool in a worker: the engine with its sockets, its timer and the order of its work.

Everything that touches a socket first calls the engine and then `flush`, which sends what the
engine left in its outbox and arms the one timer for what is due next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final, Protocol

from shared.printable import printable
from workers.engine.engine import TICK_S, Engine
from workers.engine.health import State
from workers.engine.pending import Attempt
from workers.engine.resolver import Resolver
from workers.memory import give_back
from workers.settings import ResolverEntry
from workers.transports.connection import Connection
from workers.transports.doh import DOH_ALPN, doh_connection
from workers.transports.ids import RandomIds
from workers.transports.poller import Poller
from workers.transports.stream_resolver import StreamTransport
from workers.transports.udp_resolver import UdpTransport

log = logging.getLogger(__name__)

MAX_REASON_CHARS: Final = 200

RENEW_S: Final = 1.0
"""How often resolvers that are down are looked through for sockets of no more use."""

RENEWED: Final = 32
"""Resolvers looked at each time: of a long list nearly all may be down."""

FaultReport = Callable[[int, str], None]
"""Takes a resolver's slot and what is wrong with it, or an empty string when it is over."""


class Frontend(Protocol):
    """A listening socket of the pool in this worker."""

    def close(self) -> None:
        """Take no more queries. Replies to those in flight still leave."""

    async def emptied(self) -> None:
        """Wait until every reply that was written has left."""


class Pool:
    """The shell of one pool. `engine` decides, the transports and frontends send."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, engine: Engine, report_fault: FaultReport
    ) -> None:
        self.loop = loop
        self.engine = engine
        self.ids = RandomIds()
        self.poller = Poller(loop, self.flush)
        self.frontends: list[Frontend] = []
        self.resolvers: list[Resolver] = []
        self.unflushed: list[Connection] = []
        self.handshakes = asyncio.Lock()
        self._report_fault = report_fault
        self._faults: dict[int, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = 0.0
        self._tick_at = 0.0
        self._renew_at = 0.0
        self._renew_turn = 0
        self._closed = False
        self._idle: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Begin to tick."""
        self._on_timer()

    def close(self) -> None:
        """Stop the timer and close every socket."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for frontend in self.frontends:
            frontend.close()
        for resolver in self.engine.resolvers:
            resolver.transport.close()
        self.poller.close()
        self.engine.tick(monotonic())

    async def idle(self) -> None:
        """Wait until no query is open."""
        if self.engine.counters.pending:
            self._idle = self.loop.create_future()
            await self._idle

    def set_roster(self, entries: list[ResolverEntry]) -> None:
        """Take over a roster: open transports for the new, close those of the gone."""
        joined, left = self.engine.set_roster(monotonic(), entries)
        for resolver in joined:
            resolver.transport = self._transport(resolver)
        self.resolvers = self.engine.resolvers
        for resolver in left:
            self._faults.pop(resolver.slot, None)
            resolver.transport.close()
        if left:
            give_back()
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
        unflushed = self.unflushed
        if unflushed:
            for connection in unflushed:
                connection.flush()
            unflushed.clear()
        if engine.wake_at < self._armed_at:
            self._arm()

    def fault(self, resolver: Resolver, reason: str) -> None:
        """Tell the supervisor what keeps a resolver from being used, "" when it is over."""
        reason = printable(reason, MAX_REASON_CHARS)
        if self._faults.get(resolver.slot, "") != reason:
            self._faults[resolver.slot] = reason
            if reason:
                log.info("%s: %s", resolver.name, reason)
            self._report_fault(resolver.slot, reason)

    def _transport(self, resolver: Resolver) -> UdpTransport | StreamTransport:
        scheme = resolver.entry.scheme
        if scheme == "udp":
            return UdpTransport(self, resolver)
        if scheme == "https":
            return StreamTransport(self, resolver, doh_connection, DOH_ALPN)
        return StreamTransport(self, resolver)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = min(self.engine.wake_at, self._tick_at)
        self._armed_at = at
        self._timer = self.loop.call_later(max(at - monotonic(), 0.0), self._on_timer)

    def _on_timer(self) -> None:
        if self._closed:
            return
        now = monotonic()
        if now >= self.engine.wake_at:
            self.engine.wake(now)
        if now >= self._tick_at:
            self.engine.tick(now)
            if now >= self._renew_at:
                self._renew_at = now + RENEW_S
                self._renew_turn = renew_some(self.engine.resolvers, self._renew_turn)
            self._tick_at = now + TICK_S
            if (
                self._idle is not None
                and not self._idle.done()
                and not self.engine.counters.pending
            ):
                self._idle.set_result(None)
        self._armed_at = 0.0  # flush shall not arm, the line after it does
        self.flush()
        self._arm()


def renew_some(resolvers: Iterable[Resolver], turn: int) -> int:
    """Have some of those that are down make their sockets anew; return whose turn is next."""
    down = [resolver for resolver in resolvers if resolver.state is State.DOWN]
    if turn >= len(down):
        turn = 0
    for resolver in down[turn : turn + RENEWED]:
        resolver.transport.renew()
    return turn + RENEWED
