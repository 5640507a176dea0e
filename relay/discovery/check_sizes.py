"""How large the replies are that a candidate lets through, in the steps of `REPLY_STEPS`.

Asked are questions whose replies are large, with EDNS 4,096 and DNSSEC. What comes back whole has
passed. What does not, or is cut, failed for its size only if that size is known: it is learned from
any candidate that brings the same reply whole, at the worst over TCP, which cuts nothing. So a
record that grew or shrank since it was chosen makes no verdict wrong; it only decides less.

A candidate is asked no more than what still decides something: mostly one question that passes and
one that is cut. `SizeQuestions` belongs to a `Checker` and holds what was learned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from relay.discovery.check_messages import NOERROR, name_wire, question, read
from relay.discovery.check_tunnels import RECORD_TYPES
from relay.discovery.check_udp import Outcome
from relay.discovery.verdict import ReplySizes

EDNS_BYTES: Final = 4_096
MORE_TYPES: Final = {"SOA": 6, "DS": 43, "RRSIG": 46, "DNSKEY": 48, "ANY": 255}

DEFAULT_SIZE_QUESTIONS: Final = (
    ". DNSKEY",
    "arpa DNSKEY",
    "microsoft.com TXT",
    "apple.com TXT",
    "paypal.com TXT",
    ". SOA",
    "com DS",
)
"""The keys of a signed zone have some 850 to 1,400 octets with their signature; large firms prove
to dozens of services, by a TXT record each, that a domain is theirs; one signed record of the root
has 350 to 400 octets. Those come last: where a larger one passes they decide nothing."""

LEARN_TRIES: Final = 5
"""Candidates that are asked over TCP how large one reply is. They are asked at once: on a network
without TCP each takes seconds to fail, and everybody else waits for what they find out."""

MOST_SILENT: Final = 2 * LEARN_TRIES
"""After so many in a row that said nothing over TCP, nobody is asked over TCP any more."""


class Ask(Protocol):
    """Asks one candidate a question, sent again as given where there is no answer."""

    async def __call__(self, *questions: bytes) -> Outcome:
        """Return what came of it. Never raises."""


@dataclass(slots=True)
class _Question:
    wire: bytes
    size: int = 0
    """Octets of the largest whole reply that anybody brought; 0: not known."""
    tries_left: int = LEARN_TRIES
    under_way: int = 0
    """Candidates that are being asked over TCP."""

    def learn(self, size: int) -> None:
        """Take in the octets of a whole reply.

        A larger one than was asked for decides nothing. Were it believed, one candidate that
        answers 65,535 octets would keep all others from being asked.
        """
        if size <= EDNS_BYTES:
            self.size = max(self.size, size)


class SizeQuestions:
    """The questions of one checker. Raises ValueError as `size_question` does."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._questions = [_Question(size_question(text)) for text in texts]
        self._learned_more = asyncio.Condition()
        self._silent = 0
        """How many in a row said nothing over TCP."""

    async def measure(self, ask: Ask, ask_over_tcp: Ask, largest: int) -> ReplySizes:
        """Measure a candidate. `largest`: octets of the largest reply that it brought already."""
        sizes = ReplySizes(largest)
        over_tcp: Ask | None = ask_over_tcp
        for each in self._questions:
            if not sizes.is_open(each.size):
                continue
            size = _whole_size(await ask(each.wire, each.wire))
            if size:
                each.learn(size)
                sizes = sizes.passed(size)
            elif size == 0:
                if not await self._learn(each, over_tcp):
                    over_tcp = None  # who says nothing there is not waited for again
                if each.size:
                    sizes = sizes.failed(each.size)
        return sizes

    async def _learn(self, asked: _Question, ask_over_tcp: Ask | None) -> bool:
        """Find out how large a reply is that a candidate did not bring, if it is to be known.

        Return False where the candidate says nothing over TCP.
        """
        said = ask_over_tcp is not None
        if ask_over_tcp and not asked.size and asked.tries_left and self._silent < MOST_SILENT:
            asked.tries_left -= 1
            asked.under_way += 1
            try:
                outcome = await ask_over_tcp(asked.wire)
                asked.learn(_whole_size(outcome) or 0)
                said = bool(outcome.reply)
                self._silent = 0 if said else self._silent + 1
            finally:
                asked.under_way -= 1
                async with self._learned_more:
                    self._learned_more.notify_all()
        async with self._learned_more:  # what one finds out the others need not ask
            await self._learned_more.wait_for(lambda: asked.size or not asked.under_way)
        return said


def size_question(text: str) -> bytes:
    """Return a question such as "example.com TXT" in wire form.

    Raises ValueError, with a message for people, where there is no name or no type that is known.
    """
    name, _, kind = text.strip().rpartition(" ")
    number = RECORD_TYPES.get(kind.upper()) or MORE_TYPES.get(kind.upper())
    if not name or number is None:
        raise ValueError("expected a name and a type of record, such as example.com TXT")
    return question(name_wire(name.strip().removesuffix(".")), number, EDNS_BYTES, dnssec=True)


def _whole_size(outcome: Outcome) -> int | None:
    """Return the octets of a whole reply, or 0 where none came; None where it says nothing.

    An error is an answer to another matter: some refuse such questions whatever the size.
    """
    if not outcome.reply:
        return 0
    reply = read(outcome.reply)
    if reply.truncated:
        return 0
    if reply.rcode != NOERROR:
        return None
    return len(outcome.reply) if reply.whole else 0
