"""Entries of a pool's `resolvers`: addresses, and files that list addresses.

Used by: the configuration. A file is named `file:PATH`; it has one address a line, `#` starts a
comment. Invariant: a bad line is a warning with its number and never the end of the list; an
address counts once, however often and in whatever spelling it is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from relay.config_errors import AddressError, Problem, is_flag
from relay.config_errors import Path as Place
from relay.endpoints import no_controls
from relay.printable import printable, quoted
from relay.resolver_address import ENCRYPTED_UNSUPPORTED, ResolverAddress, parse

LARGEST_FILE_BYTES: Final = 16 << 20
_WARNINGS_SHOWN: Final = 20
_PREFIX: Final = "file:"


@dataclass(frozen=True, slots=True)
class ListFile:
    """A file with one address a line."""

    path: Path


Entry = ResolverAddress | ListFile


@dataclass(slots=True)
class Expanded:
    """The addresses of some entries, and what was found on the way."""

    resolvers: dict[ResolverAddress, Place] = field(default_factory=dict)
    """Each address once, in order, with the entry that named it first."""
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    had_list: bool = False


def parse_entry(text: str, base: Path | None = None) -> Entry:
    """Return what one entry names; a relative path is taken from `base`. Raise `AddressError`."""
    if not text.strip().startswith(_PREFIX):
        return _usable(text)
    try:
        name = no_controls(text, 4096).removeprefix(_PREFIX).removeprefix("//").strip()
        if not name:
            raise AddressError("the path after file: is missing")
    except AddressError as error:
        raise error.about(text) from None
    return ListFile(base / name if base else Path(name))


def expand(entries: Sequence[Entry], place: Place) -> Expanded:
    """Return the addresses of `entries`, which stand at `place` of the configuration."""
    found = Expanded()
    for index, entry in enumerate(entries):
        at = place if is_flag(place) else (*place, index)
        if isinstance(entry, ResolverAddress):
            found.resolvers.setdefault(entry, at)
            continue
        found.had_list = True
        try:
            lines = _read_lines(entry.path)
        except OSError as error:
            reason = error.strerror or str(error)
            found.problems.append(Problem(f"{quoted(str(entry.path))}: {reason}", at))
            continue
        _take_lines(found, entry.path, lines, at)
    return found


def _usable(text: str) -> ResolverAddress:
    address = parse(text)
    if address.is_encrypted:
        raise AddressError(ENCRYPTED_UNSUPPORTED, text=text)
    return address


def _read_lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE_BYTES + 1)
    if len(data) > LARGEST_FILE_BYTES:
        raise OSError(f"larger than {LARGEST_FILE_BYTES >> 20} MiB")
    # Split as bytes: a byte that is no UTF-8 spoils its own line only.
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [line.decode("utf-8", "replace") for line in lines]


def _take_lines(found: Expanded, path: Path, lines: list[str], at: Place) -> None:
    bad = 0
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            address = _usable(text)
        except AddressError as error:
            bad += 1
            if bad <= _WARNINGS_SHOWN:
                found.warnings.append(f"{printable(str(path), 4096)}:{number}: {error}")
            continue
        found.resolvers.setdefault(address, at)
    if bad > _WARNINGS_SHOWN:
        more = bad - _WARNINGS_SHOWN
        found.warnings.append(f"{printable(str(path), 4096)}: {more:,} more bad lines")
