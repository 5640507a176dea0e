"""Addresses in lists: which are public, and what was glued together.

Used by: `relay.lists.parsing`. Pure, and made for tens of thousands of lines: an IPv4 address is a
number here. Nothing here raises for any text.
"""

from __future__ import annotations

import bisect
import functools
import ipaddress
import re
import socket
from typing import Final

OCTET: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = re.compile(rf"{OCTET}(?:\.{OCTET}){{3}}")
_THREE_OCTETS: Final = re.compile(rf"(?:{OCTET}\.){{3}}")
_GLUED: Final = re.compile(r"[0-9.:]{14,256}")
_FIRST_MULTICAST: Final = 224 << 24

# The special-purpose blocks of IANA's registry, where no public resolver can be. Python's own
# `is_global` takes ten times as long and differs between releases.
_SPECIAL: Final = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",
)
_SPECIAL_6: Final = tuple(
    ipaddress.IPv6Network(block)
    for block in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
_UNICAST_6: Final = ipaddress.IPv6Network("2000::/3")


def _bounds() -> tuple[list[int], list[int]]:
    blocks = [ipaddress.IPv4Network(block) for block in _SPECIAL]
    return (
        [int(block.network_address) for block in blocks],
        [int(block.broadcast_address) for block in blocks],
    )


_FIRSTS, _LASTS = _bounds()


def ipv4_number(text: str) -> int | None:
    """Return the number of a dotted address without leading zeros; None for any other text."""
    if not _IPV4.fullmatch(text):
        return None
    return int.from_bytes(socket.inet_aton(text), "big")


def ipv4_text(number: int) -> str:
    """Return the dotted spelling of an IPv4 address."""
    return socket.inet_ntoa(number.to_bytes(4, "big"))


def is_host(number: int) -> bool:
    """Whether an IPv4 address can be one host's at all."""
    return 1 << 24 <= number < _FIRST_MULTICAST


def is_public_number(number: int) -> bool:
    """Whether an IPv4 address is one of the public internet."""
    at = bisect.bisect_right(_FIRSTS, number) - 1
    return at < 0 or number > _LASTS[at]


def is_public(host: str) -> bool:
    """Whether an IP literal is an address of the public internet."""
    number = ipv4_number(host)
    if number is not None:
        return is_public_number(number)
    try:
        ip = ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return ip in _UNICAST_6 and not any(ip in block for block in _SPECIAL_6)


def is_public_nowhere(version: int, first: int, last: int) -> bool:
    """Whether no address of a block, given as numbers, is one of the public internet."""
    if version == 4:
        at = bisect.bisect_right(_FIRSTS, first) - 1
        return at >= 0 and last <= _LASTS[at]
    ends = ipaddress.IPv6Address(first), ipaddress.IPv6Address(last)
    inside = any(ends[0] in special and ends[1] in special for special in _SPECIAL_6)
    return inside or ends[1] < _UNICAST_6[0] or ends[0] > _UNICAST_6[-1]


def unglue(text: str) -> list[tuple[str, int]]:
    """Return the IPv4 addresses, with their ports, that `text` is when nothing stands between them.

    Only where there is one way to read it: `8.8.8.88.8.4.4` is 8.8.8.8 and 8.8.4.4, but
    `1.1.1.112.8.8.8` could be two pairs. Port 53 is preferred to others. Empty: no way, or several.
    """
    if not _GLUED.fullmatch(text) or text.count(".") < 6:
        return []
    for most_likely in (True, False):
        ways = _ways(text, most_likely)
        if len(ways) == 1:
            return list(ways[0])
        if ways:
            break
    return []


_Way = tuple[tuple[str, int], ...]


def _ways(text: str, only_53: bool) -> list[_Way]:
    """Return the ways to read `text`; two of them where there are more."""

    @functools.cache
    def from_here(start: int) -> tuple[_Way, ...]:
        if start == len(text):
            return ((),)
        found: list[_Way] = []
        for host, end in _hosts_at(text, start):
            for port, after in _ports_at(text, end, only_53):
                for rest in from_here(after):
                    found.append(((host, port), *rest))
                    if len(found) == 2:
                        return tuple(found)
        return tuple(found)

    return list(from_here(0))


def _hosts_at(text: str, start: int) -> list[tuple[str, int]]:
    """Return the addresses that begin at `start`, each with where it ends."""
    head = _THREE_OCTETS.match(text, start)
    if not head:
        return []
    found = []
    for length in (1, 2, 3):
        host = text[start : head.end() + length]
        number = ipv4_number(host)
        if number is not None and is_host(number) and len(host) == head.end() + length - start:
            found.append((host, head.end() + length))
    return found


def _ports_at(text: str, start: int, only_53: bool) -> list[tuple[int, int]]:
    """Return the ports that may follow an address that ends at `start`."""
    if text[start : start + 1] != ":":
        return [(53, start)]
    found = []
    for length in (2,) if only_53 else (1, 2, 3, 4, 5):
        digits = text[start + 1 : start + 1 + length]
        if len(digits) < length or not digits.isdecimal() or digits[0] == "0":
            continue
        if int(digits) == 53 or (not only_53 and int(digits) <= 65_535):
            found.append((int(digits), start + 1 + length))
    return found
