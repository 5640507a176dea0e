"""Those that were let in: how they stand, who is checked again, who has to leave.

Owner: the finder, which tells it when to look. It reads the pool's standings from the board, so it
notices at once who goes down; it changes scores, checks again those whom nobody asked meanwhile,
and drops who is down for long while enough others work. A *fallback* is one that passes all but the
tunnel's check; it is there for want of better, and leaves when somebody passes.

Invariants: whoever lies, or is this relay itself, leaves at once. While the network of this machine
seems gone no score changes and nobody is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Final

from relay.discovery.blame import Blame
from relay.discovery.members import Found, Pool, all_down, down_for
from relay.discovery.outage import is_answer
from relay.discovery.tally import told
from relay.discovery.verdict import Verdict
from relay.resolver_address import ResolverAddress
from relay.scores import PoolScores
from workers.engine.health import State

RECHECK_S: Final = 5.0
"""The least time between two rounds of checks of those that were let in."""

BLAME_AFTER_S: Final = 5.0
"""How long somebody is down before it lowers his score."""

REPLACE_AFTER_S: Final = 60.0
"""How long somebody is down before he leaves the pool, if enough others work."""

CHECKED_AT_ONCE: Final = 4

Check = Callable[[ResolverAddress], Awaitable[Verdict]]

log = logging.getLogger(__name__)


class Keeping:
    """Those of one pool that were let in. `check` is quick; `measure` finds out the sizes as well.

    `passed` is told which fallbacks pass now, `dropped` who had to leave; both are called once the
    pool knows.
    """

    def __init__(
        self,
        name: str,
        pool: Pool,
        scores: PoolScores,
        blame: Blame,
        check: Check,
        measure: Check,
        *,
        passed: Callable[[Sequence[ResolverAddress]], None],
        dropped: Callable[[Sequence[ResolverAddress]], None],
        now: Callable[[], float],
    ) -> None:
        self.found: dict[ResolverAddress, Found] = {}
        self._name = name
        self._pool = pool
        self._scores = scores
        self._blame = blame
        self._check = check
        self._measure = measure
        self._passed = passed
        self._dropped = dropped
        self._now = now
        self._measuring = asyncio.Semaphore(CHECKED_AT_ONCE)
        self._rechecked_at = -math.inf
        self._tasks: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Give up the checks that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- who is in ------------------------------------------------------------------------------

    @property
    def is_on_fallback(self) -> bool:
        """Whether there are fallbacks."""
        return any(found.is_fallback for found in self.found.values())

    @property
    def proven(self) -> list[ResolverAddress]:
        """Those that passed every check when they were let in."""
        return [address for address, found in self.found.items() if not found.is_fallback]

    def working(self) -> int:
        """Return how many resolvers of the pool work, as far as is known.

        One that was named in the configuration was never checked: it counts once it has answered.
        """
        count = 0
        for standing in self._pool.standings():
            found = self.found.get(standing.address)
            if found is None:
                count += standing.state in (State.IN_USE, State.ASIDE)
            else:
                count += standing.state is not State.DOWN and not (found.fault or found.is_fallback)
        return count

    def faults(self) -> dict[ResolverAddress, str]:
        """Return who failed the last check, and why, in the relay's own words."""
        faults = {address: found.fault for address, found in self.found.items()}
        return {address: fault for address, fault in faults.items() if fault}

    def by_standing(self) -> list[ResolverAddress]:
        """Return all, those that are not down first."""
        states = {each.address: each.state for each in self._pool.standings()}
        return sorted(self.found, key=lambda each: states.get(each) is State.DOWN)

    def let_in(self, addresses: Sequence[ResolverAddress], most: int) -> None:
        """Let those in who passed; fallbacks leave, and of many the longest down."""
        kept = {address: self.found[address] for address in self.proven}
        self.found = kept | {address: Found() for address in addresses}
        if (too_many := len(self.found) - most) > 0:
            for address in down_for(self.found, self._now(), 0.0)[:too_many]:
                del self.found[address]
        self._tell_pool()
        for address in addresses:
            self._spawn(self._measure_sizes(address))

    def fall_back_on(self, verdicts: Iterable[Verdict]) -> None:
        """Let those in who fail at the tunnel alone."""
        for verdict in verdicts:
            self.found[verdict.address] = Found(is_fallback=True, fault=told(verdict))
        self._tell_pool()

    def drop(self, addresses: Sequence[ResolverAddress]) -> None:
        """Let the pool go without these; it may have had none of them."""
        gone = [address for address in addresses if self.found.pop(address, None)]
        for address in gone:
            log.info("%s: %s leaves the pool", self._name, address.shown)
        if gone:
            self._tell_pool()
            self._dropped(gone)

    # -- how they stand -------------------------------------------------------------------------

    def notice(self) -> None:
        """Take note of who went down and who came back."""
        now = self._now()
        standings = self._pool.standings()
        someone_went = False
        for standing in standings:
            found = self.found.get(standing.address)
            if found is None or found.is_fallback:
                continue
            if standing.state is State.DOWN:
                if found.down_at is None:
                    found.down_at = now
                    someone_went = True
            else:
                found.is_blamed = False
                if standing.answered > found.answered:
                    found.fault = ""
                if not found.fault:
                    found.down_at = None
        if someone_went and now - self._rechecked_at >= RECHECK_S:
            # Seldom one alone. The pool notices only of those that it asks much.
            up = [each.address for each in standings if each.state is not State.DOWN]
            self.check_again([address for address in up if address in self.found])

    def look(self, want: int, *, is_out: bool) -> None:
        """Change scores, ask whom nobody asked meanwhile, drop who is down for long.

        `is_out`: this machine's network seems gone.
        """
        standings = self._pool.standings()
        is_outage = is_out or all_down(standings)
        idle = []
        for standing in standings:
            found = self.found.get(standing.address)
            if found is None:
                continue
            answered = standing.answered > found.answered
            found.answered = standing.answered
            if found.is_fallback or not (answered or standing.state is State.DOWN):
                idle.append(standing.address)
            elif standing.state is not State.DOWN:
                self._scores.answered(standing.address)
            elif not is_outage:
                self._lower(standing.address, found)
        self.check_again(idle)
        if not is_outage and self.working() >= want:
            self.drop(down_for(self.found, self._now(), REPLACE_AFTER_S))

    def _lower(self, address: ResolverAddress, found: Found) -> None:
        """Lower the score of somebody who is down while others work.

        Not at once: in an outage of this machine they go down one after the other.
        """
        if found.is_blamed:
            self._scores.stays_down(address)
        elif found.down_at is not None and self._now() - found.down_at >= BLAME_AFTER_S:
            self._scores.went_down(address)
            found.is_blamed = True

    # -- checks ---------------------------------------------------------------------------------

    def check_again(self, addresses: Sequence[ResolverAddress]) -> None:
        """Check some of them now."""
        if addresses:
            self._rechecked_at = self._now()
            self._spawn(self._check_all(addresses))

    def take(self, verdict: Verdict) -> None:
        """Take what a check found out about somebody who was let in."""
        found = self.found.get(verdict.address)
        if found is None or verdict.local_fault:
            return
        if verdict.honest is False or verdict.is_self:
            log.warning("%s: %s lies: it leaves the pool", self._name, verdict.address.shown)
            self.drop([verdict.address])
            return
        found.fault = "" if verdict.passed else told(verdict)
        if found.fault and found.down_at is None:
            found.down_at = self._now()

    async def _check_all(self, addresses: Sequence[ResolverAddress]) -> None:
        """Check some of them. Where nobody answers it says nothing of them."""
        gate = asyncio.Semaphore(CHECKED_AT_ONCE)

        async def one(address: ResolverAddress) -> Verdict:
            async with gate:
                return await self._check(address)

        verdicts = await asyncio.gather(*map(one, addresses))
        someone_answered = any(map(is_answer, verdicts))
        self._blame.hear_members(verdicts)
        fit = []
        for verdict in verdicts:
            found = self.found.get(verdict.address)
            if found is None:
                continue
            if not found.is_fallback:
                self.take(verdict)
                if someone_answered and not verdict.passed:
                    self._blame.score(verdict)
            elif verdict.passed:
                self._blame.score(verdict)
                fit.append(verdict.address)
        self._passed(fit)

    async def _measure_sizes(self, address: ResolverAddress) -> None:
        async with self._measuring:
            verdict = await self._measure(address)
        if address not in self.found:
            return
        if not verdict.passed:
            self.take(verdict)
            return
        before = self._scores.sizes(address)
        self._scores.measured(verdict)
        if self._scores.sizes(address) != before:
            self._tell_pool()

    # -- helpers --------------------------------------------------------------------------------

    def _tell_pool(self) -> None:
        self._pool.let_in(list(self.found))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
