"""Message IDs for the resolver side: random, and unique among the open attempts of a socket."""

from __future__ import annotations

import os
from collections.abc import Container

BLOCK_BYTES = 4096


class RandomIds:
    """IDs cut from blocks of the system's random bytes, since one call for each costs too much."""

    __slots__ = ("_block", "_position")

    def __init__(self) -> None:
        self._block = b""
        self._position = 0

    def draw(self, taken: Container[bytes]) -> bytes:
        """Return two random bytes that are not in `taken`. At least one ID must be free."""
        while True:
            position = self._position
            if position >= len(self._block):
                self._block = os.urandom(BLOCK_BYTES)
                position = 0
            self._position = position + 2
            drawn = self._block[position : position + 2]
            if drawn not in taken:
                return drawn
