"""Which errors of a socket are whose fault.

A closed port and a broken connection are the resolver's. Everything else (no route, no buffers, no
descriptors, an interface that went away) is this machine's, and no resolver is blamed for it.
"""

from __future__ import annotations

import errno
from typing import Final

RESOLVER_ERRNOS: Final = frozenset(
    (
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EPIPE,
        errno.ETIMEDOUT,
    )
)

PACKET_ERRNOS: Final = frozenset((errno.EMSGSIZE, errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM))
"""One packet could not go; the socket itself is sound."""


class Backoff:
    """Waiting times that double from `first_s` to `most_s`."""

    __slots__ = ("_first_s", "_most_s", "_next_s")

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return how long to wait now; the next time will be twice as long."""
        wait_s = self._next_s
        self._next_s = min(wait_s * 2, self._most_s)
        return wait_s

    def reset(self) -> None:
        """Start over: it worked."""
        self._next_s = self._first_s
