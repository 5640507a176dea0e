"""Messages that no honest client or resolver sends, and what the rules say of each.

All are drawn from a seed. `fate_of_query` and `forgeries` are a second reading of the rules, not
taken from the relay's code: what a listener must do with a message (RFC 1035, 4.1; RFC 9619 for
the count of questions), and which replies may not count as an answer.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

from tests.load_client import numbered
from tests.rig.wire import (
    FLAG_AA,
    FLAG_QR,
    FLAG_RA,
    FLAG_RD,
    HEADER_BYTES,
    MAX_LABEL_BYTES,
    MAX_NAME_BYTES,
    TYPE_A,
    TYPE_NULL,
    opt_wire,
    query_wire,
    question_of,
    record_wire,
    reply_wire,
)

LARGEST_DATAGRAM_BYTES = 65_507
POINTER_TO_ITSELF = b"\xc0\x0c"

QUERY = "query"
"""A fate: it is a question and goes to a resolver. The others are names of drop counters."""


INPUT_DROPS = ("client_short", "client_response", "client_notimp", "client_formerr")


def fate_of_query(message: bytes) -> str:
    """What a listener must make of a message: `QUERY`, or the counter under which it is dropped."""
    if len(message) < HEADER_BYTES:
        return "client_short"
    flags, questions = struct.unpack_from("!HH", message, 2)
    if flags & FLAG_QR:
        return "client_response"
    if flags >> 11 & 0x0F:
        return "client_notimp"
    if questions != 1:
        return "client_formerr"
    at = HEADER_BYTES
    while True:
        if at >= len(message):
            return "client_formerr"
        size = message[at]
        at += 1
        if not size:
            break
        if size > MAX_LABEL_BYTES:  # a pointer, or a kind of label that does not exist
            return "client_formerr"
        at += size
    too_long = at - HEADER_BYTES > MAX_NAME_BYTES
    return "client_formerr" if too_long or at + 4 > len(message) else QUERY


# -- at the listener ---------------------------------------------------------------------------

Mutation = Callable[[random.Random, bytes], bytes]


def _random_bytes(draw: random.Random, _: bytes) -> bytes:
    return draw.randbytes(draw.randrange(600))


def _random_after_id(draw: random.Random, query: bytes) -> bytes:
    return query[:2] + draw.randbytes(draw.randrange(300))


def _bits_flipped(draw: random.Random, query: bytes) -> bytes:
    value = int.from_bytes(query, "big")
    for _ in range(draw.randrange(1, 9)):
        value ^= 1 << draw.randrange(len(query) * 8)
    return value.to_bytes(len(query), "big")


def _cut(draw: random.Random, query: bytes) -> bytes:
    return query[: draw.randrange(len(query))]


def _extended(draw: random.Random, query: bytes) -> bytes:
    return query + draw.randbytes(draw.randrange(1, 300))


def _counts_changed(draw: random.Random, query: bytes) -> bytes:
    counts = struct.pack("!4H", *(draw.choice((0, 1, 2, 255, 65_535)) for _ in range(4)))
    return query[:4] + counts + query[HEADER_BYTES:]


def _flags_changed(draw: random.Random, query: bytes) -> bytes:
    return query[:2] + draw.randbytes(2) + query[4:]


def _pointer_loop(draw: random.Random, query: bytes) -> bytes:
    labels = [b"\x01a" * draw.randrange(5), POINTER_TO_ITSELF, b"\x00\x01\x00\x01"]
    return query[:HEADER_BYTES] + b"".join(labels)


def _pointer_anywhere(draw: random.Random, query: bytes) -> bytes:
    pointer = struct.pack("!H", 0xC000 | draw.randrange(0x4000))
    return query[:HEADER_BYTES] + pointer + query[HEADER_BYTES + 2 :]


def _odd_label(draw: random.Random, query: bytes) -> bytes:
    return query[:HEADER_BYTES] + bytes([draw.randrange(64, 192)]) + query[HEADER_BYTES + 1 :]


def _endless_name(draw: random.Random, query: bytes) -> bytes:
    size = draw.randrange(1, 64)
    label = bytes([size]) + b"x" * size
    return query[:HEADER_BYTES] + label * draw.randrange(300) + b"\0\0\x10\0\x01"


def _label_beyond_end(draw: random.Random, query: bytes) -> bytes:
    return query[:HEADER_BYTES] + bytes([draw.randrange(40, 64)]) + query[-10:]


def _response(draw: random.Random, query: bytes) -> bytes:
    return reply_wire(query, [record_wire(TYPE_A, draw.randbytes(4))])


def _bad_opt(draw: random.Random, query: bytes) -> bytes:
    opt = opt_wire(draw.randrange(65_536))
    counts = b"\0\x01\0\0\0\0" + draw.choice((b"\0\x01", b"\xff\xff"))
    return query[:4] + counts + query[HEADER_BYTES:] + opt[: draw.randrange(12)]


def _empty(_: random.Random, __: bytes) -> bytes:
    return b""


MUTATIONS: tuple[Mutation, ...] = (
    _random_bytes,
    _random_after_id,
    _bits_flipped,
    _cut,
    _extended,
    _counts_changed,
    _flags_changed,
    _pointer_loop,
    _pointer_anywhere,
    _odd_label,
    _endless_name,
    _label_beyond_end,
    _response,
    _bad_opt,
    _empty,
)

LARGEST_EVERY = 1_000
"""One message in so many is as large as a datagram can be."""


def hostile_queries(seed: int, count: int) -> Iterator[bytes]:
    """`count` messages: every mutation in turn, now and then one of the largest size."""
    draw = random.Random(seed)
    filler = draw.randbytes(LARGEST_DATAGRAM_BYTES)
    heads = (b"", bytes(HEADER_BYTES), numbered(1), numbered(1)[:HEADER_BYTES] + POINTER_TO_ITSELF)
    for number in range(count):
        if number % LARGEST_EVERY == LARGEST_EVERY - 1:
            yield (draw.choice(heads) + filler)[:LARGEST_DATAGRAM_BYTES]
            continue
        query = numbered(number, draw.getrandbits(16))
        yield MUTATIONS[number % len(MUTATIONS)](draw, query)


def framed_as_is(length: int, data: bytes) -> bytes:
    """Bytes behind a length that need not be theirs."""
    return length.to_bytes(2, "big") + data


def messages_in(stream: bytes) -> list[bytes]:
    """The whole messages of a TCP stream, each with its length before it."""
    messages, at = [], 0
    while at + 2 <= len(stream):
        end = at + 2 + int.from_bytes(stream[at : at + 2], "big")
        if end > len(stream):
            break
        messages.append(stream[at + 2 : end])
        at = end
    return messages


def hostile_streams(seed: int, count: int) -> Iterator[bytes]:
    """What `count` TCP clients send: noise, lengths that are wrong, and frames of bad messages."""
    draw = random.Random(seed)
    for number, message in enumerate(hostile_queries(seed, count)):
        match number % 6:
            case 0:
                yield draw.randbytes(draw.randrange(2_000))
            case 1:  # announces more than comes
                size = len(message)
                yield framed_as_is(min(65_535, size + draw.randrange(1, 60_000)), message)
            case 2:  # announces less than comes
                yield framed_as_is(draw.randrange(len(message) + 1), message)
            case 3:
                yield bytes(2 * draw.randrange(1, 50))  # frames of no length
            case 4:
                parts = [message, draw.randbytes(draw.randrange(40)), numbered(number), b""]
                draw.shuffle(parts)
                yield b"".join(framed_as_is(len(part), part) for part in parts)
            case _:
                yield framed_as_is(len(message), message)[: draw.randrange(1, len(message) + 2)]


# -- in a resolver's place ---------------------------------------------------------------------

UNMATCHED, MALFORMED = "reply_unmatched", "reply_malformed"


def forgeries(query: bytes, draw: random.Random) -> list[tuple[bytes, str]]:
    """Messages that are no answer to `query`, and the counter under which each is dropped.

    A reply that is cut only behind its question is not among them: its ID and question match, so
    it is the resolver's word, and passing it on is the client's own business.
    """
    good = reply_wire(query, [record_wire(TYPE_NULL, b"forged")])
    question_ends = HEADER_BYTES + len(question_of(query))
    question = question_of(query)
    wrong_ids = [int.from_bytes(query[:2], "big") ^ (1 << bit) for bit in range(16)]
    forged = [(number.to_bytes(2, "big") + good[2:], UNMATCHED) for number in wrong_ids]
    other_questions = [
        question_of(query_wire("forged.load.rig", TYPE_NULL)),
        question_of(query_wire("", TYPE_NULL)),
        question[:-4] + struct.pack("!HH", TYPE_A, 1),  # another type
        question[:-2] + struct.pack("!H", 3),  # another class
        bytes([question[0]]) + bytes([question[1] ^ 0x01]) + question[2:],
        bytes([question[0]]) + bytes([question[1] ^ 0x80]) + question[2:],
        POINTER_TO_ITSELF + question[-4:],
        b"\x01a" + POINTER_TO_ITSELF + question[-4:],
        b"\xff" * len(question),
        b"\x3fx" + question[2:],  # a label beyond the end
    ]
    forged += [(good[:HEADER_BYTES] + each + b"\xff" * 20, UNMATCHED) for each in other_questions]
    forged += [(good[:size], MALFORMED) for size in range(HEADER_BYTES)]
    forged += [(good[:size], UNMATCHED) for size in range(HEADER_BYTES, question_ends)]
    forged.append((query, MALFORMED))  # the question come back
    forged.append((good[:2] + b"\x01\x80" + good[4:], MALFORMED))  # a reply without its bit
    no_question = struct.pack("!5H", FLAG_QR | FLAG_AA | FLAG_RD | FLAG_RA, 0, 0, 0, 0)
    forged.append((query[:2] + no_question, UNMATCHED))
    other_id = (int.from_bytes(query[:2], "big") ^ draw.randrange(1, 65_536)).to_bytes(2, "big")
    forged.append((other_id + draw.randbytes(draw.randrange(10, 1_200)), UNMATCHED))
    return forged
