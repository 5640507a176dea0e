"""DNS stamps (`sdns://...`): how public lists of resolvers spell everything about one in one word.

Used by: `relay.resolver_address`. Pure. A stamp is base64url around one byte of protocol, eight of
properties and fields with their lengths before them; the format is that of
https://dnscrypt.info/stamps-specifications. This module takes it apart and judges nothing in it:
what comes out are texts from a stranger. It raises `AddressError` and nothing else.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

from relay.config_errors import AddressError

PREFIX: Final = "sdns://"

_PLAIN, _DOH, _DOT = 0x00, 0x02, 0x03
_SCHEMES: Final = {_PLAIN: "udp", _DOH: "https", _DOT: "dot"}
_NOT_SPOKEN: Final = {
    0x01: "DNSCrypt",
    0x04: "DNS over QUIC",
    0x05: "Oblivious DoH",
    0x81: "a DNSCrypt relay",
    0x85: "an Oblivious DoH relay",
}
_PROPERTIES_BYTES: Final = 8
_MORE: Final = 0x80
"""In the length of a list's item: another item follows."""

_HASH_BYTES: Final = 32


class UnspokenStamp(AddressError):
    """A stamp that is well, of a protocol that the relay does not speak."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a stamp says, as it is written there."""

    scheme: str
    """udp, dot or https."""
    address: str
    """`IP`, `IP:port`, `:port` or empty."""
    name: str = ""
    """Host name of the server, perhaps with a port; empty for udp."""
    path: str = ""
    hashes: int = 0
    """How many certificates it pins."""


def decode(text: str) -> Stamp:
    """Return what the stamp `text` says; raise `AddressError` where it is none that is spoken."""
    reader = _Reader(_decoded(text))
    protocol = reader.byte()
    if protocol not in _SCHEMES:
        kind = _NOT_SPOKEN.get(protocol, f"the unknown protocol 0x{protocol:02x}")
        raise UnspokenStamp(
            f"is a stamp of {kind}; the relay takes those of plain DNS, DoT and DoH servers"
        )
    reader.take(_PROPERTIES_BYTES)
    stamp = _fields(_SCHEMES[protocol], reader)
    if reader.left:
        raise AddressError(f"the stamp goes on for {reader.left} bytes after its end")
    return stamp


def _fields(scheme: str, reader: _Reader) -> Stamp:
    address = reader.text()
    if scheme == "udp":
        return Stamp(scheme, address)
    hashes = [item for item in reader.items() if item]
    if any(len(item) != _HASH_BYTES for item in hashes):
        raise AddressError("a hash in the stamp is not of 32 bytes")
    name = reader.text()
    path = reader.text() if scheme == "https" else ""
    if reader.left:
        reader.items()  # resolvers to look the name up with: the relay has its own for that
    return Stamp(scheme, address, name, path, len(hashes))


class _Reader:
    """Takes bytes from the front; what is not there is an `AddressError`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise AddressError("the stamp is cut off")
        self._at += count
        return self._data[self._at - count : self._at]

    def byte(self) -> int:
        return self.take(1)[0]

    def text(self) -> str:
        field = self.take(self.byte())
        try:
            text = field.decode("ascii")
        except UnicodeDecodeError:
            raise AddressError("a text in the stamp is not ASCII") from None
        if text and not text.isprintable():
            raise AddressError("a text in the stamp holds a control character")
        return text

    def items(self) -> list[bytes]:
        items = []
        while True:
            length = self.byte()
            items.append(self.take(length & ~_MORE))
            if not length & _MORE:
                return items


def _decoded(text: str) -> bytes:
    body = text[len(PREFIX) :].rstrip("=")
    if not body:
        raise AddressError("there is nothing after sdns://")
    try:
        # Strictly: the standard decoder would skip what is no base64 at all.
        plain = body.translate(str.maketrans("-_", "+/")).encode("ascii")
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise AddressError("the stamp is not base64url") from None
