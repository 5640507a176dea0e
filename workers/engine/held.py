"""Which client sockets are held: have asked before, and are likely to ask again.

A tunnel client that keeps its socket reads every answer that comes to it, so copies and late
answers bring it data. One that opens a socket for every query closes it at the first answer; what
comes later is lost, and so is the data in it. Such a client shows by its addresses: hardly any
asks twice within a short time, even where the system hands out the same port again.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

MEMORY_S: Final = 0.5
"""An address is known for one to two of these after its last query."""

MAX_ADDRESSES: Final = 4_096
"""Addresses remembered at most per period; with more, none of the rest is held."""

HELD_SHARE: Final = 0.5
"""Copies go out only while at least this share of the queries comes from known addresses."""

GAIN: Final = 1 / 64
"""Weight of a new query in that share."""


class HeldSockets:
    """Two generations of addresses; `held` learns and tells at once."""

    __slots__ = ("_before", "_now", "_share", "_turn_at")

    def __init__(self) -> None:
        self._now: set[Hashable] = set()
        self._before: set[Hashable] = set()
        self._turn_at = 0.0
        self._share = 0.0

    def held(self, now: float, address: Hashable) -> bool:
        """Note a query of `address`; tell whether its socket is held."""
        if now >= self._turn_at:
            fresh = now - self._turn_at < MEMORY_S
            self._before = self._now if fresh else set()
            self._now = set()
            self._turn_at = now + MEMORY_S
        known = address in self._now or address in self._before
        if len(self._now) < MAX_ADDRESSES:
            self._now.add(address)
        self._share += GAIN * (known - self._share)
        return known and self._share >= HELD_SHARE
