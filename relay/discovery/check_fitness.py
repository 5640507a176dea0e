"""What of a tunnel's messages a candidate lets through: measured, and no reason to fail.

All of it costs about five questions; sizes of replies see `check_sizes`.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

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
    question,
    read,
)
from relay.discovery.check_sizes import Ask, SizeQuestions
from relay.discovery.verdict import Fitness

NAME_LENGTHS: Final = (MAX_NAME_LENGTH, 220, 180, 140, 100)
"""The longest is tried alone, the others together where it does not pass."""

EDNS_BYTES: Final = 1_232


async def measure(ask: Ask, ask_over_tcp: Ask, name: bytes, sizes: SizeQuestions) -> Fitness:
    """Measure a candidate that passed. `name` is a well-known one in wire form."""
    asked = mixed_case(name)
    plain, text, longest = await asyncio.gather(
        _said(ask, question(asked, TYPE_A, EDNS_BYTES)),
        _said(ask, question(asked, TYPE_TXT, EDNS_BYTES)),
        _longest_name(ask, name),
    )
    spellings = [plain[1], text[1]]
    case = None if spellings == [None, None] else False not in spellings
    replies = [reply for reply in (plain[0], text[0]) if reply is not None]
    return Fitness(
        keeps_case=case,
        longest_name=longest,
        replies=await sizes.measure(ask, ask_over_tcp, max(plain[2], text[2])),
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
