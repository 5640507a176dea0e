"""What is asked of a tunnel's own server through a candidate, and which answers only it can give.

| tunnel | question | what passes |
|---|---|---|
| dnstt | a poll of a client that nobody knows: TXT, EDNS 4096; the name is base32 of a client ID of 8 bytes and padding | NOERROR with one TXT of packets, each after its length in 2 bytes; an idle server sends none |
| dns2tcp | TXT or KEY, the request for a session (`=auth`), in base64 | NOERROR with the header of a session in base64, which repeats two numbers; the server forgets the session after some seconds |
| iodine | TXT, NULL or PRIVATE, the test of the way up (`z...`) | the name comes back in the data |
| others | a random name under the domain, TXT or the pool's record type, EDNS 1232 | NOERROR or NXDOMAIN, unless a zone above the domain says so |

A dns2tcp server says NXDOMAIN to a random name, as does a resolver that never heard of the domain;
hence its own request. iodine is not asked for its version, which would take one of its few seats.
What a tunnel cannot live without is in its question already: dns2tcp's is case-sensitive, dnstt's
needs TXT and EDNS. Nothing else of the fitness makes a candidate fail.
"""  # noqa: E501 - a table

from __future__ import annotations

import base64
import binascii
import os
from typing import Final, Protocol

from relay.discovery.check_messages import (
    NOERROR,
    NXDOMAIN,
    TYPE_KEY,
    TYPE_NULL,
    TYPE_PRIVATE,
    TYPE_TXT,
    Reply,
    keeps_case,
    labels,
    name_wire,
    question,
    read,
    texts,
)

EDNS_BYTES: Final = 1_232
DNSTT_EDNS_BYTES: Final = 4_096
"""A dnstt server answers FORMERR to less."""

DNSTT_HOLD_S: Final = 1.0
"""How long a dnstt server waits for data before it answers a poll."""

DNSTT_PADDING: Final = 8
"""Bytes of padding in a poll of its client. The byte before them is 224 and their number."""

DNS2TCP_HEADER_BYTES: Final = 7

RECORD_TYPES: Final = {
    "A": 1,
    "NS": 2,
    "CNAME": 5,
    "NULL": TYPE_NULL,
    "MX": 15,
    "TXT": TYPE_TXT,
    "KEY": TYPE_KEY,
    "AAAA": 28,
    "SRV": 33,
    "NAPTR": 35,
    "SVCB": 64,
    "HTTPS": 65,
    "CAA": 257,
    "PRIVATE": TYPE_PRIVATE,
}
"""Types that tunnels carry data in; any other is asked for as TXT."""

_NOT_ITS_ANSWER: Final = "what it answers is not from the tunnel's server"
_RECASED: Final = "it changes the case of letters, which dns2tcp cannot bear"


class TunnelCheck(Protocol):
    """The question of one kind of tunnel."""

    kind: int
    """Type of its records."""
    hold_s: float
    """How long the server itself may hold an answer back."""

    def question(self) -> bytes:
        """Return a new question."""

    def flaw(self, asked: bytes, wire: bytes) -> str:
        """Say in words for people why a reply to `asked` is not the server's; "" where it is."""


def tunnel_check(tunnel: str, domain: str, record_type: str | None) -> TunnelCheck:
    """Return what to ask for a pool's tunnel under its domain. Raises ValueError for no name."""
    suffix = name_wire(domain)
    written = (record_type or "TXT").upper()
    kind = RECORD_TYPES.get(written, TYPE_TXT)
    if tunnel == "dnstt" and kind == TYPE_TXT:
        return _Dnstt(suffix)
    if tunnel == "dns2tcp":
        return _Dns2tcp(suffix, kind if kind == TYPE_KEY else TYPE_TXT)
    if tunnel == "iodine":
        return _Iodine(suffix, kind if kind in (TYPE_NULL, TYPE_PRIVATE) else TYPE_TXT)
    return _Authority(suffix, kind)


