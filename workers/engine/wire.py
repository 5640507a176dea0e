"""What the data path knows of a DNS message: its header and its question, nothing more.

Everything else is carried untouched. Messages come from the network: every read is bounded, and
one that cannot be followed gives a negative result, never an exception. Callers see to it that a
message has its header.

Header (RFC 1035, 4.1.1): ID 2 bytes, flags 2 bytes, four counts of 2 bytes, then the question:
labels up to a zero byte, type, class.
"""

from __future__ import annotations

from typing import Final

HEADER_BYTES: Final = 12
MAX_NAME_BYTES: Final = 255
MAX_LABEL_BYTES: Final = 63

QR: Final = 0x80  # in byte 2: this is a response
OPCODE: Final = 0x78  # in byte 2
TC: Final = 0x02  # in byte 2: truncated
RD: Final = 0x01  # in byte 2: recursion desired
RA: Final = 0x80  # in byte 3: recursion available

NOERROR: Final = 0
FORMERR: Final = 1
SERVFAIL: Final = 2
NXDOMAIN: Final = 3
NOTIMP: Final = 4
REFUSED: Final = 5

TYPE_OPT: Final = 41
CLASSIC_SIZE_BYTES: Final = 512
"""What a UDP client without EDNS can take (RFC 1035, 4.2.1)."""

MAX_UDP_BYTES: Final = 65_507
"""What fits into one UDP datagram over IPv4."""

OPT: Final = b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"
"""An OPT record of our own: 1,232 bytes, version 0, no options."""

OPT_HEAD: Final = OPT[:3]
"""What every OPT record begins with: the root and the type. Its payload size follows."""

NO_QUESTION: Final = b"\x00\x00"
ONE_QUESTION: Final = b"\x00\x01"


def question_end(wire: bytes) -> int:
    """Return the position after the first question of a message, or -1 when it cannot be followed.

    Compression has no place in the first question; a pointer there counts as undecodable.
    """
    size = len(wire)
    position = HEADER_BYTES
    if size <= position:
        return -1
    length = wire[position]
    while length:
        if length > MAX_LABEL_BYTES:
            return -1
        position += length + 1
        if position >= size:
            return -1
        length = wire[position]
    position += 5
    if position > size or position > HEADER_BYTES + MAX_NAME_BYTES + 4:
        return -1
    return position


def same_question(ours: bytes, theirs: bytes) -> bool:
    """Tell whether two questions of the same length are the same but for ASCII case of the name.

    Type and class (the last four bytes) must be equal to the bit.
    """
    return ours[-4:] == theirs[-4:] and ours.lower() == theirs.lower()


def advertised_size(wire: bytes, end: int) -> int | None:
    """Return the UDP payload size of a query's OPT record, or None where it has none.

    `end` is the end of the question. Only the usual form is looked at: the OPT record (root name,
    type 41) anywhere among the additional records of a query without answers (RFC 6891, 6.1.2).
    """
    position = end
    records = int.from_bytes(wire[6:8]) + int.from_bytes(wire[8:10]) + int.from_bytes(wire[10:12])
    for _ in range(records):
        position = _name_end(wire, position)
        if position < 0 or position + 10 > len(wire):
            return None
        if int.from_bytes(wire[position : position + 2]) == TYPE_OPT:
            return int.from_bytes(wire[position + 2 : position + 4])
        position += 10 + int.from_bytes(wire[position + 8 : position + 10])
    return None


def _name_end(wire: bytes, position: int) -> int:
    """Return the position after a name that may end in a compression pointer, or -1."""
    size = len(wire)
    while position < size:
        length = wire[position]
        if length == 0:
            return position + 1
        if length & 0xC0 == 0xC0:
            return position + 2
        if length > MAX_LABEL_BYTES:
            return -1
        position += length + 1
    return -1


def error_reply(query: bytes, rcode: int, end: int) -> bytes:
    """Return an error response to `query`: its ID, opcode, RD and question, and `rcode`.

    `end` is the end of its question, or -1 where it has none that can be followed; then the
    response is a bare header. A query with EDNS gets an OPT record back (RFC 6891, 6.1.1).
    """
    flags = bytes((QR | (query[2] & (OPCODE | RD)), RA | rcode))
    if end < 0:
        return query[:2] + flags + bytes(8)
    question = query[HEADER_BYTES:end]
    return query[:2] + flags + _question_only(query, end, question)


def truncated(reply: bytes, query: bytes, end: int) -> bytes:
    """Return the reply to `query` cut to its question, with TC set (RFC 2181, 9).

    `end` is the end of the question in both.
    """
    flags = bytes((reply[2] | TC, reply[3]))
    return reply[:2] + flags + _question_only(query, end, reply[HEADER_BYTES:end])


def _question_only(query: bytes, end: int, question: bytes) -> bytes:
    """Return counts and question, and an OPT record if the query has one (RFC 6891, 6.1.1)."""
    if advertised_size(query, end) is None:
        return b"\x00\x01\x00\x00\x00\x00\x00\x00" + question
    return b"\x00\x01\x00\x00\x00\x00\x00\x01" + question + OPT


def probe(name: str) -> bytes:
    """Return a question for the address of `name`: recursion desired, class IN, type A."""
    labels = b"".join(
        bytes((len(label),)) + label for label in name.encode("ascii").split(b".") if label
    )
    return b"\x00\x00\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + labels + b"\x00\x00\x01\x00\x01"
