"""A gate in front of a TCP server: counts connections, delays, swallows, cuts and restores.

    with Gate(server.dot) as gate:
        gate.hold_s = 1.0           # a new connection's first bytes wait for so long
        gate.stall()                # what stands carries nothing more and stays open
        gate.swallow()              # the same, and for new connections too
        gate.cut()                  # every connection is reset, new ones are refused
        gate.open()                 # as in the beginning

What passes is not looked at, so it serves any protocol. It runs in a thread of the test's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from tests.rig.net import Address, free_address
from tests.rig.process import wait_until

T = TypeVar("T")
_START_S = 5.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


class Gate:
    """See the module. `address` is where clients connect."""

    def __init__(self, server: Address, *, address: Address | None = None) -> None:
        self.server = server
        self.address = address or free_address()
        self.hold_s = 0.0
        """How long the first bytes of a connection made from now on are kept."""
        self.accepted = 0
        """Connections taken since the start."""
        self.clients: list[Address] = []
        """Where they came from."""
        self.accepted_at: list[float] = []
        """When, by time.monotonic()."""
        self.bytes_in = 0
        """Bytes that clients sent, whether they passed or not."""
        self._pairs: set[_Side] = set()
        self._stalled = False
        self._listener: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gate", daemon=True)
        self._thread.start()
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cut()
        self._call(self._settle)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    # -- used by the test ------------------------------------------------------------------

    def open(self) -> None:
        """Take connections and let everything pass."""
        self._call(self._open)

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        self._call(self._cut)

    def close_connections(self) -> None:
        """Close every connection in order, as a server does with idle ones."""
        self._call(self._close_connections)

    def close_soon(self, after_s: float) -> None:
        """The same with the connections that stand now, a little later; returns at once."""
        self._call(partial(self._close_connections, after_s))

    def stall(self) -> None:
        """Let nothing pass on the connections that stand; take new ones as usual."""
        self._call(self._stall)

    def swallow(self) -> None:
        """Take connections, and let nothing pass on any, new or old."""
        self._call(self._swallow)

    @property
    def standing(self) -> int:
        """Connections that are open."""
        return sum(1 for each in list(self._pairs) if each.is_client)

    def wait_for(self, ready: Callable[[Gate], bool], what: str, timeout_s: float = 10.0) -> None:
        """Wait until `ready`, which is given the gate."""
        wait_until(lambda: ready(self), f"gate to {self.server}: {what}", timeout_s)

    # -- in the thread ---------------------------------------------------------------------

    def _call(self, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(step(), self._loop).result(_START_S)

    async def _open(self) -> None:
        self._stalled = False
        if self._listener is None:
            self._listener = await self._loop.create_server(
                lambda: _Side(self), self.address.host, self.address.port, backlog=1024
            )

    async def _cut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for side in list(self._pairs):
            side.reset()

    async def _close_connections(self, after_s: float = 0.0) -> None:
        for side in list(self._pairs):
            self._loop.call_later(after_s, side.close)

    async def _stall(self) -> None:
        for side in self._pairs:
            side.stalled = True

    async def _swallow(self) -> None:
        await self._open()
        self._stalled = True
        await self._stall()

    async def _settle(self) -> None:
        while self._pairs:
            await asyncio.sleep(0)

    def begin(self, side: _Side, client: Address) -> None:
        """A client has connected: connect to the server for it."""
        self.accepted += 1
        self.clients.append(client)
        self.accepted_at.append(time.monotonic())
        side.stalled = self._stalled
        side.task = self._loop.create_task(self._connect(side))

    async def _connect(self, near: _Side) -> None:
        if self.hold_s:
            await asyncio.sleep(self.hold_s)
        far = _Side(self, near)
        try:
            await self._loop.create_connection(lambda: far, *self.server)
        except OSError:
            near.reset()

    def entered(self, side: _Side) -> None:
        """One end of a connection stands."""
        self._pairs.add(side)

    def left(self, side: _Side) -> None:
        """One end of a connection is gone."""
        self._pairs.discard(side)


class _Side(asyncio.Protocol):
    """One end: towards a client, or (with `other` given) towards the server."""

    def __init__(self, gate: Gate, other: _Side | None = None) -> None:
        self._gate = gate
        self._other = other
        self._link: asyncio.Transport | None = None
        self._kept = b""
        self._ended = False
        self.is_client = other is None
        self.stalled = other is not None and other.stalled
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link = cast(asyncio.Transport, transport)
        self._gate.entered(self)
        if self._other is None:
            self._gate.begin(self, Address(*transport.get_extra_info("peername")[:2]))
            return
        self._other._meet(self)

    def _meet(self, far: _Side) -> None:
        """The way to the server stands: pass on what has come meanwhile."""
        if self._ended:
            far.reset()
            return
        self._other = far
        kept, self._kept = self._kept, b""
        if kept and not self.stalled:
            far.write(kept)

    def data_received(self, data: bytes) -> None:
        if self.is_client:
            self._gate.bytes_in += len(data)
        if self.stalled:
            return
        if self._other is None:
            self._kept += data
        else:
            self._other.write(data)

    def write(self, data: bytes) -> None:
        if self._link is not None:
            self._link.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link = None
        self._ended = True
        self._gate.left(self)
        if self._other is not None:
            self._other.reset() if exc is not None else self._other.close()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def reset(self) -> None:
        if self._link is not None:
            raw = self._link.get_extra_info("socket")
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._link.abort()
