"""Ranges of addresses by country: blocks put in order, and addresses drawn from them.

Used by: the lists. Pure; the caller brings the randomness. A block is its first and its last
address as numbers; IPv4 and IPv6 are kept apart by the caller.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from relay.lists.addresses import ipv4_text

Block = tuple[int, int]

_EDGES: Final = (0, 255)
"""Last octets that hardly any host has."""


@dataclass(slots=True)
class Ranges:
    """The blocks of one country."""

    ipv4: list[Block] = field(default_factory=list)
    ipv6: list[Block] = field(default_factory=list)

    def merge(self) -> None:
        """Put the blocks in order, and those that touch or overlap together."""
        self.ipv4, self.ipv6 = _merged(self.ipv4), _merged(self.ipv6)

    def __len__(self) -> int:
        return len(self.ipv4) + len(self.ipv6)

    @property
    def ipv4_addresses(self) -> int:
        """How many IPv4 addresses the blocks hold."""
        return sum(last - first + 1 for first, last in self.ipv4)


def sample(blocks: Sequence[Block], count: int, rng: random.Random) -> list[str]:
    """Return up to `count` different IPv4 addresses drawn evenly from merged `blocks`.

    Addresses that end in .0 or .255 are passed over.
    """
    ends = list(itertools.accumulate(last - first + 1 for first, last in blocks))
    total = ends[-1] if ends else 0
    found: list[str] = []
    # Somewhat more than asked for, for the edges; of a small range all.
    drawn = min(total, count + count // 16 + 64) if count > 0 else 0
    for offset in rng.sample(range(total), drawn):
        at = bisect.bisect_right(ends, offset)
        number = blocks[at][1] - (ends[at] - 1 - offset)
        if number & 0xFF not in _EDGES:
            found.append(ipv4_text(number))
            if len(found) == count:
                break
    return found


def _merged(blocks: Iterable[Block]) -> list[Block]:
    merged: list[Block] = []
    for first, last in sorted(blocks):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
