"""Keeps a pool in resolvers that work: the part of the roster that `auto` stands for.

Owner: the supervisor; there is one finder for every pool with `auto`. Theory of operation: it
always knows which resolvers it let in (`found`) and how many of the pool work. Below `want` it
hunts through the candidates, and lets in whoever passes, at once; at `want` it stops. Every TICK_S
it looks at the board, so a pool that shrank is refilled soon; every LOOK_S it changes scores, asks
those again whom nobody asked meanwhile, and replaces who is down for long. At the end of the
candidates it begins anew, after a wait that grows.

    searching --want work--> enough --fewer work--> searching
    searching --end of the candidates--> waiting --time, or another network--> searching

A resolver that passes everything but the tunnel's own check is no resolver of this pool. But where
that is true of everybody, the tunnel's server is down or the domain wrong, and when it comes up it
will be reached through those: they are let in as a *fallback*, until somebody passes.

Invariants: nobody is let in that lied, or that is this relay itself. While the network of this
machine seems gone no score changes and nobody is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

from relay.discovery.candidates import Candidates
from relay.discovery.hunt import Hunt
from relay.discovery.members import Found, Pool, all_down, down_for
from relay.discovery.outage import is_answer
from relay.discovery.patience import Patience
from relay.discovery.tally import Tally
from relay.discovery.verdict import AT_TUNNEL, Verdict
from relay.resolver_address import ResolverAddress
from relay.scores import PoolScores, key_of
from workers.engine.health import State

TICK_S: Final = 1.0
LOOK_S: Final = 10.0

RECHECK_S: Final = 5.0
"""The least time between two rounds of checks of those that were let in."""

BLAME_AFTER_S: Final = 5.0
"""How long somebody is down before it lowers his score."""

REPLACE_AFTER_S: Final = 60.0
"""How long somebody is down before he leaves the pool, if enough others work."""

FIRST_WAIT_S: Final = 5.0
LONGEST_WAIT_S: Final = 300.0
LONGEST_WAIT_OF_NONE_S: Final = 30.0
"""Between the end of the candidates and the next beginning; where nobody works it is sooner."""

FALLBACK_AFTER: Final = 100
"""Checks after which a fallback is let in where the first sources named nobody."""

REACHED_S: Final = 60.0
"""How long after somebody passed a failure at the tunnel is still blamed on the resolver."""

HONEST_S: Final = 60.0
"""How long after somebody was honest others are blamed for what they answer, or do not. A network
with a portal in it lies and refuses for everybody; that says nothing of them."""

AGAIN_S: Final = 15.0
"""While too few work, the first candidates are asked again so often: a way through the long lists
takes minutes, and what kept these from answering may last seconds."""

MOST_SPARES: Final = 100
MEASURED_AT_ONCE: Final = 4
MOST_SELVES: Final = 50
"""Addresses of the relay itself that are told of."""

Check = Callable[[ResolverAddress, float], Awaitable[Verdict]]
"""Checks an address and waits for each answer so many seconds at most."""

log = logging.getLogger(__name__)


class Phase(StrEnum):
    """What the finder does."""

    SEARCHING = "searching"
    ENOUGH = "enough"
    WAITING = "waiting to start over"


class Finder:
    """Finds the resolvers of one pool. `check` is quick; `measure` finds out the sizes as well.

    `probe` asks no more than a plain question.
    """

    def __init__(
        self,
        name: str,
        pool: Pool,
        scores: PoolScores,
        candidates: Callable[[Iterable[ResolverAddress]], Candidates],
        check: Check,
        measure: Check,
        *,
        probe: Check | None = None,
        want: int = 10,
        concurrency: int = 100,
        pace_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.first = asyncio.Event()
        """Set once anybody was let in."""
        self.found: dict[ResolverAddress, Found] = {}
        self.phase = Phase.SEARCHING
        self._name = name
        self._pool = pool
        self._scores = scores
        self._make_candidates = candidates
        self._check = check
        self._measure = measure
        self._ask_plainly = probe or check
        self._want = want
        self._now = now
        self._patience = Patience()
        self._hunt = Hunt(
            self._check_candidate,
            probe=self._probe,
            concurrency=concurrency,
            pace_s=pace_s,
            known_good=self._known_good,
            is_urgent=self._is_urgent,
        )
        self._candidates = candidates(())
        self._rest: Iterator[ResolverAddress] = iter(self._candidates)
        self._spares: deque[ResolverAddress] = deque(maxlen=MOST_SPARES)
        """Those that passed when there were enough."""
        self._tally = Tally()
        self._passed_this_time = False
        self._only_tunnel: dict[ResolverAddress, None] = {}
        """Those of this time through the candidates that failed at the tunnel's check alone."""
        self._early_asked = self._early_open = 0
        """Of the first sources: checks begun, and those that go on."""
        self._wait_s = FIRST_WAIT_S
        self._begin_at = 0.0
        self._woken = asyncio.Event()
        self._selves: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._measuring = asyncio.Semaphore(MEASURED_AT_ONCE)
        self._rechecked_at = -math.inf
        self._reached_at = -math.inf
        """When somebody passed all checks last."""
        self._honest_at = -math.inf
        """When somebody was found to be honest last."""
        self._again_open: set[ResolverAddress] = set()
        """The first ones that are being asked again this time through the candidates."""
        self._again_at = self._now() + AGAIN_S

    async def run(self) -> None:
        """Find and keep, for ever."""
        hunting: asyncio.Task[bool] | None = None
        next_look_at = self._now() + LOOK_S
        try:
            while True:
                self._woken.clear()
                self._mind_the_down()
                if self._now() >= next_look_at:
                    next_look_at = self._now() + LOOK_S
                    self._look()
                if hunting is not None and hunting.done():
                    at_end, hunting = hunting.result(), None
                    if at_end and self._working() < self._want:
                        self._end_of_candidates()
                if self._working() >= self._want:
                    self._reach_enough()
                elif hunting is not None:
                    self._ask_again()
                elif self._now() >= self._begin_at:
                    self.phase = Phase.SEARCHING
                    hunting = asyncio.ensure_future(self._hunt.run(self._next_ones(), self._take))
                    hunting.add_done_callback(lambda _: self._woken.set())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._woken.wait()
        finally:
            tasks = [*self._tasks, *([hunting] if hunting else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def network_changed(self) -> None:
        """Look at everything afresh: the candidates from their beginning, and who was let in."""
        self._wait_s = FIRST_WAIT_S
        self._patience = Patience()
        self._start_over()
        self._recheck(list(self.found))
        self._hunt.wake()
        self._woken.set()

    def status(self) -> dict[str, Any]:
        """Return what `/status` shows of the search."""
        return {
            "phase": "waiting for the network" if self._hunt.is_out else self.phase.value,
            "want": self._want,
            "working": self._working(),
            "left": self._candidates.left,
            "rate": round(self._hunt.rate, 1),
            "fallback": self._is_on_fallback(),
            **self._tally.status(),
        }

    def _next_ones(self) -> Iterator[ResolverAddress]:
        """Yield whom to check next: spares, then candidates."""
        while True:
            if self._spares:
                yield self._spares.popleft()
            elif (address := next(self._rest, None)) is not None:
                yield address
            else:
                return

    async def _check_candidate(self, address: ResolverAddress) -> Verdict:
        is_early = self._candidates.is_early(address)
        self._early_asked += is_early
        self._early_open += is_early
        try:
            is_known = is_early or address in self.found
            return await self._check(address, self._patience.wait_s(hasty=not is_known))
        finally:
            self._early_open -= is_early

    def _is_urgent(self, address: ResolverAddress) -> bool:
        """Whether it is more promising than one of the long lists."""
        is_first = self._candidates.is_early(address) or address in self._again_open
        return is_first or self._scores.value(address) > 0

    async def _probe(self, address: ResolverAddress) -> Verdict:
        return await self._ask_plainly(address, self._patience.longest_s)

    # -- verdicts -------------------------------------------------------------------------------

    def _take(self, verdict: Verdict) -> None:
        """Take what the hunt found out about a candidate."""
        address = verdict.address
        self._tally.take(verdict, is_early=self._candidates.is_early(address))
        if verdict.is_self:
            self._leave_self_out(address)
        if verdict.passed:
            self._reached_at = self._now()
        if verdict.honest:
            self._honest_at = self._now()
        # Once for every time through the candidates is blame enough.
        if verdict.passed or address not in self._again_open:
            self._score(verdict)
        self._again_open.discard(address)
        self._patience.take(verdict)
        if address in self.found and not self.found[address].is_fallback:
            self._checked_again(verdict)
        elif not verdict.passed:
            self._note_failure(verdict)
        elif self._working() < self._want:
            self._let_in([address])
        else:
            self._spares.append(address)
        if verdict.passed and self._working() >= self._want:
            self._reach_enough()
        self._consider_fallback()

    def _score(self, verdict: Verdict) -> None:
        """Change the score of who was checked, unless it may be the network, or the server."""
        now = self._now()
        is_blamed = now - self._honest_at <= HONEST_S
        if verdict.stage in AT_TUNNEL:
            is_blamed = now - self._reached_at <= REACHED_S
        if verdict.passed or is_blamed:
            self._scores.checked(verdict)

    def _note_failure(self, verdict: Verdict) -> None:
        address = verdict.address
        if verdict.stage in AT_TUNNEL and verdict.honest is not False:
            if len(self._only_tunnel) < self._want:
                self._only_tunnel[address] = None
        elif address in self.found:
            self._drop([address])  # a fallback that is not even that

    def _let_in(self, addresses: Sequence[ResolverAddress]) -> None:
        """Let those in who passed; who was there for want of better leaves."""
        was_fallback = self._is_on_fallback()
        self._passed_this_time = True
        self._only_tunnel.clear()
        kept = {each: found for each, found in self.found.items() if not found.is_fallback}
        self.found = kept | {address: Found() for address in addresses}
        if was_fallback:
            log.info("%s: the tunnel's server answers: the fallback ends", self._name)
            self._begin_at = 0.0
        self._make_room()
        self._tell_pool()
        if not self.first.is_set():
            log.info("%s: %s is the first that works", self._name, addresses[0].shown)
            self.first.set()
        for address in addresses:
            self._spawn(self._measure_sizes(address))

    def _reach_enough(self) -> None:
        self._hunt.stop()
        self._begin_at = 0.0
        if self.phase is not Phase.ENOUGH:
            self.phase = Phase.ENOUGH
            self._wait_s = FIRST_WAIT_S
            log.info(
                "%s: %d resolvers work, after %d checks",
                self._name,
                self._working(),
                self._tally.checked,
            )

    def _leave_self_out(self, address: ResolverAddress) -> None:
        if key_of(address) not in self._selves and len(self._selves) < MOST_SELVES:
            self._selves.add(key_of(address))
            log.warning(
                "%s: %s is left out: what it is asked comes back to this relay",
                self._name,
                address.shown,
            )
        self._drop([address])

    def _checked_again(self, verdict: Verdict) -> None:
        """Take what a check found out about somebody who was let in."""
        found = self.found.get(verdict.address)
        if found is None or verdict.local_fault:
            return
        if verdict.honest is False or verdict.is_self:
            log.warning("%s: %s lies: it leaves the pool", self._name, verdict.address.shown)
            self._drop([verdict.address])
            return
        found.failed = not verdict.passed
        if found.failed and found.down_at is None:
            found.down_at = self._now()

    async def _measure_sizes(self, address: ResolverAddress) -> None:
        async with self._measuring:
            verdict = await self._measure(address, self._patience.longest_s)
        found = self.found.get(address)
        if found is None:
            return
        if not verdict.passed:
            self._checked_again(verdict)
            return
        before = self._scores.sizes(address)
        self._scores.measured(verdict)
        if self._scores.sizes(address) != before:
            self._tell_pool()

    # -- fallback -------------------------------------------------------------------------------

    def _is_on_fallback(self) -> bool:
        return any(found.is_fallback for found in self.found.values())

    def _consider_fallback(self, *, at_end: bool = False) -> None:
        """Let in those that fail at the tunnel alone, where that is the best there is."""
        if not self._only_tunnel or self._passed_this_time:
            return
        if any(not found.is_fallback for found in self.found.values()):
            return
        early_over = self._candidates.early_over and not self._early_open
        enough_asked = self._early_asked > 0 or self._tally.checked >= FALLBACK_AFTER
        if not at_end and not (early_over and enough_asked):
            return
        new = [each for each in self._only_tunnel if each not in self.found]
        if not new:
            return
        if not self._is_on_fallback():
            log.warning(
                "%s: nobody reaches the tunnel's server: it is down, or the domain is wrong; "
                "resolvers that pass all other checks are used until it answers",
                self._name,
            )
        for address in new[: self._want - len(self.found)]:
            self.found[address] = Found(is_fallback=True)
        self._tell_pool()
        self.first.set()

    # -- the pool -------------------------------------------------------------------------------

    def _working(self) -> int:
        """Return how many resolvers of the pool work, as far as is known.

        One that was named in the configuration was never checked: it counts once it has answered.
        """
        count = 0
        seen = 0
        for standing in self._pool.standings():
            found = self.found.get(standing.address)
            if found is None:
                count += standing.state in (State.IN_USE, State.ASIDE)
                continue
            seen += 1
            count += standing.state is not State.DOWN and not (found.failed or found.is_fallback)
        return count

    def _mind_the_down(self) -> None:
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
                    found.failed = False
                if not found.failed:
                    found.down_at = None
        if someone_went and now - self._rechecked_at >= RECHECK_S:
            # Seldom one alone. The pool notices only of those that it asks much.
            up = [each.address for each in standings if each.state is not State.DOWN]
            self._recheck([address for address in up if address in self.found])

    def _look(self) -> None:
        """Change scores, ask whom nobody asked meanwhile, replace who is down for long."""
        standings = self._pool.standings()
        is_outage = all_down(standings) or self._hunt.is_out
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
                self._blame(standing.address, found)
        self._recheck(idle)
        if not is_outage and self._working() >= self._want:
            self._drop(down_for(self.found, self._now(), REPLACE_AFTER_S))

    def _blame(self, address: ResolverAddress, found: Found) -> None:
        """Lower the score of somebody who is down while others work.

        Not at once: in an outage of this machine they go down one after the other.
        """
        if found.is_blamed:
            self._scores.stays_down(address)
        elif found.down_at is not None and self._now() - found.down_at >= BLAME_AFTER_S:
            self._scores.went_down(address)
            found.is_blamed = True

    def _recheck(self, addresses: Sequence[ResolverAddress]) -> None:
        if addresses:
            self._rechecked_at = self._now()
            self._spawn(self._check_all(addresses))

    async def _check_all(self, addresses: Sequence[ResolverAddress]) -> None:
        """Check those that were let in again. Where nobody answers it says nothing of them."""
        gate = asyncio.Semaphore(MEASURED_AT_ONCE)

        async def one(address: ResolverAddress) -> Verdict:
            async with gate:
                return await self._check(address, self._patience.longest_s)

        verdicts = await asyncio.gather(*map(one, addresses))
        someone_answered = any(map(is_answer, verdicts))
        if any(verdict.passed for verdict in verdicts):
            self._reached_at = self._now()
        if any(verdict.honest for verdict in verdicts):
            self._honest_at = self._now()
        elif any(verdict.honest is False for verdict in verdicts):
            # They were honest when they were let in: now it may be the network that lies.
            self._honest_at = -math.inf
        fit = []
        for verdict in verdicts:
            found = self.found.get(verdict.address)
            if found is None:
                continue
            if not found.is_fallback:
                self._checked_again(verdict)
                if someone_answered and not verdict.passed:
                    self._score(verdict)
            elif verdict.passed:
                self._score(verdict)
                fit.append(verdict.address)
        if fit:
            self._let_in(fit)
        self._woken.set()

    def _known_good(self) -> list[ResolverAddress]:
        """Return who answered before, those of the pool first."""
        states = {each.address: each.state for each in self._pool.standings()}
        own = sorted(self.found, key=lambda each: states.get(each) is State.DOWN)
        return list(dict.fromkeys((*own, *self._scores.good())))

    def _make_room(self) -> None:
        """Drop the longest down where those that were let in become many."""
        too_many = len(self.found) - 2 * self._want - 1
        if too_many > 0:
            for address in down_for(self.found, self._now(), 0.0)[:too_many]:
                del self.found[address]

    def _drop(self, addresses: Sequence[ResolverAddress]) -> None:
        dropped = [address for address in addresses if self.found.pop(address, None)]
        for address in dropped:
            self._candidates.first.appendleft(address)
            log.info("%s: %s leaves the pool", self._name, address.shown)
        if dropped:
            self._tell_pool()

    def _tell_pool(self) -> None:
        self._pool.let_in(list(self.found))

    # -- times through the candidates -----------------------------------------------------------

    def _end_of_candidates(self) -> None:
        """Begin anew after a while."""
        self._consider_fallback(at_end=True)
        self._patience.grow()
        self.phase = Phase.WAITING
        working = self._working()
        wait_s = self._wait_s if working else min(self._wait_s, LONGEST_WAIT_OF_NONE_S)
        log.info(
            "%s: %d of %d resolvers work, after all candidates: again in %.0f s",
            self._name,
            working,
            self._want,
            wait_s,
        )
        self._wait_s = min(LONGEST_WAIT_S, 2 * self._wait_s)
        self._start_over()
        self._begin_at = self._now() + wait_s

    def _ask_again(self) -> None:
        """Put the first ones, and who was dropped, in front every now and then."""
        if self._now() < self._again_at or self._again_open:
            return
        self._again_at = self._now() + AGAIN_S
        first = [each for each in self._candidates.first if each not in self.found]
        self._again_open.update(first)
        self._hunt.ask_first(first)

    def _start_over(self) -> None:
        self._again_open.clear()
        self._again_at = self._now() + AGAIN_S
        working = [address for address, found in self.found.items() if not found.is_fallback]
        self._candidates = self._make_candidates(working)
        self._rest = iter(self._candidates)
        self._begin_at = 0.0
        self._only_tunnel.clear()
        self._passed_this_time = False
        # A hunt that is under way goes through the old ones no further.
        self._hunt.forget()
        self._hunt.stop()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
