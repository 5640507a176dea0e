"""DNS messages byte by byte, for tests that care about every one of them.

dnspython normalises what it parses; these helpers do not. Names are sequences of raw labels, so
that case, dots inside labels and 8-bit bytes go through as given. A text such as `a.b.c` is
taken for its plain labels.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence

TYPE_A, TYPE_NULL, TYPE_TXT, TYPE_OPT, TYPE_PRIVATE = 1, 10, 16, 41, 65399
CLASS_IN = 1
FLAG_QR, FLAG_AA, FLAG_TC, FLAG_RD, FLAG_RA = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = range(6)
HEADER_BYTES = 12
MAX_NAME_BYTES = 255
MAX_LABEL_BYTES = 63

Name = str | Sequence[bytes]


def labels_of(name: Name) -> list[bytes]:
    """The raw labels of a name, without the root."""
    if isinstance(name, str):
        return [label.encode("latin-1") for label in name.split(".") if label]
    return list(name)


def name_wire(name: Name) -> bytes:
    """A name as it stands in a message, not compressed."""
    wire = b"".join(bytes([len(label)]) + label for label in labels_of(name)) + b"\0"
    assert len(wire) <= MAX_NAME_BYTES, f"name of {len(wire)} bytes"
    return wire


def longest_name(suffix: Name, filler: bytes = b"x") -> list[bytes]:
    """A name under `suffix` of exactly 255 bytes, its front labels made of `filler`."""
    tail = labels_of(suffix)
    room = MAX_NAME_BYTES - len(name_wire(tail))
    front: list[bytes] = []
    while room:
        size = min(room, MAX_LABEL_BYTES + 1)
        if room - size == 1:  # one byte alone cannot be a label
            size -= 1
        front.append((filler * size)[: size - 1])
        room -= size
    return front + tail


def question_wire(name: Name, qtype: int, qclass: int = CLASS_IN) -> bytes:
    """The question section's bytes."""
    return name_wire(name) + struct.pack("!HH", qtype, qclass)


def opt_wire(
    size_bytes: int = 4096, *, dnssec_ok: bool = False, options: Sequence[tuple[int, bytes]] = ()
) -> bytes:
    """An OPT record advertising `size_bytes`, with (code, data) options in the order given."""
    data = b"".join(struct.pack("!HH", code, len(value)) + value for code, value in options)
    flags = 0x8000 if dnssec_ok else 0
    return struct.pack("!BHHBBHH", 0, TYPE_OPT, size_bytes, 0, 0, flags, len(data)) + data


def query_wire(
    name: Name,
    qtype: int = TYPE_TXT,
    *,
    message_id: int | None = None,
    flags: int = FLAG_RD,
    opt: bytes = b"",
) -> bytes:
    """A query; a random ID unless one is given; `opt` as `opt_wire` makes it."""
    number = secrets.randbelow(65_536) if message_id is None else message_id
    header = struct.pack("!HHHHHH", number, flags, 1, 0, 0, 1 if opt else 0)
    return header + question_wire(name, qtype) + opt


def message_id(wire: bytes) -> int:
    """ID of a message."""
    return int.from_bytes(wire[:2], "big")


def with_id(wire: bytes, number: int) -> bytes:
    """The same message under another ID."""
    return number.to_bytes(2, "big") + wire[2:]


def rcode_of(wire: bytes) -> int:
    """Response code of a message (the four bits of the header)."""
    return wire[3] & 0x0F


def is_truncated(wire: bytes) -> bool:
    """Whether TC is set."""
    return bool(wire[2] & 0x02)


def answer_count(wire: bytes) -> int:
    """Records in the answer section."""
    return int.from_bytes(wire[6:8], "big")


def question_of(wire: bytes) -> bytes:
    """The bytes of the first question: name, type, class. The name must not be compressed."""
    end = HEADER_BYTES
    while wire[end]:
        end += 1 + wire[end]
    return wire[HEADER_BYTES : end + 5]


def record_wire(qtype: int, data: bytes, *, ttl_s: int = 0, qclass: int = CLASS_IN) -> bytes:
    """A record owned by the question's name (a pointer to it)."""
    return struct.pack("!HHHIH", 0xC00C, qtype, qclass, ttl_s, len(data)) + data


def txt_data(size_bytes: int, filler: bytes = b"t") -> bytes:
    """TXT data of `size_bytes` of text in strings of 255."""
    parts: list[bytes] = []
    left = size_bytes
    while left or not parts:
        size = min(left, 255)
        parts.append(bytes([size]) + (filler * size)[:size])
        left -= size
    return b"".join(parts)


def reply_wire(
    query: bytes,
    records: Sequence[bytes] = (),
    *,
    rcode: int = NOERROR,
    flags: int = FLAG_QR | FLAG_AA | FLAG_RD | FLAG_RA,
    opt: bytes = b"",
) -> bytes:
    """A reply to `query`, with its ID and question and `records` as `record_wire` makes them."""
    counts = struct.pack("!HHHH", 1, len(records), 0, 1 if opt else 0)
    head = query[:2] + (flags | rcode).to_bytes(2, "big") + counts
    return head + question_of(query) + b"".join(records) + opt


def reply_of_size(query: bytes, size_bytes: int, qtype: int = TYPE_NULL) -> bytes:
    """A reply of exactly `size_bytes`, filled by one record of `qtype`."""
    overhead = len(reply_wire(query, [record_wire(qtype, b"")]))
    fill = bytes(range(256)) * ((size_bytes - overhead) // 256 + 1)
    return reply_wire(query, [record_wire(qtype, fill[: size_bytes - overhead])])


def framed(wire: bytes) -> bytes:
    """A message with the length that TCP puts before it."""
    return len(wire).to_bytes(2, "big") + wire
