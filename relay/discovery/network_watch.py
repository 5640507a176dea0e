"""Noticing that this machine is in another network than before.

Owner: the supervisor, which looks every LOOK_S. Seen are the addresses of the interfaces, the
default routes, who the device's resolvers are, and a suspend (the clock that counts sleep runs
ahead of the one that does not). Addresses of a link alone are left out: containers come and go.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from relay.discovery.device import device_resolvers
from relay.endpoints import ip_of
from relay.resolver_address import ResolverAddress

LOOK_S: Final = 2.0

SUSPENDED_S: Final = 2.0
"""Sleep between two looks from which on the network is looked at afresh."""

_ROUTES: Final = Path("/proc/net/route")
_ROUTES_V6: Final = Path("/proc/net/ipv6_route")
_LARGEST_TABLE_BYTES: Final = 1 << 20

Picture = tuple[object, ...]


async def watch(changed: Callable[[str], None], look_s: float = LOOK_S) -> None:
    """Call `changed` with what happened, whenever the network is another one; for ever."""
    before, slept_s = picture(), asleep_s()
    while True:
        await asyncio.sleep(look_s)
        now, now_slept_s = picture(), asleep_s()
        if now_slept_s - slept_s >= SUSPENDED_S:
            changed("this machine was suspended")
        elif now != before:
            changed("this machine's network changed")
        before, slept_s = now, now_slept_s


def picture() -> Picture:
    """Return what the network looks like, to be compared with another time."""
    return (_addresses(), _default_routes(), _default_routes_v6(), _resolvers())


def asleep_s() -> float:
    """Return for how long this machine has slept since it was started, where that is known."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if clock is None else time.clock_gettime(clock) - time.monotonic()


def _addresses() -> frozenset[tuple[str, str]]:
    found = set()
    with contextlib.suppress(OSError, psutil.Error):
        for interface, addresses in psutil.net_if_addrs().items():
            for each in addresses:
                ip = ip_of(each.address.partition("%")[0])
                internet = each.family in (socket.AF_INET, socket.AF_INET6)
                if internet and ip and not ip.is_loopback and not ip.is_link_local:
                    found.add((interface, str(ip)))
    return frozenset(found)


def _default_routes() -> frozenset[tuple[str, str]]:
    rows = (line.split() for line in _lines(_ROUTES)[1:])
    return frozenset(
        (row[0], row[2]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"
    )


def _default_routes_v6() -> frozenset[tuple[str, str]]:
    rows = (line.split() for line in _lines(_ROUTES_V6))
    return frozenset(
        (row[9], row[4])
        for row in rows
        if len(row) > 9 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo"
    )


def _resolvers() -> tuple[ResolverAddress, ...]:
    # Elsewhere it takes a program to say so, which is too much for every look.
    return device_resolvers() if sys.platform == "linux" else ()


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_TABLE_BYTES).decode("ascii", "replace").splitlines()
    except OSError:
        return []
