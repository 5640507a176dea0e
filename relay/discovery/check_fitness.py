"""What of a tunnel's messages a candidate lets through: measured, and no reason to fail.

Sizes are measured with questions whose replies are known to be large. With public names that is the
root's DNSKEY with signatures, some 860 to 1,400 octets; a user may name others (`CheckPlan.sizes`).
All of it costs about five questions.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final, Protocol

from relay.discovery.check_messages import (
    MAX_NAME_LENGTH,
    NOERROR,
    NXDOMAIN,
    TYPE_A,
    TYPE_TXT,
    Reply,
    filled,
    keeps_case,
    mixed_case,
    name_wire,
    question,
    read,
)
from relay.discovery.check_tunnels import RECORD_TYPES
from relay.discovery.check_udp import Outcome
from relay.discovery.verdict import Fitness

NAME_LENGTHS: Final = (MAX_NAME_LENGTH, 220, 180, 140, 100)
"""The longest is tried alone, the others together where it does not pass."""

EDNS_BYTES: Final = 1_232
LARGE_EDNS_BYTES: Final = 4_096

MORE_TYPES: Final = {"DNSKEY": 48, "RRSIG": 46, "ANY": 255}

SizeQuestion = tuple[str, str]
"""Name and type of a question with a large reply."""

DEFAULT_SIZES: Final[tuple[SizeQuestion, ...]] = ((".", "DNSKEY"),)


class Ask(Protocol):
    """Asks one candidate a question, sent again as given where there is no answer."""

    async def __call__(self, *questions: bytes) -> Outcome:
        """Return what came of it. Never raises."""


def size_questions(sizes: Sequence[SizeQuestion]) -> tuple[bytes, ...]:
    """Return the questions in wire form. Raises ValueError for a name or type that is none."""
    made = []
    for name, kind in sizes:
        number = RECORD_TYPES.get(kind.upper()) or MORE_TYPES.get(kind.upper())
        if number is None:
            raise ValueError(f"{kind} is no type of record")
        made.append(question(name_wire(name), number, LARGE_EDNS_BYTES, dnssec=True))
    return tuple(made)


async def measure(ask: Ask, name: bytes, sizes: Sequence[bytes]) -> Fitness:
    """Measure a candidate that passed. `name` is a well-known one in wire form."""
    asked = mixed_case(name)
    plain, text, longest, (largest, drops) = await asyncio.gather(
        _said(ask, question(asked, TYPE_A, EDNS_BYTES)),
        _said(ask, question(asked, TYPE_TXT, EDNS_BYTES)),
        _longest_name(ask, name),
        _largest_reply(ask, sizes),
    )
    spellings = [plain[1], text[1]]
    case = None if spellings == [None, None] else False not in spellings
    replies = [reply for reply in (plain[0], text[0]) if reply is not None]
    smallest = max(plain[2], text[2]) if sizes else 0
    return Fitness(
        keeps_case=case,
        longest_name=longest,
        largest_reply=max(largest, smallest),
        drops_larger=drops,
        txt=text[0] is not None and text[0].rcode in (NOERROR, NXDOMAIN),
        edns=any(reply.edns for reply in replies) if replies else None,
    )


async def _said(ask: Ask, wire: bytes) -> tuple[Reply | None, bool | None, int]:
    """Return what is answered, whether the name's case is kept, and the size where it is whole."""
    outcome = await ask(wire, wire)
    if not outcome.reply:
        return None, None, 0
    reply = read(outcome.reply)
    size = 0 if reply.truncated else len(outcome.reply)
    return reply, keeps_case(wire, outcome.reply), size


async def _longest_name(ask: Ask, name: bytes) -> int:
    first, *others = NAME_LENGTHS
    if await _passes_name(ask, name, first):
        return first
    passed = await asyncio.gather(*(_passes_name(ask, name, each) for each in others))
    return max(itertools.compress(others, passed), default=0)


async def _passes_name(ask: Ask, name: bytes, length: int) -> bool:
    """Whether a name below a well-known one comes through. A tunnel's server has limits itself."""
    outcome = await ask(*(question(filled(name, length), TYPE_A, EDNS_BYTES) for _ in range(2)))
    return bool(outcome.reply) and read(outcome.reply).rcode in (NOERROR, NXDOMAIN)


async def _largest_reply(ask: Ask, sizes: Sequence[bytes]) -> tuple[int, bool]:
    """Return the size of the largest reply that came whole, and whether another did not come so.

    An error is an answer to another matter: some resolvers refuse such questions whatever the size.
    """

    async def size_of(wire: bytes) -> tuple[int, bool]:
        outcome = await ask(wire, wire)
        if not outcome.reply:
            return 0, True
        reply = read(outcome.reply)
        if reply.rcode != NOERROR:
            return 0, False
        whole = reply.whole and not reply.truncated
        return (len(outcome.reply), False) if whole else (0, True)

    found = await asyncio.gather(*map(size_of, sizes))
    largest = max((size for size, _ in found), default=0)
    return largest, any(drops for _, drops in found)
