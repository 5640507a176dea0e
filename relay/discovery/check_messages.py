"""The messages of the checks: questions made byte by byte, and as much of a reply as a check needs.

Thousands of checks a second leave no time for a whole parser. Pure. What came from outside is only
looked at: `read` takes any bytes, bounds every step and never raises.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

TYPE_A: Final = 1
TYPE_SOA: Final = 6
TYPE_NULL: Final = 10
TYPE_TXT: Final = 16
TYPE_KEY: Final = 25
TYPE_OPT: Final = 41
TYPE_PRIVATE: Final = 65399

NOERROR: Final = 0
NXDOMAIN: Final = 3

HEADER_BYTES: Final = 12
MAX_NAME_LENGTH: Final = 253
"""Octets of the longest name as written, without the last dot."""
MAX_LABEL_BYTES: Final = 63
MOST_RECORDS: Final = 1_000
"""Records of one reply that are looked at."""
MOST_POINTERS: Final = 32

_RCODES: Final = {1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
_HEAD: Final = b"\0\0\x01\0\0\x01\0\0\0\0\0\0"
_HEAD_EDNS: Final = b"\0\0\x01\0\0\x01\0\0\0\0\0\1"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a reply says."""

    rcode: int
    truncated: bool
    edns: bool
    """Whether it carries an OPT record."""
    whole: bool
    """Whether all of its records could be followed."""
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    """Type and data of the records of the answer section."""
    soa: bytes | None = None
    """The zone that says no: owner of the first SOA in the authority section, in lower case as
    `name_wire` writes it."""

    @property
    def code(self) -> str:
        """The response code as people call it."""
        return _RCODES.get(self.rcode, f"code {self.rcode}")

    def data(self, kind: int) -> list[bytes]:
        """Return the data of the answers of a type."""
        return [data for found, data in self.answers if found == kind]


def name_wire(name: str) -> bytes:
    """Return a name as it stands in a message. Raises ValueError where it cannot be one."""
    wire = b""
    for label in name.encode("ascii").split(b"."):
        if not label and name not in (".", ""):
            raise ValueError("an empty label")
        if len(label) > MAX_LABEL_BYTES:
            raise ValueError("a label of more than 63 octets")
        wire += bytes((len(label),)) + label if label else b""
    if len(wire) > MAX_NAME_LENGTH + 1:
        raise ValueError("a name of more than 253 octets")
    return wire + b"\0"


def question(name: bytes, kind: int, edns_bytes: int = 0, *, dnssec: bool = False) -> bytes:
    """Return a question with ID 0 for a name in wire form; `edns_bytes` 0: without OPT."""
    body = name + kind.to_bytes(2) + b"\0\1"
    if not edns_bytes:
        return _HEAD + body
    flags = b"\0\0\x80\0" if dnssec else b"\0\0\0\0"
    return _HEAD_EDNS + body + b"\0\0\x29" + edns_bytes.to_bytes(2) + flags + b"\0\0"


def is_reply(asked: bytes, reply: bytes) -> bool:
    """Whether `reply` may be one to our question `asked`, IDs apart. Case does not matter here.

    Some servers leave the question out of an error.
    """
    if len(reply) < HEADER_BYTES or not reply[2] & 0x80:
        return False
    if len(reply) == HEADER_BYTES:
        return bool(reply[3] & 0x0F)
    end = HEADER_BYTES
    while asked[end]:
        end += asked[end] + 1
    end += 5
    ours, theirs = asked[HEADER_BYTES:end], reply[HEADER_BYTES:end]
    return ours == theirs or (ours[-4:] == theirs[-4:] and ours.lower() == theirs.lower())


def keeps_case(asked: bytes, reply: bytes) -> bool | None:
    """Whether a reply spells the name as it was asked; None where it leaves the question out."""
    if len(reply) == HEADER_BYTES:
        return None
    return reply.startswith(asked[HEADER_BYTES : _after_name(asked, HEADER_BYTES)], HEADER_BYTES)


def filled(suffix: bytes, length: int) -> bytes:
    """Return a random name of `length` octets (as written) below `suffix`, both in wire form."""
    text = bytes(0x61 + byte % 26 for byte in os.urandom(MAX_NAME_LENGTH))
    return labels(text, length + 2 - len(suffix)) + suffix


