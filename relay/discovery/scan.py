"""One look at all candidates: the checks of `relay serve`, once, without a relay.

Owner: `relay scan`. Candidates, hunt, checks and scores are those of the finder; what differs is
that every candidate is measured at once, that it ends, and that somebody watches. Invariant:
however it ends, complete, with enough found, stopped or without a network, what was found is in the
result and in the state file.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from relay.config import PoolConfig
from relay.config_errors import AddressError
from relay.discovery.candidates import is_own
from relay.discovery.checks import Checker
from relay.discovery.hunt import Hunt
from relay.discovery.service import SAVE_S, candidates_of, check_plan, key_of_pool
from relay.discovery.verdict import AT_TUNNEL, Stage, Verdict
from relay.endpoints import ListenAddress
from relay.resolver_address import ResolverAddress, with_defaults
from relay.scores import MOST as MOST_SCORES
from relay.scores import PoolScores, Scores, key_of
from relay.state_file import StateFile
from shared.own_question import OwnQuestion

LOOK_S: Final = 0.2
"""How often those who watch are told."""

GIVE_UP_S: Final = 30.0
"""How long it waits for a network in which nobody answers. A running relay waits for ever; a person
in front of a scan wants to know. Long enough for a link to come back or a lease to be renewed."""

LOOK_UPS: Final = 16
"""Names looked up at once: each look-up asks some bootstrap resolvers, with a socket for each."""

KNOWN_GOOD: Final = 32
"""Of those with good scores, so many are kept to be asked whether the network is there."""

MOST_REASONS: Final = 100
"""Reasons that are told apart; some hold what a command or a server gave cause for."""

_OTHER: Final = "other reasons"


class End(StrEnum):
    """How a scan ended."""

    COMPLETE = "complete"
    ENOUGH = "enough"
    STOPPED = "stopped"
    NO_NETWORK = "no_network"
    """Nobody answered any more for GIVE_UP_S."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be scanned, and how."""

    pool: PoolConfig
    state: Path
    named: tuple[ResolverAddress, ...]
    """Checked first, the best saved score in front."""
    auto: ResolverAddress | None
    """The entry whose candidates come then; None: nobody else."""
    listens: tuple[ListenAddress, ...] = ()
    """Where relays of the configuration listen: they are no candidates."""
    want: int | None = None
    """How many have to pass for it to end; None: it goes through all."""
    timeout_s: float = 2.0
    keep_failed: bool = False
    """Whether the verdicts of those that failed are in the result."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a scan is."""

    total: int
    done: int = 0
    passed: int = 0
    rate: float = 0.0
    """Checks a second."""
    is_out: bool = False
    """Whether it waits for this machine's network."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """One candidate and its score after the scan."""

    verdict: Verdict
    score: float


@dataclass(slots=True)
class Result:
    """What a scan found."""

    end: End = End.COMPLETE
    total: int = 0
    done: int = 0
    took_s: float = 0.0
    rate: float = 0.0
    passed: list[Ranked] = field(default_factory=list)
    """In the order in which a relay would ask them: the best score first, of equals the fastest."""
    failed: list[Ranked] = field(default_factory=list)
    """Empty unless they were to be kept."""
    reasons: Counter[tuple[Stage, str]] = field(default_factory=Counter)
    """How many failed where, and why."""


class Scan:
    """One scan, to be run once. `show` is called a few times a second while it runs."""

    def __init__(self, order: Order, show: Callable[[Progress], None]) -> None:
        self._order = order
        self._show = show
        self._ended = asyncio.Event()
        self._result = Result()
        self._passed: list[Verdict] = []
        self._honest = False
        """Whether anybody was found to be honest."""
        self._unblamed: deque[Verdict] = deque(maxlen=MOST_SCORES)
        """Failures from before that."""
        self._failed: list[Verdict] = []
        self._left: set[ResolverAddress] = set()
        self._looking_up = asyncio.Semaphore(LOOK_UPS)
        self._scores: PoolScores
        self._checker: Checker
        self._hunt: Hunt

    def stop(self) -> None:
        """End it now; checks that are under way are given up."""
        self._result.end = End.STOPPED
        self._ended.set()

    async def run(self) -> Result:
        """Check the candidates; return what was found."""
        order = self._order
        scores = Scores(StateFile(order.state))
        self._scores = scores.pool(key_of_pool(order.pool))
        candidates = self._candidates()
        self._left.update(candidates)
        known = tuple(self._scores.good()[:KNOWN_GOOD])
        self._checker = Checker(
            check_plan(order.pool, OwnQuestion.new(), order.timeout_s), self._look_up
        )
        self._hunt = Hunt(
            self._check,
            probe=self._checker.probe,
            concurrency=order.pool.discovery.concurrency,
            pace_s=order.pool.discovery.pace_s,
            known_good=lambda: known,
        )
        self._result.total = len(candidates)
        began_at = time.monotonic()
        try:
            await self._watch(
                asyncio.ensure_future(self._hunt.run(iter(candidates), self._take)), scores
            )
        finally:
            self._result.took_s = time.monotonic() - began_at
            await self._checker.aclose()
            scores.save()
        self._result.done, self._result.rate = self._hunt.done, self._hunt.rate
        self._result.passed = self._ranked(self._passed)
        self._result.failed = self._ranked(self._failed)
        return self._result

    # -- steps ----------------------------------------------------------------------------------

    def _candidates(self) -> list[ResolverAddress]:
        """Return whom to check. All at once: the end is to be foretold."""
        order = self._order
        named = sorted(order.named, key=self._scores.value, reverse=True)
        found = [
            each for each in named if not any(is_own(each, listen) for listen in order.listens)
        ]
        if order.auto is not None:
            found += candidates_of(
                order.pool, order.state, self._scores, order.auto, order.listens, named
            )
        return found

    async def _watch(self, hunting: asyncio.Task[bool], scores: Scores) -> None:
        """Wait for the end of the hunt or of the scan; tell how far it is, and save now and then.

        Raises what the hunt raises.
        """
        ended = asyncio.ensure_future(self._ended.wait())
        save_at = time.monotonic() + SAVE_S
        was_in_at = time.monotonic()
        try:
            while not (hunting.done() or ended.done()):
                self._tell()
                if not self._hunt.is_out:
                    was_in_at = time.monotonic()
                elif time.monotonic() - was_in_at >= GIVE_UP_S:
                    self._result.end = End.NO_NETWORK
                    break
                await asyncio.wait(
                    (hunting, ended), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                if time.monotonic() >= save_at:
                    save_at = time.monotonic() + SAVE_S
                    scores.adopt(await asyncio.to_thread(scores.snapshot()))
        finally:
            ended.cancel()
            hunting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await hunting
        self._tell()

    async def _check(self, address: ResolverAddress) -> Verdict:
        # Who is asked again, or is no candidate, is only to show that the network is there.
        return await self._checker.check(address, thorough=address in self._left)

    async def _look_up(self, address: ResolverAddress) -> list[str]:
        # Slow to import, and of no use where every resolver is written with its address.
        from relay.bootstrap import Bootstrap

        order = self._order
        async with self._looking_up:
            return await Bootstrap(order.pool.bootstrap, order.listens).look_up(address)

    def _take(self, verdict: Verdict) -> None:
        self._left.discard(verdict.address)
        self._score(verdict)
        if verdict.passed:
            self._passed.append(verdict)
            if len(self._passed) == self._order.want and not self._ended.is_set():
                self._result.end = End.ENOUGH
                self._ended.set()
            return
        reasons, reason = self._result.reasons, (verdict.stage, verdict.reason)
        if len(reasons) >= MOST_REASONS and reason not in reasons:
            reason = (verdict.stage, _OTHER)
        reasons[reason] += 1
        if self._order.keep_failed:
            self._failed.append(verdict)

    def _score(self, verdict: Verdict) -> None:
        """Change its score, unless it may be nobody's fault.

        Where nobody reaches the tunnel's server, it is down or the domain wrong; where nobody is
        honest, there is a portal in the network.
        """
        if verdict.honest and not self._honest:
            self._honest = True
            for each in self._unblamed:
                self._scores.checked(each)
            self._unblamed.clear()
        if verdict.passed or (self._passed if verdict.stage in AT_TUNNEL else self._honest):
            self._scores.checked(verdict)
        elif verdict.stage not in AT_TUNNEL:
            self._unblamed.append(verdict)

    def _tell(self) -> None:
        hunt = self._hunt
        self._show(Progress(self._result.total, hunt.done, hunt.passed, hunt.rate, hunt.is_out))

    def _ranked(self, verdicts: Sequence[Verdict]) -> list[Ranked]:
        def place(each: Ranked) -> tuple[float, float, float]:
            return (-each.score, each.verdict.loss, each.verdict.latency_s)

        value = self._scores.value
        # A tenth: what seconds have decayed does not come before who is faster.
        return sorted((Ranked(each, round(value(each.address), 1)) for each in verdicts), key=place)


def together(
    addresses: Iterable[ResolverAddress], auto: ResolverAddress, pool: PoolConfig
) -> tuple[ResolverAddress, ...]:
    """Return `addresses`, each once, with the ways out of a pool and of its `auto`.

    Those that cannot go that way, IPv6 from an IPv4 source, are left out.
    """
    found: dict[str, ResolverAddress] = {}
    for address in addresses:
        with contextlib.suppress(AddressError):
            found.setdefault(key_of(address), with_defaults(address, pool.via, auto.bind))
    return tuple(found.values())
