"""Entries of a pool's `resolvers`: addresses, and files that list addresses.

Used by: the configuration. A file is named `file:PATH`; it has one address a line, `#` starts a
comment (after a blank where the address is encrypted, since there it may be a part of it).
Invariant: a bad line is a warning with its number and never the end of the list; an address counts
once, however often and in whatever spelling it is named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from relay.config_errors import AddressError, Problem, is_flag, path_text
from relay.config_errors import Path as Place
from relay.endpoints import bracketed, no_controls
from relay.printable import counted
from relay.resolver_address import ResolverAddress, parse, with_defaults
from relay.ways_out import DIRECT, Proxy
from shared.printable import printable, quoted

LARGEST_FILE_BYTES: Final = 16 << 20
_WARNINGS_SHOWN: Final = 20
_REMARKS_SHOWN: Final = 5
"""Of one kind, in all; of more only the number is told."""

_PREFIX: Final = "file:"
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*")
_MAY_BE_PINNED: Final = re.compile(r"\s*(?:dot|tls|https)://", re.IGNORECASE)


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
    via: Proxy | None = None
    """The proxy of those that name none."""
    bind: str = ""
    """Where those send from that do not say."""
    _known: dict[tuple[object, ...], tuple[ResolverAddress, str]] = field(default_factory=dict)
    """Who is there already, and where that was said."""
    _told: Counter[str] = field(default_factory=Counter)

    def take(self, address: ResolverAddress, at: Place, where: str) -> None:
        """Add a resolver that the entry at `at` names; raise `AddressError` where it cannot be."""
        address = with_defaults(address, self.via, self.bind)
        first = self._known.get(address.identity)
        if first is not None:
            known, named_at = first
            if known != address:
                earlier = f"an earlier {named_at}" if is_flag((named_at,)) else named_at
                text = f"is there already as {earlier}; the options of that one count"
                self._tell(where, address, text, "are there already, with other options")
            return
        self._known[address.identity] = (address, where)
        self.resolvers[address] = at
        if address.remark:
            self._tell(where, address, address.remark)
        if address.insecure:
            self._tell(where, address, "insecure: any certificate is taken, nobody is verified")
        is_datagrams = address.scheme in ("udp", "auto")
        if is_datagrams and address.via is None and self.via not in (None, DIRECT):
            self._tell(where, address, "asked directly: the proxy carries no UDP")

    def sum_up(self) -> None:
        """Add what was not told one by one."""
        for text, count in self._told.items():
            if count > _REMARKS_SHOWN:
                more = counted(count - _REMARKS_SHOWN, "more resolver")
                self.warnings.append(f"{more}: {text}")

    def _tell(self, where: str, address: ResolverAddress, text: str, kind: str = "") -> None:
        """Tell it of a resolver; `kind` is what it is counted under where the text varies."""
        self._told[kind or text] += 1
        if self._told[kind or text] <= _REMARKS_SHOWN:
            self.warnings.append(f"{where}: {address}: {text}")


def parse_entry(text: str, base: Path | None = None) -> Entry:
    """Return what one entry names; a relative path is taken from `base`. Raise `AddressError`."""
    if not text.strip().startswith(_PREFIX):
        return parse(text)
    try:
        name = no_controls(text, 4096).removeprefix(_PREFIX).removeprefix("//").strip()
        if not name:
            raise AddressError("the path after file: is missing")
    except AddressError as error:
        raise error.about(text) from None
    return ListFile(base / name if base else Path(name))


def parse_bootstrap(text: str) -> ResolverAddress:
    """Return a resolver that names are looked up with: one whose own address is known."""
    try:
        return _for_bootstrap(parse(text))
    except AddressError as error:
        vetted = error.vetted(lambda meant: _for_bootstrap(parse(meant)))
        raise (vetted if vetted.text else vetted.about(text)) from None


def _for_bootstrap(address: ResolverAddress) -> ResolverAddress:
    if address.scheme == "https":
        pinned = "#" + ",".join(address.pins) if address.pins else ""
        meant = f"dot://{bracketed(address.host)}{pinned}"
        raise AddressError("names are looked up over UDP, TCP or DoT", meant)
    if address.unresolved:
        raise AddressError("a resolver to look names up with is written with its IP address")
    return address


def expand(
    entries: Sequence[Entry], place: Place, via: Proxy | None = None, bind: str = ""
) -> Expanded:
    """Return the addresses of `entries`, which stand at `place` of the configuration.

    `via` and `bind` are for those that name none of their own.
    """
    found = Expanded(via=via, bind=bind)
    for index, entry in enumerate(entries):
        at = place if is_flag(place) else (*place, index)
        if isinstance(entry, ResolverAddress):
            try:
                found.take(entry, at, path_text(at))
            except AddressError as error:
                found.problems.append(Problem(str(error), at))
            continue
        found.had_list = True
        try:
            lines = _read_lines(entry.path)
        except OSError as error:
            reason = error.strerror or str(error)
            found.problems.append(Problem(f"{quoted(str(entry.path))}: {reason}", at))
            continue
        _take_lines(found, entry.path, lines, at)
    found.sum_up()
    return found


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
        text = _without_comment(line)
        if not text:
            continue
        where = f"{printable(str(path), 4096)}:{number}"
        try:
            found.take(_listed(text), at, where)
        except AddressError as error:
            bad += 1
            if bad <= _WARNINGS_SHOWN:
                found.warnings.append(f"{where}: {error}")
    if bad > _WARNINGS_SHOWN:
        more = bad - _WARNINGS_SHOWN
        found.warnings.append(f"{printable(str(path), 4096)}: {counted(more, 'more bad line')}")


def _listed(text: str) -> ResolverAddress:
    """Return the address of a line. `auto` is none: a list is not to begin a search."""
    address = parse(text)
    if address.is_auto:
        raise AddressError("auto can only stand in resolvers itself")
    return address


def _without_comment(line: str) -> str:
    if _MAY_BE_PINNED.match(line):
        return _COMMENT.sub("", line).strip()
    return line.partition("#")[0].strip()
