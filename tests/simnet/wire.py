"""The messages of the simulated network: real DNS bytes, made by joining prebuilt pieces.

Every question of a client has the same shape, so that nothing has to be parsed on the way:

    ID (2) flags and counts (10) | 8 <number in hex, 8> <n> <label> 1 t 3 sim 0 | type class | OPT

The number says which question it is; the label belongs to the client, and resolvers and the
server may treat labels differently. Answers carry one TXT record: an empty one says "no data", a
full one starts with a packet number of four bytes.
"""

from __future__ import annotations

from typing import Final

HEADER_BYTES: Final = 12
NUMBER_AT: Final = slice(13, 21)
"""Where the number of a question stands, in questions and in answers."""

LABEL_AT: Final = 22
"""Where the label of the client starts; the byte before holds its length."""

QUERY_HEAD: Final = b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x08"
"""From the flags on: RD, one question, one additional record; then the length of the number."""

ANSWER_HEAD: Final = b"\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00"
SERVFAIL_HEAD: Final = b"\x81\x82\x00\x01\x00\x00\x00\x00\x00\x00"
REFUSED_HEAD: Final = b"\x81\x85\x00\x01\x00\x00\x00\x00\x00\x00"
TRUNCATED_HEAD: Final = b"\x83\x80\x00\x01\x00\x00\x00\x00\x00\x00"

NOERROR: Final = 0
SERVFAIL: Final = 2
REFUSED: Final = 5

OPT_4096: Final = b"\x00\x00\x29\x10\x00\x00\x00\x00\x00\x00\x00"
RECORD_BYTES: Final = 12
"""What comes before the data of the one answer record, whose owner is a pointer."""

IDS: Final = [number.to_bytes(2) for number in range(65_536)]


def query_tail(label: bytes) -> bytes:
    """Return everything that follows the number in the questions of a client."""
    name = bytes((len(label),)) + label + b"\x01t\x03sim\x00"
    return name + b"\x00\x10\x00\x01" + OPT_4096


def txt_record(data: bytes) -> bytes:
    """Return a TXT record for the question's name with `data` as it stands."""
    return b"\xc0\x0c\x00\x10\x00\x01\x00\x00\x00\x00" + len(data).to_bytes(2) + data


def empty_record(size_bytes: int) -> bytes:
    """Return a record that carries no packet: one string of zeroes, `size_bytes` in all."""
    return txt_record(bytes((size_bytes - 1,)) + bytes(size_bytes - 1))


def packet_record(packet: int, padding: bytes) -> bytes:
    """Return a record that carries the packet of that number. `padding`: see `padding_of`."""
    return txt_record(b"\x04" + packet.to_bytes(4) + padding)


def padding_of(payload_bytes: int) -> bytes:
    """Return the strings that fill a packet up to `payload_bytes` of record data."""
    left = payload_bytes - 5
    strings = b""
    while left > 0:
        size = min(left, 256)
        strings += bytes((size - 1,)) + b"\xaa" * (size - 1)
        left -= size
    return strings


def packet_of(record_data: bytes) -> int:
    """Return the number of the packet that a full record's data carries."""
    return int.from_bytes(record_data[1:5])


def recased(question: bytes) -> bytes:
    """Return a question with the letters of its name in the other case.

    Length bytes are below 64 and no letters; type and class stay.
    """
    return question[:-4].swapcase() + question[-4:]
