"""Which resolvers each pool asks, in which slot of the board, and which worker keeps each of them.

Owner: the supervisor. A resolver that is configured by address is in the roster from the start; one
that is configured by name joins when the name is resolved, in the background and again now and
then.

Invariants: a slot belongs to one (pool, address) at a time. A slot that became free rests for
QUIET_S and is cleared before its next tenant, so that no worker writes into it what it knew of the
last one. The keeper of a slot is its home worker (slot modulo workers) while that lives; otherwise
the slots of the missing one are dealt out among the living. So a death moves the dead worker's
slots only, and its successor gets the same ones back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from relay.device_resolvers import device_resolvers
from relay.endpoints import ListenAddress
from relay.resolver_address import ResolverAddress, loops_back
from shared import layout
from shared.board import MAX_SLOTS, Board
from shared.errors import RelayError
from workers.settings import ResolverEntry

DEFAULT_SLOTS: Final = 4096
QUIET_S: Final = 60.0
"""How long a free slot rests: longer than any query lasts and any roster message takes."""

REFRESH_S: Final = 300.0
"""How long a resolved name counts before it is asked again."""

FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 60.0
LOOKUPS_AT_ONCE: Final = 8

log = logging.getLogger(__name__)

Lookup = Callable[[ResolverAddress], "asyncio.Future[list[str]]"]
"""Resolves a resolver's name to addresses, the best first."""


class RosterError(RelayError):
    """There is no slot for another resolver."""


@dataclass(slots=True)
class Member:
    """One configured resolver of a pool."""

    address: ResolverAddress
    entry: ResolverEntry | None = None
    """What the workers are told; None while its name has no address yet."""
    fault: str = ""
    """Why there is no entry, or why the last look at the name failed."""
    retry_s: float = 0.0
    due_at: float = 0.0
    """When a name is looked up next."""


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

    def give_back(self, slot: int, now: float) -> None:
        """Let a slot rest that no roster holds any more."""
        self._resting.append((now + self.quiet_s, slot))


class Roster:
    """The resolvers of all pools. Pools are given by their index."""

    def __init__(self, board: Board, listens: Sequence[ListenAddress]) -> None:
        self._board = board
        self._listens = tuple(listens)
        self._slots = Slots(board)
        self._living: tuple[int, ...] = tuple(range(board.at.workers))
        self._woken = asyncio.Event()
        self._taken: list[set[tuple[str, str, int]]] = [set() for _ in listens]
        self.pools: list[list[Member]] = [[] for _ in listens]

    def set_resolvers(self, pool: int, wanted: Iterable[ResolverAddress], now: float) -> bool:
        """Let a pool have the resolvers `wanted`, in this order; True where its roster changed.

        `auto` stands for the resolvers of this device. A resolver that stays keeps its slot. One
        for which there is no slot is left out, with a report.
        """
        before = self.entries(pool)
        known = {member.address: member for member in self.pools[pool]}
        members = []
        for address in self._expanded(wanted):
            members.append(known.pop(address) if address in known else Member(address))
        for gone in known.values():
            self._drop_entry(pool, gone, now)
        self.pools[pool] = members
        for member in self.pools[pool]:
            if member.entry is None and not member.address.is_name:
                self._set_host(pool, member, member.address.host, now)
        self._woken.set()
        return self.entries(pool) != before

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

    async def watch_names(
        self, changed: Callable[[int], None], lookup: Lookup | None = None
    ) -> None:
        """Look names up for ever and call `changed` with the pools whose roster that changes."""
        look_up = lookup or look_up_in_thread
        running: set[asyncio.Task[None]] = set()
        gate = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def one(pool: int, member: Member) -> None:
            async with gate:
                try:
                    hosts = await look_up(member.address)
                    problem = ""
                except OSError as error:
                    hosts, problem = [], error.strerror or str(error)
            if self._take_answer(pool, member, hosts, problem, time.monotonic()):
                changed(pool)

        while True:
            self._woken.clear()
            now = time.monotonic()
            next_at = now + REFRESH_S
            for pool, members in enumerate(self.pools):
                for member in members:
                    if not member.address.is_name:
                        continue
                    if member.due_at <= now:
                        # Its own answer sets the next time; this one is for the loop's sake.
                        member.due_at = now + REFRESH_S
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

    def _expanded(self, wanted: Iterable[ResolverAddress]) -> list[ResolverAddress]:
        found: dict[ResolverAddress, None] = {}
        for address in wanted:
            for each in device_resolvers() if address.is_auto else (address,):
                if self._is_own(each):
                    log.warning("%s is left out: the relay itself listens there", each)
                else:
                    found[each] = None
        return list(found)

    def _is_own(self, address: ResolverAddress) -> bool:
        return any(loops_back(address, listen) for listen in self._listens)

    def _take_answer(
        self, pool: int, member: Member, hosts: list[str], problem: str, now: float
    ) -> bool:
        """Take what a name was resolved to; True where the roster changed."""
        if not any(member is each for each in self.pools[pool]):
            return False
        self._woken.set()
        hosts = [h for h in hosts if not self._is_own(replace(member.address, host=h))]
        if not hosts and not problem:
            problem = "the name has no usable address"
        if problem:
            member.retry_s = min(LONGEST_RETRY_S, member.retry_s * 2 or FIRST_RETRY_S)
            member.due_at = now + member.retry_s
            if member.fault != problem:
                log.warning("%s cannot be resolved: %s", member.address, problem)
            member.fault = problem
            return False
        member.retry_s = 0.0
        member.due_at = now + REFRESH_S
        member.fault = ""
        if member.entry is not None and member.entry.host in hosts:
            return False
        had_entry = member.entry is not None
        self._drop_entry(pool, member, now)
        return self._set_host(pool, member, hosts[0], now) or had_entry

    def _set_host(self, pool: int, member: Member, host: str, now: float) -> bool:
        address = member.address
        place = (address.scheme, host, address.port)
        if place in self._taken[pool]:
            member.fault = f"{host} is in the pool already"
            return False
        try:
            slot = self._slots.take(now)
        except RosterError as error:
            if member.fault != str(error):
                log.error("%s is left out: %s", address, error)
            member.fault = str(error)
            return False
        member.fault = ""
        self._taken[pool].add(place)
        member.entry = ResolverEntry(slot, address.scheme, host, address.port, str(address))
        self._write_keepers([slot])
        return True

    def _drop_entry(self, pool: int, member: Member, now: float) -> None:
        entry = member.entry
        if entry is not None:
            self._slots.give_back(entry.slot, now)
            self._taken[pool].discard((entry.scheme, entry.host, entry.port))
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


def look_up_in_thread(address: ResolverAddress) -> asyncio.Future[list[str]]:
    """Resolve a name with the C library, in a daemon thread.

    Not in the loop's pool: a look-up can block for half a minute, and a pool is waited for at exit.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[str]] = loop.create_future()
    kind = socket.SOCK_STREAM if address.scheme == "tcp" else socket.SOCK_DGRAM

    def settle(hosts: list[str], error: OSError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(hosts)
        else:
            future.set_exception(error)

    def work() -> None:
        hosts: list[str] = []
        failure: OSError | None = None
        try:
            rows = socket.getaddrinfo(address.host, address.port, type=kind)
            hosts = list(dict.fromkeys(str(row[4][0]) for row in rows))
        except UnicodeError:
            failure = OSError(0, "not a valid name")
        except OSError as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the relay ended meanwhile, and its loop with it
            loop.call_soon_threadsafe(settle, hosts, failure)

    threading.Thread(target=work, name=f"look-up {address.host}", daemon=True).start()
    return future
