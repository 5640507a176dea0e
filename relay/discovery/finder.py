"""Keeps a pool in resolvers that work: the part of the roster that `auto` stands for.

Owner: the supervisor; there is one finder for every pool with `auto`. Theory of operation: it
always knows which resolvers it let in (`keeping`) and how many of the pool work. Below `want` it
hunts through the candidates, and lets in whoever passes, at once; at `want` it stops. Every TICK_S
it looks at the board, so a pool that shrank is refilled soon; every LOOK_S it changes scores, asks
those again whom nobody asked meanwhile, and replaces who is down for long. At the end of the
candidates it begins anew, after a wait that grows.

    searching --want work--> enough --fewer work--> searching
    searching --end of the candidates--> waiting --time, or another network--> searching

A resolver that passes everything but the tunnel's own check is no resolver of this pool. But where
that is true of everybody, the tunnel's server is down or the domain wrong, and when it comes up it
will be reached through those: they are let in as a *fallback*, until somebody passes.

Invariant: nobody is let in that lied, or that is this relay itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

from relay.discovery.blame import Blame
from relay.discovery.candidates import Candidates
from relay.discovery.hunt import Hunt
from relay.discovery.keeping import Keeping
from relay.discovery.members import Pool
from relay.discovery.patience import Patience
from relay.discovery.tally import Tally
from relay.discovery.verdict import AT_TUNNEL, Verdict
from relay.resolver_address import ResolverAddress
from relay.scores import PoolScores, key_of

TICK_S: Final = 1.0
LOOK_S: Final = 10.0

FIRST_WAIT_S: Final = 5.0
LONGEST_WAIT_S: Final = 300.0
LONGEST_WAIT_OF_NONE_S: Final = 30.0
"""Between the end of the candidates and the next beginning; where nobody works it is sooner."""

FALLBACK_AFTER: Final = 100
"""Checks after which a fallback is let in where the first sources named nobody."""

FALLBACK_WAIT_S: Final = 3.0
"""How long others have the time to pass before a fallback is let in."""

AGAIN_S: Final = 15.0
"""While too few work, the first candidates are asked again so often: a way through the long lists
takes minutes, and what kept these from answering may last seconds."""

MOST_SPARES: Final = 100
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
        self.phase = Phase.SEARCHING
        self.has_nobody = False
        """Whether the last time through the candidates brought none, and nobody is let in."""
        self._name = name
        self._scores = scores
        self._make_candidates = candidates
        self._check = check
        self._ask_plainly = probe or check
        self._want = want
        self._now = now
        self._patience = Patience()
        self._blame = Blame(scores, now)
        self.keeping = Keeping(
            name,
            pool,
            scores,
            self._blame,
            lambda address: check(address, self._patience.longest_s),
            lambda address: measure(address, self._patience.longest_s),
            passed=self._take_fallbacks,
            dropped=self._take_dropped,
            now=now,
        )
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
        self._offered = 0
        """Candidates that this time through them brought so far."""
        self._spares: deque[ResolverAddress] = deque(maxlen=MOST_SPARES)
        """Those that passed when there were enough."""
        self._tally = Tally()
        self._passed_this_time = False
        self._only_tunnel: dict[ResolverAddress, Verdict] = {}
        """Those of this time through the candidates that failed at the tunnel's check alone."""
        self._early_asked = self._early_open = 0
        """Of the first sources: checks begun, and those that go on."""
        self._wait_s = FIRST_WAIT_S
        self._begin_at = 0.0
        self._woken = asyncio.Event()
        self._selves: set[str] = set()
        self._again_open: set[ResolverAddress] = set()
        """The first ones that are being asked again this time through the candidates."""
        self._again_at = self._now() + AGAIN_S
        self._fallback_at = self._now() + FALLBACK_WAIT_S

    async def run(self) -> None:
        """Find and keep, for ever."""
        hunting: asyncio.Task[bool] | None = None
        next_look_at = self._now() + LOOK_S
        try:
            while True:
                self._woken.clear()
                self.keeping.notice()
                if self._now() >= next_look_at:
                    next_look_at = self._now() + LOOK_S
                    self.keeping.look(self._want, is_out=self._hunt.is_out)
                self._consider_fallback()
                if hunting is not None and hunting.done():
                    at_end, hunting = hunting.result(), None
                    if at_end and self.keeping.working() < self._want:
                        self._end_of_candidates()
                if self.keeping.working() >= self._want:
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
            if hunting is not None:
                hunting.cancel()
                await asyncio.gather(hunting, return_exceptions=True)
            await self.keeping.aclose()

    def network_changed(self) -> None:
        """Look at everything afresh: the candidates from their beginning, and who was let in."""
        self._wait_s = FIRST_WAIT_S
        self._patience = Patience()
        self._start_over()
        self.keeping.check_again(list(self.keeping.found))
        self._hunt.wake()
        self._woken.set()

    def status(self) -> dict[str, Any]:
        """Return what `/status` shows of the search."""
        return {
            "phase": "waiting for the network" if self._hunt.is_out else self.phase.value,
            "want": self._want,
            "working": self.keeping.working(),
            "left": self._candidates.left,
            "rate": round(self._hunt.rate, 1),
            "fallback": self.keeping.is_on_fallback,
            **self._tally.status(),
        }

    def _next_ones(self) -> Iterator[ResolverAddress]:
        """Yield whom to check next: spares, then candidates."""
        while True:
            if self._spares:
                yield self._spares.popleft()
            elif (address := next(self._rest, None)) is not None:
                self._offered += 1
                yield address
            else:
                return

    async def _check_candidate(self, address: ResolverAddress) -> Verdict:
        is_early = self._candidates.is_early(address)
        self._early_asked += is_early
        self._early_open += is_early
        try:
            is_known = is_early or address in self.keeping.found
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
        self._blame.hear(verdict)
        # Once for every time through the candidates is blame enough.
        if verdict.passed or address not in self._again_open:
            self._blame.score(verdict)
        self._again_open.discard(address)
        self._patience.take(verdict)
        found = self.keeping.found.get(address)
        if found is not None and not found.is_fallback:
            self.keeping.take(verdict)
        elif not verdict.passed:
            self._note_failure(verdict)
        elif self.keeping.working() < self._want:
            self._let_in([address])
        else:
            self._spares.append(address)
        if verdict.passed and self.keeping.working() >= self._want:
            self._reach_enough()
        self._consider_fallback()

    def _note_failure(self, verdict: Verdict) -> None:
        address = verdict.address
        if verdict.stage in AT_TUNNEL and verdict.honest is not False:
            if len(self._only_tunnel) < self._want:
                self._only_tunnel[address] = verdict
        else:
            self.keeping.drop([address])  # a fallback that is not even that

    def _let_in(self, addresses: Sequence[ResolverAddress]) -> None:
        """Let those in who passed; who was there for want of better leaves."""
        was_fallback = self.keeping.is_on_fallback
        self._passed_this_time = True
        self._only_tunnel.clear()
        self.keeping.let_in(addresses, most=2 * self._want + 1)
        if was_fallback:
            log.info("%s: the tunnel's server answers: the fallback ends", self._name)
            self._begin_at = 0.0
        if not self.first.is_set():
            log.info("%s: %s is the first that works", self._name, addresses[0].shown)
            self.first.set()

    def _reach_enough(self) -> None:
        self._hunt.stop()
        self._begin_at = 0.0
        if self.phase is not Phase.ENOUGH:
            self.phase = Phase.ENOUGH
            self._wait_s = FIRST_WAIT_S
            log.info(
                "%s: %d resolvers work, after %d checks",
                self._name,
                self.keeping.working(),
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
        self.keeping.drop([address])

    def _take_fallbacks(self, fit: Sequence[ResolverAddress]) -> None:
        """Take note that those of the pool were checked again, and which fallbacks pass now."""
        if fit:
            self._let_in(fit)
        self._woken.set()

    def _take_dropped(self, addresses: Sequence[ResolverAddress]) -> None:
        self._candidates.first.extendleft(addresses)

    # -- fallback -------------------------------------------------------------------------------

    def _consider_fallback(self, *, at_end: bool = False) -> None:
        """Let in those that fail at the tunnel alone, where that is the best there is."""
        if not self._only_tunnel or self._passed_this_time or self.keeping.proven:
            return
        early_over = self._candidates.early_over and not self._early_open
        enough_asked = self._early_asked > 0 or self._tally.checked >= FALLBACK_AFTER
        is_time = early_over and enough_asked and self._now() >= self._fallback_at
        if not (at_end or is_time):
            return
        found = self.keeping.found
        new = [verdict for address, verdict in self._only_tunnel.items() if address not in found]
        if not new:
            return
        if not self.keeping.is_on_fallback:
            log.warning(
                "%s: nobody reaches the tunnel's server: it is down, or the domain is wrong; "
                "resolvers that pass all other checks are used until it answers",
                self._name,
            )
        self.keeping.fall_back_on(new[: self._want - len(found)])
        self.first.set()

    def _known_good(self) -> list[ResolverAddress]:
        """Return who answered before, those of the pool first."""
        return list(dict.fromkeys((*self.keeping.by_standing(), *self._scores.good())))

    # -- times through the candidates -----------------------------------------------------------

    def _end_of_candidates(self) -> None:
        """Begin anew after a while."""
        self._consider_fallback(at_end=True)
        self._patience.grow()
        self.phase = Phase.WAITING
        working = self.keeping.working()
        wait_s = self._wait_s if working else min(self._wait_s, LONGEST_WAIT_OF_NONE_S)
        had_nobody, self.has_nobody = self.has_nobody, not (self._offered or self.keeping.found)
        if self.has_nobody:
            log.log(
                logging.INFO if had_nobody else logging.WARNING,
                "%s: nobody to check: auto has no candidates; again in %.0f s",
                self._name,
                wait_s,
            )
        else:
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
        first = [each for each in self._candidates.first if each not in self.keeping.found]
        self._again_open.update(first)
        self._hunt.ask_first(first)

    def _start_over(self) -> None:
        self._again_open.clear()
        self._again_at = self._now() + AGAIN_S
        self._candidates = self._make_candidates(self.keeping.proven)
        self._rest = iter(self._candidates)
        self._offered = 0
        self._begin_at = 0.0
        self._fallback_at = self._now() + FALLBACK_WAIT_S
        self._only_tunnel.clear()
        self._passed_this_time = False
        # A hunt that is under way goes through the old ones no further.
        self._hunt.forget()
        self._hunt.stop()