class _Authority:
    """Any server that is the authority for the domain."""

    hold_s = 0.0
    edns_bytes = EDNS_BYTES

    def __init__(self, suffix: bytes, kind: int) -> None:
        self.kind = kind
        self.suffix = suffix

    def question(self) -> bytes:
        return self.ask(os.urandom(8).hex().encode())

    def ask(self, text: bytes) -> bytes:
        return question(labels(text) + self.suffix, self.kind, self.edns_bytes)

    def flaw(self, asked: bytes, wire: bytes) -> str:
        reply = read(wire)
        if reply.rcode not in (NOERROR, NXDOMAIN):
            return f"it answers {reply.code}"
        if reply.truncated:
            return "its answer is cut"
        above = self.suffix.lower().endswith
        if not reply.answers and reply.soa is not None:
            if reply.soa != self.suffix.lower() and above(reply.soa):
                return "it says that there is no such domain"
        elif reply.answers and not reply.data(self.kind) and not reply.data(5):
            return _NOT_ITS_ANSWER
        return ""


class _Dnstt(_Authority):
    hold_s = DNSTT_HOLD_S
    edns_bytes = DNSTT_EDNS_BYTES

    def __init__(self, suffix: bytes) -> None:
        super().__init__(suffix, TYPE_TXT)

    def question(self) -> bytes:
        padding = bytes((224 + DNSTT_PADDING,)) + os.urandom(DNSTT_PADDING)
        return self.ask(base64.b32encode(os.urandom(8) + padding).rstrip(b"=").lower())

    def flaw(self, asked: bytes, wire: bytes) -> str:
        reply = read(wire)
        if found := _error(reply):
            return found
        data = reply.data(TYPE_TXT)
        packets = texts(data[0]) if len(data) == 1 else None
        return "" if packets is not None and _are_packets(packets) else _NOT_ITS_ANSWER


class _Dns2tcp(_Authority):
    edns_bytes = 0  # its client asks without

    def question(self) -> bytes:
        # Session 0, two numbers that the server repeats, and the wish for a session.
        header = bytes(2) + os.urandom(4) + b"\x08"
        text = base64.b64encode(header).rstrip(b"=")
        return question(labels(text) + b"\x05=auth" + self.suffix, self.kind)

    def flaw(self, asked: bytes, wire: bytes) -> str:
        reply = read(wire)
        if found := _error(reply):
            return found
        label = asked[13 : 13 + asked[12]]
        is_recased = keeps_case(asked, wire) is False
        for data in reply.data(self.kind):
            text = data if self.kind == TYPE_KEY else texts(data) or b""
            answer = _of_base64(text[1:])  # one character tells the order of the records
            if len(answer) > DNS2TCP_HEADER_BYTES:
                if answer[2:6] == _of_base64(label)[2:6]:
                    return ""
                # Some spell the question in their reply as it was asked, and ask it otherwise: the
                # server's answer gives them away. These three bytes are four letters of the label.
                echoed = base64.b64encode(answer[3:6]).lower() == label[4:8].lower()
                is_recased = is_recased or echoed
        return _RECASED if is_recased else _NOT_ITS_ANSWER


class _Iodine(_Authority):
    edns_bytes = DNSTT_EDNS_BYTES

    def question(self) -> bytes:
        return self.ask(b"z" + os.urandom(10).hex().encode())

    def flaw(self, asked: bytes, wire: bytes) -> str:
        reply = read(wire)
        if found := _error(reply):
            return found
        label = asked[13 : 13 + asked[12]].lower()
        for data in reply.data(self.kind):
            echoed = data
            if self.kind == TYPE_TXT:
                echoed = _of_iodine_text(texts(data) or b"")
            if label in echoed.lower():
                return ""
        return _NOT_ITS_ANSWER


def _error(reply: Reply) -> str:
    if reply.rcode == NXDOMAIN:
        return "it says that there is no such name"
    if reply.rcode != NOERROR:
        return f"it answers {reply.code}"
    if reply.truncated:
        return "its answer is cut"
    return "" if reply.answers else "it answers without a record"


def _are_packets(data: bytes) -> bool:
    """Whether data is packets, each after its length in two bytes, and nothing else."""
    at = 0
    while at < len(data):
        at += 2 + int.from_bytes(data[at : at + 2])
        if at > len(data):
            return False
    return True


def _of_base64(text: bytes) -> bytes:
    """Return what is written in base64 without padding; nothing where it is none."""
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        return b""


_IODINE_TO_BASE32: Final = bytes.maketrans(
    b"abcdefghijklmnopqrstuvwxyz012345", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)


def _of_iodine_text(text: bytes) -> bytes:
    """Return what iodine wrote in base32 behind a letter for the coding, else nothing."""
    coded = text[1:].lower().translate(_IODINE_TO_BASE32)
    try:
        return base64.b32decode(coded + b"=" * (-len(coded) % 8))
    except binascii.Error:
        return b""
