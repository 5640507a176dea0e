"""The header block of a DNS request over HTTP/2, compressed once (RFC 7541).

All requests to a server have the same fields but for a length or a path, and these are written as
literals that do not enter the table of the server's decoder. So the block is compressed once, and
its bytes are used again. It exists in two forms: the one that enters the fields into the table, for
the first request, and the one that refers to them.
"""

from __future__ import annotations

from typing import Final

from hpack import Encoder

from workers.transports.http_exchange import DNS_MESSAGE, MAX_GET_MESSAGE_BYTES, Target

MOST_TABLE_BYTES: Final = 4_096
"""What a server allows unless it says otherwise; more is of no use here."""

# Fields as bytes (6.1, 6.2.2): two that are complete, two names that a value follows.
_GET: Final = b"\x82"
_POST: Final = b"\x83"
_PATH: Final = b"\x04"
_LENGTH: Final = b"\x0f\x0d"
_CONTENT_TYPE: Final = b"\x0f\x10" + bytes((len(DNS_MESSAGE),)) + DNS_MESSAGE


class RequestHeaders:
    """Makes the blocks for one connection; every block that is made must be sent, in order."""

    __slots__ = ("_again", "_first", "_table_bytes", "_target")

    def __init__(self, target: Target) -> None:
        self._target = target
        self._table_bytes = MOST_TABLE_BYTES
        self._first: tuple[bytes, bytes] | None
        self._again: tuple[bytes, bytes]
        self._compress()

    def block(self, message: bytes) -> tuple[bytes, bool]:
        """Return the block for a message, and whether the message is in it already (GET)."""
        front, back = self._again
        if self._first is not None:
            front, back = self._first
            self._first = None
        target = self._target
        size = len(message)
        if target.get:
            if size <= MAX_GET_MESSAGE_BYTES:
                return front + _GET + literal(_PATH, target.get_path(message)) + back, True
            front += _POST + literal(_PATH, target.path)
            back += _CONTENT_TYPE
        return front + back + literal(_LENGTH, b"%d" % size), False

    def resize(self, table_bytes: int) -> None:
        """Heed the size that the server allows for its table.

        A smaller table is told at the head of the next block. One that may grow is left as it is.
        """
        if table_bytes < self._table_bytes:
            self._table_bytes = table_bytes
            self._compress()

    def _compress(self) -> None:
        target = self._target
        front = [(b":scheme", b"https"), (b":authority", target.authority)]
        back = [(b"accept", DNS_MESSAGE)]
        if not target.get:
            front += [(b":method", b"POST"), (b":path", target.path)]
            back += [(b"content-type", DNS_MESSAGE)]
        # An entry counts its bytes and 32 (4.1). Fields that do not all fit would drive each other
        # out of the table, and no block would be like the one before: then use none.
        if sum(len(name) + len(value) + 32 for name, value in front + back) > self._table_bytes:
            self._table_bytes = 0
        # What the server's table holds from before lies behind the entries of a new encoder.
        encoder = Encoder()
        encoder.header_table_size = self._table_bytes
        self._first = (encoder.encode(front), encoder.encode(back))
        self._again = (encoder.encode(front), encoder.encode(back))


def literal(front: bytes, value: bytes) -> bytes:
    """Return a field with a value of its own (5.1, 5.2; without Huffman's code)."""
    size = len(value)
    if size < 0x7F:
        return front + bytes((size,)) + value
    rest = size - 0x7F
    length = bytearray(b"\x7f")
    while rest >= 0x80:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return front + bytes(length) + value
