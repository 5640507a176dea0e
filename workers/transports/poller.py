"""Many sockets behind one reader of the event loop.

The sockets of a pool's resolvers stand in an epoll of their own, and only that epoll is watched by
the loop. A wake-up then costs the loop one callback however many sockets are ready, and the pool
flushes once. It also keeps errors in our hands: libuv, and so uvloop, stops watching a descriptor
that reports one (uv_poll_t), while a closed port is an everyday matter here.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

MAX_EVENTS = 256
"""Sockets served in one wake-up; the rest are still ready in the next."""


class Poller:
    """Calls back for the sockets that are readable or in error, then calls `after` once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, after: Callable[[], None]) -> None:
        self._loop = loop
        self._after = after
        self._epoll = select.epoll()
        self._ready: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._on_ready)

    def __repr__(self) -> str:
        return f"<Poller {len(self._ready)} sockets>"

    def add(self, fd: int, ready: Callable[[], None]) -> None:
        """Watch a descriptor until `remove`."""
        self._epoll.register(fd, select.EPOLLIN)
        self._ready[fd] = ready

    def remove(self, fd: int) -> None:
        """Watch a descriptor no more; before it is closed."""
        if self._ready.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Watch nothing any more."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _on_ready(self) -> None:
        ready = self._ready
        for fd, _ in self._epoll.poll(0, MAX_EVENTS):
            # A callback may close other sockets of the batch.
            callback = ready.get(fd)
            if callback is not None:
                callback()
        self._after()
