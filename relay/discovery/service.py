"""Discovery in a running relay: a finder for every pool with `auto`, the scores, the network watch.

Owner: the supervisor. It knows the roster and the board, which the finders do not. Invariant: what
it does beside the finders (saving scores, watching the network) never ends the relay: without a
state file scores are kept in memory, without a network the finders wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relay.config import Config, PoolConfig
from relay.endpoints import ListenAddress
from relay.resolver_address import ResolverAddress
from relay.roster import Roster
from relay.scores import PoolScores, Scores, pool_key
from relay.state_file import StateFile
from shared import layout
from shared.board import Board
from shared.own_question import OwnQuestion
from workers.engine.health import State

if TYPE_CHECKING:
    from relay.discovery.candidates import Candidates
    from relay.discovery.checks import Checker
    from relay.discovery.finder import Finder
    from relay.discovery.members import Standing
    from relay.discovery.verdict import Verdict

READY_LIMIT_S: Final = 10.0
"""How long the relay waits for somebody who passes before it says that it is ready all the same."""

SAVE_S: Final = 10.0
RESTART_S: Final = 5.0

Lookup = Callable[[int, ResolverAddress, int], Awaitable[list[str]]]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Search:
    """The search of one pool."""

    auto: ResolverAddress
    finder: Finder
    checks: _Checks
    task: asyncio.Task[None]


class Discovery:
    """Finds the resolvers of all pools that have `auto`. `changed` is told whose roster did."""

    def __init__(
        self,
        config: Config,
        listens: Sequence[ListenAddress],
        own: OwnQuestion,
        look_up: Lookup,
        changed: Callable[[int], None],
    ) -> None:
        self._config = config
        self._listens = tuple(listens)
        self._own = own
        self._look_up = look_up
        self._changed = changed
        self._scores = Scores(StateFile(config.state))
        self._searches: dict[int, _Search] = {}
        self._background: list[asyncio.Task[None]] = []
        self._started_at = time.monotonic()
        self._board: Board
        self._roster: Roster

    def sizes(self, pool: int, address: ResolverAddress) -> tuple[int, int]:
        """Return the longest name and the largest reply known of a resolver; 0 is not known."""
        return self._scores.pool(key_of_pool(self._config.pools[pool])).sizes(address)

    def start(self, board: Board, roster: Roster) -> None:
        """Begin to search."""
        self._board, self._roster = board, roster
        self._started_at = time.monotonic()
        self._search_as_configured()

    def reconfigure(self, config: Config) -> None:
        """Search for the pools of another configuration, which differs in resolvers alone."""
        self._config = config
        self._search_as_configured()

    async def stop(self) -> None:
        """End every search and save the scores."""
        # All at once: while one ends, the others would keep the loop busy.
        searches, self._searches = list(self._searches.values()), {}
        for task in (*self._background, *(search.task for search in searches)):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.gather(*map(self._end, searches))
        self._scores.save()

    async def first_pass(self) -> None:
        """Return when every pool has somebody to ask, or has waited long enough."""
        for pool, search in list(self._searches.items()):
            if self._roster.entries(pool):
                continue
            left_s = self._started_at + READY_LIMIT_S - time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    await search.finder.first.wait()
            except TimeoutError:
                why = "nobody has passed the checks yet; the search goes on"
                if search.finder.has_nobody:
                    why = "ready all the same, with nobody to ask"
                log.warning("%s: %s", self._config.pools[pool].name, why)

    def status(self, pool: int) -> dict[str, Any] | None:
        """Return what `/status` shows of the search of a pool; None where there is none."""
        search = self._searches.get(pool)
        return search.finder.status() if search else None

    def faults(self, pool: int) -> dict[ResolverAddress, str]:
        """Return which of those that were found for a pool failed the last check, and why."""
        search = self._searches.get(pool)
        return search.finder.keeping.faults() if search else {}

    # -- steps ----------------------------------------------------------------------------------

    def _search_as_configured(self) -> None:
        for index, pool in enumerate(self._config.pools):
            auto = next((each for each in pool.resolvers if each.is_auto), None)
            search = self._searches.get(index)
            if search is not None and search.auto != auto:
                del self._searches[index]
                self._background.append(asyncio.ensure_future(self._end(search)))
                search = None
                self._let_in(index, ())
            if search is None and auto is not None:
                self._searches[index] = self._begin(index, pool, auto)
        if self._searches and not self._background:
            from relay.discovery.network_watch import watch

            for work in (watch(self._network_changed), self._save()):
                self._background.append(asyncio.ensure_future(work))

    def _begin(self, index: int, pool: PoolConfig, auto: ResolverAddress) -> _Search:
        # Slow to import; where nothing is searched for, nobody needs it.
        from relay.discovery.finder import Finder

        checks = _Checks(pool, self._own, lambda address: self._look_up(index, address, 0))
        scores = self._scores.pool(key_of_pool(pool))
        finder = Finder(
            pool.name,
            _Pool(self, index),
            scores,
            lambda taken: self._candidates(index, auto, taken),
            checks.quick,
            checks.thorough,
            probe=checks.plain,
            want=pool.discovery.want,
            concurrency=pool.discovery.concurrency,
            pace_s=pool.discovery.pace_s,
        )
        task = asyncio.ensure_future(_kept_running(pool.name, finder))
        return _Search(auto, finder, checks, task)

    async def _end(self, search: _Search) -> None:
        search.task.cancel()
        await asyncio.gather(search.task, return_exceptions=True)
        await search.checks.aclose()

    def _candidates(
        self, index: int, auto: ResolverAddress, taken: Iterable[ResolverAddress]
    ) -> Candidates:
        pool = self._config.pools[index]
        named = (each for each in pool.resolvers if not each.is_auto)
        return candidates_of(
            pool,
            self._config.state,
            self._scores.pool(key_of_pool(pool)),
            auto,
            self._listens,
            (*named, *taken),
        )

    def _let_in(self, pool: int, addresses: Sequence[ResolverAddress]) -> None:
        if self._roster.set_found(pool, addresses, time.monotonic()):
            self._changed(pool)

    def _standings(self, pool: int) -> list[Standing]:
        from relay.discovery.members import Standing

        words, at = self._board.words, self._board.at
        found = []
        for member in self._roster.pools[pool]:
            state, answered = State.FRESH if member.is_found else State.DOWN, 0
            if member.entry is not None:
                slot = member.entry.slot
                state = State(words[at.resolver(slot) + layout.RESOLVER_STATE])
                answered = self._board.counter_total(slot, layout.COUNTER_ANSWERED)
            found.append(Standing(member.address, state, answered))
        return found

    def _network_changed(self, what: str) -> None:
        log.info("%s: resolvers are checked again", what)
        for search in self._searches.values():
            search.finder.network_changed()

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            if self._scores.changed:
                # In a thread: a slow disk holds up nobody.
                self._scores.adopt(await asyncio.to_thread(self._scores.snapshot()))


@dataclass(frozen=True, slots=True)
class _Pool:
    """A pool, as its finder sees it."""

    discovery: Discovery
    index: int

    def standings(self) -> list[Standing]:
        return self.discovery._standings(self.index)

    def let_in(self, addresses: Sequence[ResolverAddress]) -> None:
        self.discovery._let_in(self.index, addresses)


@dataclass(slots=True)
class _Checks:
    """The checks of one pool: a checker for every time that answers are waited for."""

    pool: PoolConfig
    own: OwnQuestion
    look_up: Callable[[ResolverAddress], Awaitable[list[str]]]
    checkers: dict[float, Checker] = field(default_factory=dict)

    async def plain(self, address: ResolverAddress, timeout_s: float) -> Verdict:
        return await self._checker(timeout_s).probe(address)

    async def quick(self, address: ResolverAddress, timeout_s: float) -> Verdict:
        return await self._checker(timeout_s).check(address, thorough=False)

    async def thorough(self, address: ResolverAddress, timeout_s: float) -> Verdict:
        return await self._checker(timeout_s).check(address, thorough=True)

    async def aclose(self) -> None:
        for checker in self.checkers.values():
            await checker.aclose()

    def _checker(self, timeout_s: float) -> Checker:
        from relay.discovery.checks import Checker

        made = self.checkers.get(timeout_s)
        if made is None:
            made = Checker(check_plan(self.pool, self.own, timeout_s), self.look_up)
            self.checkers[timeout_s] = made
        return made


def candidates_of(
    pool: PoolConfig,
    state: Path,
    scores: PoolScores,
    auto: ResolverAddress,
    listens: Sequence[ListenAddress],
    taken: Iterable[ResolverAddress],
) -> Candidates:
    """Return what `auto`, an entry of the pool, stands for beside those that are `taken`."""
    from relay.discovery.candidates import Candidates, Places
    from relay.discovery.device import device_resolvers
    from relay.lists.store import ListStore
    from relay.lists.tables import domestic, well_known
    from relay.state_path import lists_folder

    settings = pool.discovery
    return Candidates(
        Places(device_resolvers, domestic, well_known, ListStore(lists_folder(state))),
        scores,
        sources=settings.sources,
        country=settings.country or "",
        sample_ranges=settings.sample_ranges,
        auto=auto,
        via=pool.via,
        listens=listens,
        taken=taken,
    )


def check_plan(pool: PoolConfig, own: OwnQuestion, timeout_s: float) -> Any:
    """Return how candidates of a pool are checked."""
    from relay.discovery.check_sizes import DEFAULT_SIZE_QUESTIONS
    from relay.discovery.checks import CheckPlan

    return CheckPlan(
        names=pool.pretest_domains,
        tunnel=pool.tunnel,
        domain=pool.domain,
        record_type=pool.record_type,
        command=pool.discovery.check_command,
        size_questions=pool.discovery.size_questions or DEFAULT_SIZE_QUESTIONS,
        timeout_s=timeout_s,
        own=own,
    )


async def _kept_running(name: str, finder: Finder) -> None:
    while True:
        try:
            await finder.run()
        except Exception:
            log.exception("%s: the search failed and begins again", name)
            await asyncio.sleep(RESTART_S)


def key_of_pool(pool: PoolConfig) -> str:
    """Return what the scores of a pool are filed under."""
    return pool_key(pool.tunnel, pool.record_type, pool.name)
