"""The question by which a relay recognises itself.

A check asks every candidate for a name that cannot exist: an honest resolver says so, a liar does
not. Where the question comes back to this relay (by its own address, a wildcard, or the system's
stub that forwards to it) a worker answers it with a proof that nobody else knows, whatever pool it
arrives at, and never forwards it. So the one question tells the honest, the liars and the loop.

The name is `<label><mark>.com`: 40 letters and digits, new for every run and question. Why there:
- It cannot exist: nobody registers 40 random characters, and names of gTLDs must not be wildcards.
- It is what resolvers that replace NXDOMAIN by a page of their own replace. Many leave names
  under unknown or reserved TLDs alone, and would seem honest.
- A stub forwards it. `invalid`, `test` and the like (RFC 6761) are answered by the stub itself,
  and so is `empty.as112.arpa` by BIND; a single label leaves few stubs.
- A stub that validates takes our unsigned answer: the zone's NSEC3 records opt out, so they prove
  that a name without DS may be unsigned, and they let nobody make up an NXDOMAIN from its cache.
  (Directly below the root, or under any other TLD with full proofs, our answer would be bogus.)
  For that its question for the DS of the name must go on to the zone: `is_own` lets it pass.

Pure: bytes in, bytes out. Both sides use it, the supervisor to ask, the workers to answer.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from hashlib import blake2b
from string import ascii_lowercase, digits
from typing import Final

LABEL_CHARS: Final = 20
MARK_CHARS: Final = 20

NAME_LENGTH: Final = LABEL_CHARS + MARK_CHARS
"""Octets of the first label of an own question, always the same: one look at that byte tells nearly
every other question apart. Tunnels fill their labels, or nearly, to 57 to 63."""

PARENT: Final = b"\x03com\x00"

_NAME_AT: Final = 12  # behind the header: length byte, first label, parent
_LABEL_AT: Final = _NAME_AT + 1
_PARENT_AT: Final = _LABEL_AT + NAME_LENGTH
_TYPE_AT: Final = _PARENT_AT + len(PARENT)
_END: Final = _TYPE_AT + 4

_QR: Final = 0x80
_RD: Final = 0x01
_RA: Final = 0x80
_TYPE_A: Final = b"\x00\x01"
_TYPE_TXT: Final = b"\x00\x10"
_TYPE_DS: Final = b"\x00\x2b"
_CLASS_IN: Final = b"\x00\x01"
_NO_TTL: Final = bytes(4)
_TO_QUESTION: Final = b"\xc0\x0c"  # compression pointer to the name in the question
_OPT_START: Final = b"\x00\x00\x29"
_OPT: Final = b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"  # 1,232 bytes, version 0


@dataclass(frozen=True, slots=True)
class OwnQuestion:
    """`label` and `proof` of one run of the relay: letters and digits, in lower case."""

    label: bytes
    """What every own question begins with, `LABEL_CHARS` octets."""
    proof: bytes
    """What only this relay answers it with, 1 to 255 octets."""
    _address: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.label) != LABEL_CHARS or not 0 < len(self.proof) < 256:
            raise ValueError("an own question has a label of 20 octets and a proof of 1 to 255")
        # 240.0.0.0/4 belongs to nobody, and is none of the private nets that stubs filter.
        hashed = blake2b(self.proof, digest_size=4).digest()
        object.__setattr__(self, "_address", bytes((0xF0 | (hashed[0] & 7),)) + hashed[1:])

    @classmethod
    def new(cls) -> OwnQuestion:
        """Make the one of this run."""
        letters = ascii_lowercase + digits
        label = "".join(secrets.choice(letters) for _ in range(LABEL_CHARS))
        return cls(label.encode(), secrets.token_hex(16).encode())

    def question_name(self, random: bytes | str) -> str:
        """Return a name to ask for, as text without the last dot; `random` tells it from others.

        Any bytes or text will do. The name itself, not `random`, is what goes out.
        """
        data = random.encode() if isinstance(random, str) else random
        mark = blake2b(data, digest_size=MARK_CHARS // 2).hexdigest()
        return f"{self.label.decode()}{mark}.com"

    def is_own(self, wire: bytes) -> bool:
        """Tell whether a query asks for an own name, of any type but DS (see the module).

        The case of letters does not matter: resolvers mix it on the way. `wire` may be anything.
        """
        return (
            wire[_NAME_AT:_LABEL_AT] == b"%c" % NAME_LENGTH
            and wire[_LABEL_AT : _LABEL_AT + LABEL_CHARS].lower() == self.label
            and wire[_PARENT_AT:_TYPE_AT].lower() == PARENT
            and len(wire) >= _END
            and wire[_TYPE_AT : _TYPE_AT + 2] != _TYPE_DS
            and not wire[2] & _QR
        )

    def reply(self, wire: bytes) -> bytes:
        """Return the answer to an own question: NOERROR, its question, one record with the proof.

        The record is a TXT with the proof; for type A it is an address made from the proof, since
        a stub may drop an answer of another type than it asked for. `wire` is one that `is_own`
        takes.
        """
        if wire[_TYPE_AT : _TYPE_AT + 2] == _TYPE_A:
            rtype, data = _TYPE_A, self._address
        else:
            rtype, data = _TYPE_TXT, bytes((len(self.proof),)) + self.proof
        edns = wire[10:12] != b"\x00\x00" and wire.startswith(_OPT_START, _END)
        return b"".join(
            (
                wire[:2],
                bytes((_QR | (wire[2] & _RD), _RA)),
                b"\x00\x01\x00\x01\x00\x00\x00",
                bytes((edns,)),
                wire[_NAME_AT:_END],
                _TO_QUESTION + rtype + _CLASS_IN + _NO_TTL,
                len(data).to_bytes(2),
                data,
                _OPT if edns else b"",
            )
        )

    def is_proof(self, wire: bytes) -> bool:
        """Tell whether a reply carries the proof: the question came to this relay. Never raises."""
        if len(wire) < _END or not wire[2] & _QR:
            return False
        return self.proof in wire[_END:] or b"\x00\x04" + self._address in wire[_END:]
