"""Which resolvers each pool asks, in which slot of the board, and which worker keeps each of them.

Owner: the supervisor. A resolver that is configured by address is in the roster from the start; in
the place of `auto` stand those that discovery has found so far. One that is given by name joins
when the name is resolved, in the background. The name is looked up again now and then, and soon
while the resolver cannot be reached; as long as the address in use is among the answers, nothing
changes for the workers.

Invariants: a slot belongs to one (pool, address) at a time. A slot that became free rests for
QUIET_S and is cleared before its next tenant, so that no worker writes into it what it knew of the
last one. The keeper of a slot is its home worker (slot modulo workers) while that lives; otherwise
the slots of the missing one are dealt out among the living. So a death moves the dead worker's
slots only, and its successor gets the same ones back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from relay.endpoints import ListenAddress
from relay.resolver_address import ResolverAddress, loops_back
from shared import layout
from shared.board import MAX_SLOTS, Board
from shared.errors import RelayError
from workers.engine.health import State
from workers.settings import ResolverEntry

DEFAULT_SLOTS: Final = 4096
QUIET_S: Final = 60.0
"""How long a free slot rests: longer than any query lasts and any roster message takes."""

REFRESH_S: Final = 300.0
"""How long a resolved name counts before it is asked again."""

FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 60.0

AGAIN_S: Final = 5.0
"""How soon after its last look-up the name of a resolver that cannot be reached is asked again. It
doubles up to LONGEST_RETRY_S while that does not help."""

LOOKUPS_AT_ONCE: Final = 32
"""More than there are names in most pools: one that takes its whole time holds up no other."""

log = logging.getLogger(__name__)

Lookup = Callable[[int, ResolverAddress, int], Awaitable[list[str]]]
"""Resolves the name that a resolver of a pool needs to addresses, the best first. The last argument
counts how often that was in vain. Raises RelayError."""

Sizes = Callable[[int, ResolverAddress], tuple[int, int]]
"""Returns the longest name and the largest reply that a resolver is known to let through for a
pool; 0 is not known."""


class RosterError(RelayError):
    """There is no slot for another resolver."""


@dataclass(slots=True)
class Member:
    """One configured resolver of a pool."""

    address: ResolverAddress
    entry: ResolverEntry | None = None
    """What the workers are told; None while its name has no address yet."""
    hosts: tuple[str, ...] = ()
    """What its name was resolved to for the entry, the address in use first."""
    fault: str = ""
    """Why there is no entry, or why the last look at the name failed."""
    retry_s: float = 0.0
    due_at: float = 0.0
    """When a name is looked up next."""
    asked_at: float = 0.0
    unreachable: bool = False
    """Whether it is looked up sooner because nobody can reach it."""
    in_vain: int = 0
    """Look-ups since it was last fine."""
    is_found: bool = False
    """Whether it is one of those that `auto` stands for."""
    name: str = field(init=False)
    """What has to be looked up, if anything; kept because every member is looked through often."""

    def __post_init__(self) -> None:
        self.name = self.address.unresolved


@dataclass(slots=True)
class Slots:
    """The slots of a board: which are free, and since when."""

    board: Board
    quiet_s: float = QUIET_S
    _unused: int = 0
    _resting: deque[tuple[float, int]] = field(default_factory=deque)

    def take(self, now: float) -> int:
        """Return a clean slot. Raises RosterError where none is free and rested."""
        if self._unused < self.board.at.slots:
            self._unused += 1
            return self._unused - 1
        if self._resting and self._resting[0][0] <= now:
            slot = self._resting.popleft()[1]
            self.board.clear_slot(slot)
            return slot
        raise RosterError(f"all {self.board.at.slots:,} slots for resolvers are in use")

    @property
    def next_at(self) -> float:
        """When the next slot has rested; infinity where none does."""
        return self._resting[0][0] if self._resting else inf

    def give_back(self, slot: int, now: float) -> None:
        """Let a slot rest that no roster holds any more."""
        self._resting.append((now + self.quiet_s, slot))


class Roster:
    """The resolvers of all pools. Pools are given by their index."""

    def __init__(
        self,
        board: Board,
        listens: Sequence[ListenAddress],
        sizes: Sizes = lambda _pool, _address: (0, 0),
    ) -> None:
        self._board = board
        self._listens = tuple(listens)
        self._sizes = sizes
        self._wanted: list[tuple[ResolverAddress, ...]] = [() for _ in listens]
        self._found: list[tuple[ResolverAddress, ...]] = [() for _ in listens]
        self._slots = Slots(board)
        self._living: tuple[int, ...] = tuple(range(board.at.workers))
        self._woken = asyncio.Event()
        self._taken: list[dict[tuple[object, ...], str]] = [{} for _ in listens]
        """Who has what no two have in common, as a person is shown it."""
        self._left_out: set[int] = set()
        """Pools with members for whom there was no slot."""
        self.pools: list[list[Member]] = [[] for _ in listens]

    def set_resolvers(self, pool: int, wanted: Iterable[ResolverAddress], now: float) -> bool:
        """Let a pool have the resolvers `wanted`, in this order; True where its roster changed.

        `auto` stands for what `set_found` says. A resolver that stays keeps its slot. One for
        which there is no slot is left out, with a report, until one is free (`watch_names`).
        """
        self._wanted[pool] = tuple(wanted)
        return self._rebuild(pool, now)

    def set_found(self, pool: int, found: Iterable[ResolverAddress], now: float) -> bool:
        """Let `auto` of a pool stand for `found`; True where its roster changed.

        What is known of the sizes that its resolvers let through is taken up, too.
        """
        self._found[pool] = tuple(found)
        return self._rebuild(pool, now)

    def entries(self, pool: int) -> list[ResolverEntry]:
        """Return the roster of a pool as its workers get it."""
        return [member.entry for member in self.pools[pool] if member.entry is not None]

    def hand_over(self, living: Sequence[int]) -> None:
        """Let the workers `living` keep all resolvers; nothing changes where there is none."""
        if not living:
            return
        self._living = tuple(living)
        self._write_keepers(
            entry.slot for pool in range(len(self.pools)) for entry in self.entries(pool)
        )

    def look_after(self, faulty: Container[int], now: float) -> None:
        """See to the names of resolvers that are down, or whose slots workers call `faulty`.

        They are looked up soon, in case the address has changed.
        """
        words, at = self._board.words, self._board.at
        for members in self.pools:
            for member in members:
                entry = member.entry
                if entry is None or not member.name:
                    continue
                state = words[at.resolver(entry.slot) + layout.RESOLVER_STATE]
                unreachable = entry.slot in faulty or state == State.DOWN
                if unreachable and not member.unreachable:
                    member.retry_s = max(member.retry_s, AGAIN_S)
                    soon = max(now, member.asked_at + member.retry_s)
                    member.due_at = min(member.due_at, soon)
                    self._woken.set()
                member.unreachable = unreachable

    async def watch_names(self, changed: Callable[[int], None], look_up: Lookup) -> None:
        """Look names up for ever and call `changed` with the pools whose roster that changes.

        Whoever was left out for want of a slot joins as slots become free.
        """
        running: set[asyncio.Task[None]] = set()
        gate = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def one(pool: int, member: Member) -> None:
            async with gate:
                hosts, problem = [], ""
                try:
                    hosts = await look_up(pool, member.address, member.in_vain)
                except RelayError as error:
                    problem = str(error)
            if self._take_answer(pool, member, hosts, problem, time.monotonic()):
                changed(pool)

        while True:
            self._woken.clear()
            now = time.monotonic()
            if self._left_out and self._slots.next_at <= now:
                for pool in self._take_left_out(now):
                    changed(pool)
            next_at = now + REFRESH_S
            if self._left_out:
                next_at = min(next_at, self._slots.next_at)
            for pool, members in enumerate(self.pools):
                for member in members:
                    if not member.name:
                        continue
                    if member.due_at <= now:
                        # Its own answer sets the next time; this one is for the loop's sake.
                        member.due_at = now + REFRESH_S
                        member.asked_at = now
                        task = asyncio.ensure_future(one(pool, member))
                        running.add(task)
                        task.add_done_callback(running.discard)
                    next_at = min(next_at, member.due_at)
            try:
                async with asyncio.timeout(max(0.0, next_at - now)):
                    await self._woken.wait()
            except TimeoutError:
                pass
            except asyncio.CancelledError:
                for task in running:
                    task.cancel()
                raise

    # -- steps ----------------------------------------------------------------------------------

    def _take_left_out(self, now: float) -> list[int]:
        """Let in those for whom there are slots now; return the pools whose roster that changed."""
        pools = sorted(self._left_out)
        self._left_out.clear()
        return [pool for pool in pools if self._rebuild(pool, now)]

    def _rebuild(self, pool: int, now: float) -> bool:
        before = self.entries(pool)
        known = {member.address: member for member in self.pools[pool]}
        members = []
        for address, is_found in self._expanded(pool).items():
            member = known.pop(address) if address in known else Member(address)
            member.is_found = is_found
            members.append(member)
        for gone in known.values():
            self._drop_entry(pool, gone, now)
        self.pools[pool] = members
        for member in self.pools[pool]:
            address = member.address
            if member.entry is None and not member.name:
                self._join(pool, member, address.pins or (address.host,), now)
            elif member.entry is None:
                member.due_at = now  # whoever asks for it now has perhaps mended what was wrong
            else:
                member.entry = self._sized(pool, address, member.entry)
        self._woken.set()
        return self.entries(pool) != before

    def _expanded(self, pool: int) -> dict[ResolverAddress, bool]:
        """Return the resolvers of a pool, and whether `auto` stands for each."""
        expanded: dict[ResolverAddress, bool] = {}
        named = {address for address in self._wanted[pool] if not address.is_auto}
        for address in self._wanted[pool]:
            found = self._found[pool] if address.is_auto else (address,)
            for each in found:
                if self._is_own(each):
                    log.warning("%s is left out: the relay itself listens there", each)
                else:
                    expanded[each] = each not in named
        return expanded

    def _sized(self, pool: int, address: ResolverAddress, entry: ResolverEntry) -> ResolverEntry:
        longest_name, largest_reply = self._sizes(pool, address)
        if (entry.longest_name, entry.largest_reply) == (longest_name, largest_reply):
            return entry
        return replace(entry, longest_name=longest_name, largest_reply=largest_reply)

    def _is_own(self, address: ResolverAddress) -> bool:
        return any(loops_back(address, listen) for listen in self._listens)

    def _take_answer(
        self, pool: int, member: Member, hosts: list[str], problem: str, now: float
    ) -> bool:
        """Take what a name was resolved to; True where the roster changed."""
        if not any(member is each for each in self.pools[pool]):
            return False
        self._woken.set()
        address = member.address
        if not address.proxy:
            hosts = [h for h in hosts if not self._is_own(replace(address, host=h))]
        if not hosts and not problem:
            problem = "the name has no usable address"
        if problem or member.unreachable:
            member.retry_s = min(LONGEST_RETRY_S, member.retry_s * 2 or FIRST_RETRY_S)
            member.due_at = now + member.retry_s
            member.in_vain += 1
        else:
            member.retry_s, member.in_vain = 0.0, 0
            member.due_at = now + REFRESH_S
        if problem:
            if member.fault != problem:
                log.warning("%s cannot be resolved: %s", address, problem)
            member.fault = problem
            return False
        member.fault = ""
        had_entry = member.entry is not None
        if member.entry is not None and member.hosts[0] in hosts:
            if not self._may_move(member, hosts):
                return False
            following = hosts.index(member.hosts[0]) + 1
            hosts = hosts[following:] + hosts[:following]
        self._drop_entry(pool, member, now)
        return self._join(pool, member, hosts, now) or had_entry

    def _may_move(self, member: Member, hosts: Sequence[str]) -> bool:
        """Whether another of `hosts` is to be tried although the one in use is among them.

        That is so where nobody can reach it. The addresses that workers know of for a stream they
        try in turn by themselves.
        """
        if not member.unreachable or len(hosts) < 2:
            return False
        knows_one = member.address.scheme == "udp" or member.address.proxy is not None
        return knows_one or not set(member.hosts).issuperset(hosts)

    def _join(self, pool: int, member: Member, hosts: Sequence[str], now: float) -> bool:
        """Let a member in under the first of `hosts` that nobody else of the pool has."""
        address = member.address
        taken = self._taken[pool]
        turns = ((*hosts[first:], *hosts[:first]) for first in range(len(hosts)))
        found = next((turn for turn in turns if _place(address, turn[0]) not in taken), None)
        if found is None:
            other = taken[_place(address, hosts[0])]
            member.fault = f"{hosts[0]} is in the pool already, as {other}"
            return False
        try:
            slot = self._slots.take(now)
        except RosterError as error:
            self._left_out.add(pool)
            if member.fault != str(error):
                log.error("%s is left out: %s", address, error)
            member.fault = str(error)
            return False
        member.fault = ""
        member.hosts = found
        member.entry = self._sized(pool, address, entry_of(slot, address, found))
        taken[_place(address, found[0])] = address.shown
        self._write_keepers([slot])
        return True

    def _drop_entry(self, pool: int, member: Member, now: float) -> None:
        entry = member.entry
        if entry is not None:
            self._slots.give_back(entry.slot, now)
            self._taken[pool].pop(_place(member.address, member.hosts[0]), None)
            member.entry = None

    def _write_keepers(self, slots: Iterable[int]) -> None:
        words, at = self._board.words, self._board.at
        moved = False
        for slot in slots:
            position = at.resolver(slot) + layout.RESOLVER_KEEPER
            keeper = keeper_of(slot, at.workers, self._living)
            if words[position] != keeper:
                words[position] = keeper
                moved = True
        if moved:
            words[layout.HEADER_KEEPERS_EPOCH] += 1


def slots_for(resolvers: int) -> int:
    """Return how many slots a board needs for that many configured resolvers, with room to move."""
    return min(MAX_SLOTS, max(DEFAULT_SLOTS, 2 * resolvers))


def keeper_of(slot: int, workers: int, living: Sequence[int]) -> int:
    """Return the worker that keeps a slot while `living` (not empty) are there."""
    home = slot % workers
    return home if home in living else living[slot // workers % len(living)]


def entry_of(slot: int, address: ResolverAddress, hosts: Sequence[str]) -> ResolverEntry:
    """Return what the workers are told of a resolver.

    `hosts` are the addresses of the name that it needs (its own, or its proxy's), or its own ones.
    """
    proxy = address.proxy
    via = ""
    if proxy is not None:
        via = proxy.url(hosts[0] if address.unresolved else proxy.host)
        hosts = address.pins or (address.host,)
    server_name = address.server_name
    if address.is_encrypted and not server_name and address.host != hosts[0]:
        server_name = address.host
    return ResolverEntry(
        slot=slot,
        scheme=address.scheme,
        host=hosts[0],
        port=address.port,
        name=address.shown,
        weight=address.weight,
        more_hosts=() if address.scheme == "udp" else tuple(hosts[1:]),
        server_name=server_name,
        ca_file=address.ca_file,
        insecure=address.insecure,
        path=address.path,
        get=address.get,
        via=via,
        bind=address.bind,
    )


def _place(address: ResolverAddress, host: str) -> tuple[object, ...]:
    """Return what no two resolvers of a pool have in common.

    `host` is the address of the name that the resolver needs, or its own one.
    """
    server = (address.server_name or address.host, address.path) if address.is_encrypted else ()
    way = (address.bind, address.proxy, address.host) if address.proxy else (address.bind,)
    return (address.scheme, host, address.port, server, way)
