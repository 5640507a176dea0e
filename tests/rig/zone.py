"""Zone files for the authoritative servers of the rig: any type, any byte in a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.rig.wire import TYPE_TXT, Name, labels_of, txt_data

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_*")


@dataclass(frozen=True, slots=True)
class Record:
    """One record; `data` is its wire form."""

    name: Name
    """Whole name, not relative to the zone."""
    qtype: int
    data: bytes


@dataclass(slots=True)
class Zone:
    """A zone with its SOA and NS, and the records given. A wildcard of text by default."""

    origin: str
    records: Sequence[Record] = field(default_factory=tuple)
    wildcard_text_bytes: int | None = 40
    """Size of the text that any other name under the origin has as TXT; None for no wildcard."""

    def text(self) -> str:
        """The zone file."""
        origin = f"{self.origin.strip('.')}."
        lines = [
            f"$ORIGIN {origin}",
            "$TTL 0",
            "@ SOA ns hostmaster 1 3600 600 86400 0",
            "@ NS ns",
            "ns A 127.0.0.1",
        ]
        if self.wildcard_text_bytes is not None:
            lines.append(_line("*", TYPE_TXT, txt_data(self.wildcard_text_bytes)))
        lines += [_line(presentation(item.name), item.qtype, item.data) for item in self.records]
        return "\n".join(lines) + "\n"


def presentation(name: Name) -> str:
    """A name as a zone file and the tools' command lines spell it; odd bytes become \\DDD."""
    return "".join("".join(map(_escaped, label)) + "." for label in labels_of(name))


def _escaped(byte: int) -> str:
    return chr(byte) if byte in _PLAIN else f"\\{byte:03d}"


def _line(owner: str, qtype: int, data: bytes) -> str:
    return f"{owner} TYPE{qtype} \\# {len(data)} {data.hex()}"