def labels(text: bytes, room: int = 0) -> bytes:
    """Return `text` cut into labels as long as they may be, in wire form and without the root.

    With `room` exactly so many bytes are used, for which there must be text enough.
    """
    wire = b""
    if not room:
        for at in range(0, len(text), MAX_LABEL_BYTES):
            label = text[at : at + MAX_LABEL_BYTES]
            wire += bytes((len(label),)) + label
        return wire
    at = 0
    while room > 0:
        size = min(room, MAX_LABEL_BYTES + 1)
        if room - size == 1:  # one byte alone is no label
            size -= 1
        wire += bytes((size - 1,)) + text[at : at + size - 1]
        at += size - 1
        room -= size
    return wire


def mixed_case(name: bytes) -> bytes:
    """Return a name in wire form with the case of its letters at random, of both kinds."""
    lower = bytearray(name.lower())
    letters = [at for at, byte in enumerate(lower) if 0x61 <= byte <= 0x7A]
    chosen = [at for at, byte in zip(letters, os.urandom(len(letters)), strict=True) if byte & 1]
    if len(chosen) in (0, len(letters)):
        chosen = letters[::2]
    for at in chosen:
        lower[at] -= 0x20
    return bytes(lower)


def read(wire: bytes) -> Reply:
    """Return what a reply says; what cannot be followed is left out, and it is not `whole`."""
    if len(wire) < HEADER_BYTES:
        return Reply(-1, False, False, False)
    rcode = wire[3] & 0x0F
    truncated = bool(wire[2] & 0x02)
    at = HEADER_BYTES
    for _ in range(min(int.from_bytes(wire[4:6]), 2)):
        at = _after_name(wire, at)
        if at < 0:
            return Reply(rcode, truncated, False, False)
        at += 4
    answers: list[tuple[int, bytes]] = []
    soa: bytes | None = None
    edns = False
    left = MOST_RECORDS
    for section in range(3):
        for _ in range(int.from_bytes(wire[6 + 2 * section : 8 + 2 * section])):
            owner = at
            at = _after_name(wire, at)
            end = at + 10
            if at < 0 or end > len(wire) or not left:
                return Reply(rcode, truncated, edns, False, answers, soa)
            left -= 1
            kind = int.from_bytes(wire[at : at + 2])
            end += int.from_bytes(wire[at + 8 : at + 10])
            if end > len(wire):
                return Reply(rcode, truncated, edns, False, answers, soa)
            if section == 0:
                answers.append((kind, wire[at + 10 : end]))
            elif section == 1 and kind == TYPE_SOA and soa is None:
                soa = _name_at(wire, owner)
            elif section == 2 and kind == TYPE_OPT:
                edns = True
            at = end
    return Reply(rcode, truncated, edns, True, answers, soa)


def texts(data: bytes) -> bytes | None:
    """Return the strings of TXT data joined, or None where it is none."""
    joined = []
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        if end > len(data):
            return None
        joined.append(data[at + 1 : end])
        at = end
    return b"".join(joined) if data else None


def is_public(address: bytes) -> bool:
    """Whether the 4 bytes of an IPv4 address may be those of a public name.

    Not the unspecified, private, shared, loopback and link-local ones, nor those for documentation
    (portals answer 192.0.2.1) and benchmarks, multicast and beyond.
    """
    if len(address) != 4:
        return False
    first, second, third, _ = address
    return not (
        first in (0, 10, 127)
        or first >= 224
        or (first == 100 and second & 0xC0 == 64)
        or (first == 169 and second == 254)
        or (first == 172 and second & 0xF0 == 16)
        or (first == 192 and (second == 168 or (second == 0 and third in (0, 2))))
        or (first == 198 and (second & 0xFE == 18 or (second == 51 and third == 100)))
        or (first == 203 and second == 0 and third == 113)
    )


def _after_name(wire: bytes, at: int) -> int:
    """Return the position after a name that may end in a pointer, or -1."""
    size = len(wire)
    while 0 <= at < size:
        length = wire[at]
        if not length:
            return at + 1
        if length >= 0xC0:
            return at + 2
        if length > MAX_LABEL_BYTES:
            return -1
        at += length + 1
    return -1


def _name_at(wire: bytes, at: int) -> bytes | None:
    """Return a name in full, in lower case, or None where it cannot be followed."""
    name = b""
    pointers = 0
    size = len(wire)
    while at < size:
        length = wire[at]
        if not length:
            return name.lower() + b"\0"
        if length >= 0xC0:
            pointers += 1
            if pointers > MOST_POINTERS or at + 1 >= size:
                return None
            at = (length & 0x3F) << 8 | wire[at + 1]
            continue
        if length > MAX_LABEL_BYTES or len(name) > MAX_NAME_LENGTH:
            return None
        name += wire[at : at + length + 1]
        at += length + 1
    return None
