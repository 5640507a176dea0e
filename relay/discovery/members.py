"""The resolvers of a pool as the finder sees them. Pure.

Used by: the finder, and the service, which looks at roster and board for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from relay.resolver_address import ResolverAddress
from workers.engine.health import State


@dataclass(frozen=True, slots=True)
class Standing:
    """How one resolver of the pool stands now."""

    address: ResolverAddress
    state: State
    answered: int
    """Queries of the tunnel that it has answered since it joined."""


class Pool(Protocol):
    """The pool as the finder sees it."""

    def standings(self) -> Sequence[Standing]:
        """Return how all resolvers of the pool stand, those that `auto` stands for as well."""
        ...

    def let_in(self, addresses: Sequence[ResolverAddress]) -> None:
        """Let `auto` stand for these, and tell the workers what is known of them."""
        ...


@dataclass(slots=True)
class Found:
    """One resolver that was let in."""

    is_fallback: bool = False
    fault: str = ""
    """Why it failed its last check, in words; empty where it passed."""
    down_at: float | None = None
    """Since when it is down, or fails its checks."""
    answered: int = 0
    """Queries answered by the last look."""
    is_blamed: bool = False
    """Whether its score has been lowered for going down this time."""


def all_down(standings: Sequence[Standing]) -> bool:
    """Whether there are resolvers, and all of them are down."""
    return bool(standings) and all(each.state is State.DOWN for each in standings)


def down_for(
    found: Mapping[ResolverAddress, Found], now: float, longer_than_s: float
) -> list[ResolverAddress]:
    """Return who is down for that long, the longest first."""
    down = [
        (each.down_at, address)
        for address, each in found.items()
        if each.down_at is not None and now - each.down_at >= longer_than_s
    ]
    return [address for _, address in sorted(down, key=lambda each: each[0])]
