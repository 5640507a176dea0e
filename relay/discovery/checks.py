"""The checks of one candidate, from cheap to dear, and the verdict.

1. Plain: a few well-known names are asked for. One that resolves to an address is enough; NOERROR
   without one, and every other code, is not.
2. Honest: a name that cannot exist must be denied (NXDOMAIN, or NOERROR without a record), and no
   public name may have an address that is not public. The name is the relay's own question: where
   it comes back to the relay, the candidate is the relay itself.
3. Tunnel, where the domain is known: the tunnel's own server must answer (`check_tunnels`).
4. Command, where the user has one (`check_command`).
5. Fitness, when thorough: measured, never a reason to fail (`check_fitness`).

Over UDP a question is sent up to `TRIES` times, so that a tenth of lost packets fails nobody. A
refusal is asked about once more with another name. What this machine could not send is said to be a
local fault; it blames nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final

from relay.discovery.check_command import CannotRun, CheckCommand
from relay.discovery.check_fitness import measure
from relay.discovery.check_messages import (
    NOERROR,
    NXDOMAIN,
    TYPE_A,
    Reply,
    is_public,
    name_wire,
    question,
    read,
)
from relay.discovery.check_sizes import DEFAULT_SIZE_QUESTIONS, SizeQuestions
from relay.discovery.check_streams import Broken, Conversation, Ground
from relay.discovery.check_tunnels import tunnel_check
from relay.discovery.check_udp import LocalFault, NoHost, Outcome, UdpAsker
from relay.discovery.verdict import Fitness, Stage, Verdict
from relay.resolver_address import ResolverAddress
from relay.roster import entry_of
from shared.errors import RelayError
from shared.own_question import OwnQuestion

DEFAULT_NAMES: Final = ("google.com", "cloudflare.com", "wikipedia.org")
"""What everybody resolves. Several, since a country may block or forge any of them."""

TRIES: Final = 3
"""How often a question is sent over UDP: a quarter of its time apart."""

ROUNDS: Final = 2
"""How often a question is asked that was answered with a refusal."""

MOST_STREAMS: Final = 80
"""Candidates over TCP, DoT and DoH that are checked at once: each takes a descriptor. More than a
hunt ever has open of them (MOST_SLOW), so that others need not wait for it."""

LookUp = Callable[[ResolverAddress], Awaitable[list[str]]]
"""Resolves the name of a candidate that has one; raises RelayError."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """What the candidates of one pool are checked for."""

    own: OwnQuestion
    names: tuple[str, ...] = DEFAULT_NAMES
    tunnel: str = "generic"
    domain: str | None = None
    record_type: str | None = None
    command: str | None = None
    timeout_s: float = 2.0
    """How long one question may take with its repetitions."""
    size_questions: tuple[str, ...] = DEFAULT_SIZE_QUESTIONS
    """Names and types of questions with large replies."""


class Checker:
    """Checks candidates. To be made and used on one running event loop, and closed.

    Raises ValueError for a plan with a name, question or command that is none. How many checks run
    at once is the caller's choice; descriptors do not grow with it.
    """

    def __init__(self, plan: CheckPlan, look_up: LookUp) -> None:
        names = tuple(map(name_wire, plan.names or DEFAULT_NAMES))
        self.plan = plan
        self.look_up = look_up
        self.name = names[0]
        plain = [question(name, TYPE_A) for name in names]
        self.plain = [_in_turn(plain, first) for first in range(min(len(plain), TRIES))]
        """For every round: the questions of its tries."""
        self.sizes = SizeQuestions(plan.size_questions)
        self.tunnel = (
            tunnel_check(plan.tunnel, plan.domain, plan.record_type) if plan.domain else None
        )
        self.command = CheckCommand(plan.command) if plan.command else None
        self.udp = UdpAsker()
        self.ground = Ground()
        self.streams = asyncio.Semaphore(MOST_STREAMS)
        self._questions = 0

    async def aclose(self) -> None:
        """Close every socket. Checks that still run end without a meaningful verdict."""
        self.udp.close()
        self.ground.close()

    async def check(self, address: ResolverAddress, *, thorough: bool = True) -> Verdict:
        """Return what becomes of a candidate. Nothing that the network does makes it raise."""
        check = _Check(self, address, thorough)
        return await self._outcome(check, check.run)

    async def probe(self, address: ResolverAddress) -> Verdict:
        """Return whether a candidate answers a plain question; it never passes by that."""
        check = _Check(self, address, thorough=False)
        return await self._outcome(check, check.check_plain)

    async def _outcome(self, check: _Check, run: Callable[[], Awaitable[None]]) -> Verdict:
        try:
            async with AsyncExitStack() as stack:
                await check.reach(stack)
                await run()
        except LocalFault as error:
            check.local_fault = True
            check.reason = str(error)
        except _Failed as failed:
            check.reason = str(failed)
        except Broken as error:
            check.reason, check.heard = str(error), error.heard
        except RelayError as error:  # NoHost, a name that cannot be looked up
            check.reason = str(error)
        return check.verdict()

    def own_question(self) -> bytes:
        """Return a question for a name that cannot exist."""
        self._questions += 1
        name = self.plan.own.question_name(str(self._questions))
        return question(name_wire(name), TYPE_A)


class _Failed(RelayError):
    """A candidate does not pass. The message is for people."""


class _Check:
    """One check under way."""

    def __init__(self, checker: Checker, address: ResolverAddress, thorough: bool) -> None:
        self._checker = checker
        self._address = address
        self._thorough = thorough
        self._host = ""
        self._conversation: Conversation | None = None
        self._timeout_s = checker.plan.timeout_s
        self._stage = Stage.PLAIN
        self._passed = False
        self._latency_s = 0.0
        self._asked = 0
        self._answered = 0
        self._honest: bool | None = None
        self._tunnel: bool | None = None
        self._fitness = Fitness()
        self._is_self = False
        self.reason = ""
        self.local_fault = False
        self.heard = False

    def verdict(self) -> Verdict:
        """Return what was found."""
        return Verdict(
            address=self._address,
            passed=self._passed and not self.reason,
            stage=self._stage,
            reason=self.reason,
            latency_s=self._latency_s,
            asked=self._asked,
            answered=self._answered,
            honest=self._honest,
            tunnel=self._tunnel,
            fitness=self._fitness,
            local_fault=self.local_fault,
            is_self=self._is_self,
            heard=self.heard,
        )

    # -- the way to it ---------------------------------------------------------------------

    async def reach(self, stack: AsyncExitStack) -> None:
        """See where it is to be asked."""
        address, checker = self._address, self._checker
        hosts: list[str] | tuple[str, ...] = address.pins or (address.host,)
        if address.scheme != "udp":
            await stack.enter_async_context(checker.streams)
        if address.unresolved:
            hosts = await checker.look_up(address)
            if not hosts:
                raise _Failed("its name has no address")
        self._host = hosts[0]
        if address.scheme != "udp":
            conversation = Conversation(checker.ground, entry_of(0, address, hosts))
            stack.callback(conversation.close)
            self._conversation = conversation

    async def ask(self, *questions: bytes, more_s: float = 0.0) -> Outcome:
        """Ask it, and keep count. Raises LocalFault, NoHost and Broken."""
        try:
            outcome = await self._said(*questions, more_s=more_s)
        except Broken:
            self._asked += 1
            raise
        self._asked += outcome.asked
        self._answered += outcome.answered
        if outcome.reply and not 0 < self._latency_s <= outcome.latency_s:
            self._latency_s = outcome.latency_s
        return outcome

    async def _ask_quietly(self, *questions: bytes) -> Outcome:
        """Ask it; that it could not be asked is no answer.

        Not counted: what does not pass for its size is no loss.
        """
        try:
            return await self._said(*questions)
        except (LocalFault, NoHost, Broken):
            return Outcome()

    async def _ask_over_tcp(self, *questions: bytes) -> Outcome:
        """Ask at the same port over TCP, where that is another way; quietly as well."""
        if self._conversation is not None:
            return Outcome()
        address = replace(self._address, scheme="tcp", via=None)
        conversation = Conversation(self._checker.ground, entry_of(0, address, [self._host]))
        try:
            return await conversation.ask(questions, self._timeout_s)
        except (LocalFault, Broken):
            return Outcome()
        finally:
            conversation.close()

    async def _said(self, *questions: bytes, more_s: float = 0.0) -> Outcome:
        timeout_s = self._timeout_s + more_s
        if self._conversation is not None:
            return await self._conversation.ask(questions, timeout_s)
        return await self._checker.udp.ask(
            self._host,
            self._address.port,
            self._address.bind,
            questions,
            timeout_s,
            timeout_s / (TRIES + 1),
        )

    # -- the checks ------------------------------------------------------------------------

    async def run(self) -> None:
        """Check it. Raises _Failed and what `ask` raises."""
        checker = self._checker
        await self.check_plain()
        self._stage = Stage.HONESTY
        await self._check_honesty()
        if checker.tunnel is not None:
            self._stage = Stage.TUNNEL
            await self._check_tunnel()
        if checker.command is not None:
            self._stage = Stage.COMMAND
            await self._check_command(checker.command)
        if self._thorough:
            self._stage = Stage.FITNESS
            self._fitness = await measure(
                self._ask_quietly, self._ask_over_tcp, checker.name, checker.sizes
            )
        self._passed = True

    async def check_plain(self) -> None:
        """Ask it for well-known names. Raises _Failed and what `ask` raises."""
        why = ""
        for questions in self._checker.plain:
            outcome = await self.ask(*questions)
            if not outcome.reply:
                raise _Failed(why or "no answer")
            reply = read(outcome.reply)
            addresses = reply.data(TYPE_A)
            if reply.rcode == NOERROR and addresses:
                if not all(map(is_public, addresses)):
                    self._stage = Stage.HONESTY
                    self._honest = False
                    raise _Failed("gives an address that is not public for a public name")
                return
            why = why or _why_not_plain(reply)
        raise _Failed(why)

    async def _check_honesty(self) -> None:
        why = ""
        for _ in range(ROUNDS):
            asked = self._checker.own_question()
            outcome = await self.ask(*[asked] * TRIES)
            if not outcome.reply:
                raise _Failed(why or "does not answer to a name that does not exist")
            if self._checker.plan.own.is_proof(outcome.reply):
                self._is_self = True
                raise _Failed("leads back to this relay")
            reply = read(outcome.reply)
            if reply.rcode == NXDOMAIN:
                self._honest = True
                return
            if reply.answers:
                self._honest = False
                raise _Failed("lies: answers a name that does not exist")
            if reply.rcode == NOERROR and not reply.truncated:
                self._honest = True
                return
            why = f"answers {reply.code} to a name that does not exist"
        raise _Failed(why)

    async def _check_tunnel(self) -> None:
        tunnel = self._checker.tunnel
        assert tunnel is not None
        why = ""
        self._tunnel = False
        for _ in range(ROUNDS):
            questions = [tunnel.question() for _ in range(TRIES)]
            outcome = await self.ask(*questions, more_s=tunnel.hold_s)
            if not outcome.reply:
                why = why or "no answer comes back"
                break
            flaw = tunnel.flaw(questions[outcome.number], outcome.reply)
            if not flaw:
                self._tunnel = True
                return
            why = flaw
        raise _Failed(f"works, but does not reach the tunnel's server: {why}")

    async def _check_command(self, command: CheckCommand) -> None:
        try:
            why = await command.why_failed(self._address)
        except CannotRun as error:
            raise LocalFault(str(error)) from error
        if why:
            raise _Failed(why)


def _in_turn(plain: list[bytes], first: int) -> list[bytes]:
    """Return the questions of one round: a name of its own first, the others for its tries."""
    return [plain[(first + number) % len(plain)] for number in range(TRIES)]


def _why_not_plain(reply: Reply) -> str:
    if reply.rcode == NOERROR:
        return "answers without an address" if not reply.truncated else "cuts a small answer"
    return f"answers {reply.code}"
