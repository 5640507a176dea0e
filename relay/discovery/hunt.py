"""Checking many candidates: so many at once, so far apart, and not while the network is gone.

Used by: the finder and `relay scan`. So many *runners* take one candidate after the other. What
they find out goes through `relay.discovery.outage`, which may hold it back; when it raises doubt,
the runners stand still and those who are known to answer are asked. If nobody answers, the hunt is
*out*: what was held back is put in front of the queue again, and every OUT_LOOK_S some are tried,
the known ones and, in turn, the candidates, until anybody answers.

Who is asked over TCP, TLS or HTTPS, or has a name to be looked up, may take seconds to fail. Some
of those are checked at once, the others are *parked* while the runners go on with whom is behind
them: a list that begins with hundreds of silent DoT servers holds up no UDP.

Invariant: a candidate is reported once, or is left in the queue for the next `run`; none is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from relay.discovery.outage import Doubt, is_answer
from relay.discovery.verdict import Verdict
from relay.resolver_address import ResolverAddress

KNOWN_ASKED: Final = 8
"""Of those known to answer, so many are asked whether the network is there."""

OUT_LOOK_S: Final = 2.0
FIRST_TRIED: Final = 8
MOST_TRIED: Final = 32
"""Candidates tried at a look while the network seems gone, at first and at most. Where really all
known ones died at once, these find the next."""

MOST_SLOW: Final = 64
"""Candidates checked at once that may take seconds, and no more than half of all while there may be
others. Fewer than a checker has connections: whom the pool has, or the network is doubted by, is
asked beside them without a wait."""

MOST_PARKED: Final = 5_000
"""Candidates that wait for one of these places. Behind more of them everybody waits: lists are read
as far as they are needed."""

Check = Callable[[ResolverAddress], Awaitable[Verdict]]
OnVerdict = Callable[[Verdict], None]

log = logging.getLogger(__name__)


class Hunt:
    """Checks candidates. `known_good` names those who answered before, the best first.

    `probe` is a check that tells no more than whether somebody answers, quickly: all runners wait
    for it. `is_urgent` names those that are parked before all others.
    """

    def __init__(
        self,
        check: Check,
        *,
        probe: Check | None = None,
        concurrency: int = 100,
        pace_s: float = 0.0,
        known_good: Callable[[], Sequence[ResolverAddress]] = tuple,
        is_urgent: Callable[[ResolverAddress], bool] = lambda _: False,
    ) -> None:
        self.done = 0
        """Checks that were reported."""
        self.passed = 0
        self.is_out = False
        """Whether it waits because this machine's network seems gone."""
        self._check = check
        self._quick = probe or check
        self._concurrency = concurrency
        self._pace_s = pace_s
        self._known_good = known_good
        self._is_urgent = is_urgent
        self._doubt = Doubt()
        self._again: deque[ResolverAddress] = deque()
        self._urgent: deque[ResolverAddress] = deque()
        self._parked: deque[ResolverAddress] = deque()
        self._slow_open = 0
        """Checks under way of those that may take seconds."""
        self._at_end = False
        """Whether all candidates have been seen."""
        self._passed_last: deque[ResolverAddress] = deque(maxlen=KNOWN_ASKED // 2)
        self._open = asyncio.Event()
        self._open.set()
        self._answered = False
        """Whether anybody has answered yet."""
        self._stopped = asyncio.Event()
        self._woken = asyncio.Event()
        self._turn = asyncio.Lock()
        self._next_at = 0.0
        self._candidates: Iterator[ResolverAddress] = iter(())
        self._on_verdict: OnVerdict = lambda _: None
        self._busy_s = 0.0
        self._since: float | None = None

    @property
    def rate(self) -> float:
        """Checks reported per second of hunting."""
        running = time.monotonic() - self._since if self._since is not None else 0.0
        return self.done / max(0.001, self._busy_s + running)

    async def run(self, candidates: Iterator[ResolverAddress], on_verdict: OnVerdict) -> bool:
        """Check `candidates` and report each one; True at their end, False where it was stopped.

        Stopped, it begins no more checks and ends with those that are open. The next run goes on
        with what was left of the candidates put back, then with its own.
        """
        self._candidates, self._on_verdict = candidates, on_verdict
        self._stopped.clear()
        self._at_end = False
        self._open.set()
        self._since = time.monotonic()
        runners = [asyncio.ensure_future(self._runner()) for _ in range(self._concurrency)]
        try:
            await asyncio.gather(*runners)
            while self._doubt.held and not self._stopped.is_set():
                await self._settle()  # may put them back into the queue
                await self._runner()
        finally:
            for runner in runners:
                runner.cancel()
            await asyncio.gather(*runners, return_exceptions=True)
            self._busy_s += time.monotonic() - self._since
            self._since = None
            self._put_back()
        return not self._stopped.is_set()

    def stop(self) -> None:
        """Begin no more checks."""
        self._stopped.set()
        self._open.set()
        self._woken.set()

    def ask_first(self, addresses: Sequence[ResolverAddress]) -> None:
        """Put candidates in front of all others."""
        self._again.extendleft(reversed(addresses))

    def forget(self) -> None:
        """Leave out whom an earlier run put back, and who is parked."""
        for waiting in (self._again, self._urgent, self._parked):
            waiting.clear()

    def wake(self) -> None:
        """Look now whether the network is back."""
        self._woken.set()

    # -- steps ----------------------------------------------------------------------------------

    async def _runner(self) -> None:
        while True:
            await self._open.wait()
            # One at a time waits for the time of the next check. Were it given to all of them at
            # once, those without a candidate would wait, too, and the hunt for them.
            async with self._turn:
                await self._reach_time()
                if not self._open.is_set():
                    continue
                address = None if self._stopped.is_set() else self._next()
                if address is None:
                    return
                self._next_at = time.monotonic() + self._pace_s
            slow = _may_take_long(address)
            self._slow_open += slow
            try:
                verdict = await self._check(address)
            except asyncio.CancelledError:
                self._again.appendleft(address)
                raise
            finally:
                self._slow_open -= slow
            self._take(verdict)
            if self._doubt.is_raised and self._open.is_set():
                await self._settle()

    async def _reach_time(self) -> None:
        """Wait until the next check may begin, or the hunt is stopped."""
        wait_s = self._next_at - time.monotonic()
        if wait_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stopped.wait()

    def _next(self) -> ResolverAddress | None:
        while True:
            has_room = self._has_room()
            if self._urgent and has_room:
                return self._urgent.popleft()
            if self._again:
                address: ResolverAddress | None = self._again.popleft()
            elif self._parked and has_room:
                return self._parked.popleft()
            else:
                address = next(self._candidates, None)
            if address is None:
                if self._at_end:
                    return None
                self._at_end = True  # makes room
            elif has_room or not _may_take_long(address) or len(self._parked) >= MOST_PARKED:
                return address
            elif self._is_urgent(address):
                self._urgent.append(address)
            else:
                self._parked.append(address)

    def _has_room(self) -> bool:
        """Whether one more may be checked that may take seconds."""
        share = self._concurrency if self._at_end else max(1, self._concurrency // 2)
        return self._slow_open < min(MOST_SLOW, share)

    def _take(self, verdict: Verdict) -> None:
        self._answered = self._answered or is_answer(verdict)
        for each in self._doubt.take(verdict):
            self._report(each)

    def _report(self, verdict: Verdict) -> None:
        self.done += 1
        if verdict.passed:
            self.passed += 1
            self._passed_last.append(verdict.address)
        self._on_verdict(verdict)

    async def _settle(self) -> None:
        """Find out whether the silence is the network's, and wait for its end if it is."""
        self._open.clear()
        try:
            if await self._is_there():
                for verdict in self._doubt.vouched():
                    self._report(verdict)
                return
            more = " any more" if self._answered else ""
            log.warning("nobody answers%s: discovery waits for this machine's network", more)
            self.is_out = True
            await self._wait_out()
            if not self._stopped.is_set():
                log.info("the network answers again: discovery goes on")
        finally:
            self.is_out = False
            self._open.set()

    async def _is_there(self) -> bool:
        """Whether anybody who answered before does so now."""
        known = self._known()
        if not known:
            # Nobody can vouch. Silence is believed, the errors of this machine are not.
            return not all(each.local_fault for each in self._doubt.held)
        return await self._any_answers(known)

    async def _any_answers(self, addresses: Sequence[ResolverAddress]) -> bool:
        """Whether one of `addresses` answers; ends with the first that does."""
        checks = [asyncio.ensure_future(self._probe(each)) for each in addresses]
        try:
            for check in asyncio.as_completed(checks):
                if await check:
                    return True
            return False
        finally:
            for each in checks:
                each.cancel()
            await asyncio.gather(*checks, return_exceptions=True)

    async def _probe(self, address: ResolverAddress) -> bool:
        return is_answer(await self._quick(address))

    async def _wait_out(self) -> None:
        count = FIRST_TRIED
        for waiting in (self._urgent, self._parked):  # they are tried in their turn, too
            self._again.extend(waiting)
            waiting.clear()
        self._put_back()
        while not self._stopped.is_set():
            tried = self._some(min(count, self._concurrency))
            is_back = True
            try:
                is_back = await self._any_answers([*self._known(), *tried])
            finally:
                self._put_back()  # what runners had open meanwhile
                if is_back:  # one of them may be who answered
                    self._again.extendleft(reversed(tried))
                else:  # in turn: others come next
                    self._again.extend(tried)
            if is_back:
                return
            count = min(MOST_TRIED, 2 * count)
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(OUT_LOOK_S):
                    await self._woken.wait()

    def _some(self, count: int) -> list[ResolverAddress]:
        """Return candidates to try, old ones and new ones in turn."""
        found: list[ResolverAddress] = []
        while len(found) < count:
            old = [self._again.popleft()] if self._again else []
            new = next(self._candidates, None)
            found += old if new is None else [*old, new]
            if not old and new is None:
                break
        return found

    def _known(self) -> list[ResolverAddress]:
        known = dict.fromkeys((*reversed(self._passed_last), *self._known_good()))
        return list(known)[:KNOWN_ASKED]

    def _put_back(self) -> None:
        self._again.extendleft(each.address for each in reversed(self._doubt.vouched()))


def _may_take_long(address: ResolverAddress) -> bool:
    """Whether a check may take seconds to fail: it makes a connection, or looks a name up."""
    if address.scheme != "udp":
        return True
    is_ipv4 = address.host.replace(".", "").isdigit()  # a twentieth of the time; most are
    return not is_ipv4 and bool(address.unresolved)
