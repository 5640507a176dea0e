"""Whom to check, in which order: what `auto` stands for before anybody was checked.

Used by: the finder and `relay scan`. Order: those with a good saved score, the best first; the
device's own resolvers; the country's; the well-known public ones; addresses drawn from the
country's ranges; the large lists. Those known to be bad come at the very end. Invariants: an
address comes once, whatever its spelling and wherever it is named; the relay's own listeners never
come; the large lists are read as far as they are needed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from relay.config import DISCOVERY_SOURCES
from relay.config_errors import AddressError
from relay.endpoints import ListenAddress, ip_of
from relay.resolver_address import AUTO, ResolverAddress, with_defaults
from relay.scores import PoolScores, key_of
from relay.ways_out import Proxy, is_local

EARLY: Final = ("device", "country", "known")
"""Sources that are few, and likely to work: what they say of the tunnel says something of it."""


class Listed(Protocol):
    """What is known of one list."""

    @property
    def entries(self) -> int:
        """How many addresses it has."""
        ...


class Store(Protocol):
    """The lists in the state folder, as `relay.lists.store` keeps them."""

    def summary(self) -> Sequence[Listed]:
        """Return what is known of every list."""
        ...

    def bulk(self) -> Iterable[ResolverAddress]:
        """Return the addresses of all lists."""
        ...

    def sample(self, country: str, count: int, rng: random.Random) -> Sequence[ResolverAddress]:
        """Return addresses drawn from the ranges of a country."""
        ...


@dataclass(frozen=True, slots=True)
class Places:
    """Where candidates come from. The functions are asked when their turn comes."""

    device: Callable[[], Iterable[ResolverAddress]]
    domestic: Callable[[str], Iterable[ResolverAddress]]
    well_known: Callable[[], Iterable[ResolverAddress]]
    store: Store | None = None


@dataclass(slots=True)
class Candidates:
    """The candidates of one pool, to be iterated over once."""

    places: Places
    scores: PoolScores
    sources: Sequence[str] = DISCOVERY_SOURCES
    country: str = ""
    sample_ranges: int = 0
    auto: ResolverAddress = AUTO
    """The entry that they stand for: they get its weight and its way out."""
    via: Proxy | None = None
    listens: Sequence[ListenAddress] = ()
    """Where this relay itself listens, in all its pools."""
    taken: Iterable[ResolverAddress] = ()
    """Those that are in the pool already."""
    rng: random.Random = field(default_factory=random.Random)
    early_over: bool = False
    """Whether the saved ones and those of the sources `EARLY` have all been given out."""
    left: int | None = None
    """How many of the long lists are left, at most; None before they have begun."""
    _seen: set[str] = field(default_factory=set)
    _early: set[str] = field(default_factory=set)

    def __iter__(self) -> Iterator[ResolverAddress]:
        """Yield the candidates."""
        self._seen.update(map(key_of, self.taken))
        bad = self.scores.bad()
        later: dict[str, ResolverAddress] = {}
        for address in self._in_order():
            key = key_of(address)
            if key in self._seen:
                continue
            self._seen.add(key)
            if self._is_own(address):
                continue
            if key in bad:
                later[key] = address
            elif (usable := self._dressed(address)) is not None:
                yield usable
        self.early_over = True
        for address in sorted(later.values(), key=self.scores.value, reverse=True):
            if (usable := self._dressed(address)) is not None:
                yield usable

    def is_early(self, address: ResolverAddress) -> bool:
        """Whether an address is a saved one, or one of a source `EARLY`."""
        return key_of(address) in self._early

    def _in_order(self) -> Iterator[ResolverAddress]:
        for address in self.scores.good():
            self._early.add(key_of(address))
            yield address
        for source in self.sources:
            is_early = source in EARLY
            if not is_early:
                self.early_over = True
            if source == "lists" and self.places.store:
                self.left = sum(each.entries for each in self.places.store.summary())
            for address in self._of(source):
                if is_early:
                    self._early.add(key_of(address))
                elif self.left:
                    self.left -= 1
                yield address

    def _of(self, source: str) -> Iterable[ResolverAddress]:
        places = self.places
        match source:
            case "device":
                return places.device()
            case "country":
                return places.domestic(self.country)
            case "known":
                return places.well_known()
            case "ranges" if self.sample_ranges and self.country and places.store:
                return places.store.sample(self.country, self.sample_ranges, self.rng)
            case "lists" if places.store:
                return places.store.bulk()
            case _:
                return ()

    def _dressed(self, address: ResolverAddress) -> ResolverAddress | None:
        """Return an address with the pool's way out; None where it cannot go that way."""
        try:
            weighted = replace(address, weight=self.auto.weight)
            return with_defaults(weighted, self.via, self.auto.bind)
        except AddressError:
            return None

    def _is_own(self, address: ResolverAddress) -> bool:
        return any(is_own(address, listen) for listen in self.listens)


def is_own(address: ResolverAddress, listen: ListenAddress) -> bool:
    """Whether asking `address` brings the question to this relay, which listens at `listen`."""
    if address.port != listen.port or address.proxy:
        return False
    ours = ip_of(listen.host)
    if ours is None:
        return False
    for host in address.pins or (address.host,):
        theirs = ip_of(host)
        if theirs == ours:
            return True
        if theirs and ours.is_unspecified and theirs.version == ours.version and is_local(host):
            return True
    return False
