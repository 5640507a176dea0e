"""The forms that lists come in: which one it is, and how a line of a table or a registry reads.

Used by: `relay.lists.parsing`, `relay.lists.store`. Pure; nothing here raises for any content.
"""

from __future__ import annotations

import csv
import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from relay.lists.addresses import ipv4_number
from relay.lists.ranges import Block

_DELEGATED: Final = re.compile(
    r"(?:[0-9.]{1,8}\|[a-z]{2,16}\|[0-9]{1,10}\||[a-z]{2,16}\|[A-Z*]{0,2}\|(?:asn|ipv4|ipv6)\|)"
)
_ADDRESS_COLUMNS: Final = ("ip_address", "ip", "ip address", "address", "nameserver", "server")
_PORT_COLUMNS: Final = ("port",)
_COUNTRY_COLUMNS: Final = ("country_code", "country_id", "country", "cc")
_IN_USE: Final = ("allocated", "assigned")
_NO_COUNTRY: Final = "ZZ"
_MARK: Final = "\ufeff"
_PIECE_BYTES: Final = 1 << 16

LONGEST_ROW: Final = 1 << 17
"""Characters of a row of CSV: as many as Python allows in one field."""

_COUNTRY: Final = re.compile(r"[A-Z]{2}")


class Lines:
    """The lines of a file in UTF-8 or, with its mark in front, UTF-16; to be iterated over again.

    Piece by piece: tens of millions of empty ones would take gigabytes together. The mark of UTF-8
    is passed over at the beginning of any line, where files were put together.
    """

    def __init__(self, data: bytes) -> None:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            data = data.decode("utf-16", "replace").encode("utf-8", "replace")
        self._data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def __iter__(self) -> Iterator[str]:
        """Yield the lines without their ends."""
        at, size = 0, len(self._data)
        while at <= size:
            # A piece that ends with a line.
            end = self._data.find(b"\n", min(at + _PIECE_BYTES, size))
            piece = self._data[at : end if end >= 0 else size]
            for line in piece.decode("utf-8", "replace").split("\n"):
                yield line.removeprefix(_MARK)
            at = end + 1 if end >= 0 else size + 1


@dataclass(frozen=True, slots=True)
class Columns:
    """Where in the rows of a table things stand; -1: nowhere."""

    delimiter: str
    address: int
    port: int
    country: int

    @classmethod
    def of(cls, header: str) -> Columns | None:
        """Return the columns that a header names; None where it names no addresses."""
        for delimiter in (",", ";", "\t"):
            names = [name.strip().lower() for name in cells_of(header, delimiter)]
            at = _index(names, _ADDRESS_COLUMNS)
            # A row of addresses behind such a word is no header.
            if at >= 0 and len(names) > 1 and not any(ipv4_number(name) for name in names):
                ports, countries = _PORT_COLUMNS, _COUNTRY_COLUMNS
                return cls(delimiter, at, _index(names, ports), _index(names, countries))
        return None


def _index(names: Sequence[str], wanted: Sequence[str]) -> int:
    return next((names.index(name) for name in wanted if name in names), -1)


def cells_of(line: str, delimiter: str) -> list[str]:
    """Return the cells of one row of CSV; none where it is no row, or far too long for one."""
    if len(line) > LONGEST_ROW:
        return []
    try:
        # Line by line, so that a quote that is never closed spoils one line and not the rest.
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def is_registry_line(line: str) -> bool:
    """Whether a line is of the form of a regional registry's file."""
    return _DELEGATED.match(line) is not None


@dataclass(frozen=True, slots=True)
class Delegated:
    """What a registry gave to somebody: one line of its file."""

    country: str
    version: int
    block: Block


def delegated(line: str, country: str = "") -> Delegated | bool:
    """Return what a line of a registry's file gives to `country`, or to any without one.

    True: a good line that gives nothing of that; False: no line of such a file.
    """
    fields = line.strip().split("|")
    if len(fields) < 7 or fields[2] not in ("ipv4", "ipv6"):
        # The version, a sum, a number of a system, a comment, nothing.
        return len(fields) >= 6 or not fields[0] or fields[0].startswith("#")
    if fields[6] not in _IN_USE or (country and fields[1] != country):
        return True
    block = _delegated_block(fields[2], fields[3], fields[4])
    if block is None or not _COUNTRY.fullmatch(fields[1]) or fields[1] == _NO_COUNTRY:
        return False
    return Delegated(fields[1], 4 if fields[2] == "ipv4" else 6, block)


def _delegated_block(kind: str, start: str, value: str) -> Block | None:
    if not (value.isascii() and value.isdecimal() and len(value) <= 10):
        return None
    size = int(value)
    if kind == "ipv4":
        # A count of addresses, of any size: registries give out 768 in one piece too.
        first = ipv4_number(start)
        if first is None or size == 0 or first + size > 1 << 32:
            return None
        return first, first + size - 1
    try:
        network = ipaddress.IPv6Network(f"{start}/{size}")
    except ValueError:
        return None
    return int(network.network_address), int(network.broadcast_address)


def is_registry_file(data: bytes) -> bool:
    """Whether `data` begins as the files of the regional registries do."""
    head = data[:4096].decode("ascii", "replace").split("\n")
    return any(map(is_registry_line, head))
