"""The lists that are kept: one file for each in the folder `lists/` beside the state file.

Used by: `relay lists`, and the candidates of `auto`. A file begins with a line of JSON that says
what it is and where it is from; then come the resolvers, one a line, and the ranges, `=CC 4 first
last` in numbers. Files are written whole under another name, synced and renamed, so a reader sees
the old list or the new one. Invariant: a damaged file gives what can be read of it, with a warning,
and never an error; only `take` raises, `ListError`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import random
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from relay.config_errors import AddressError, BadValue, did_you_mean
from relay.lists import parsing, ranges
from relay.lists.addresses import ipv4_number
from relay.lists.forms import is_registry_file
from relay.lists.parsing import Parsed
from relay.lists.ranges import Block, Ranges
from relay.lists.sources import parse_name
from relay.private_files import hand_over, make_folder
from relay.resolver_address import ResolverAddress, folded, parse
from shared.errors import RelayError
from shared.printable import printable, quoted

LARGEST_LIST_BYTES: Final = 16 << 20
LARGEST_REGISTRY_BYTES: Final = 64 << 20
"""Of a registry's file, which names every network of a continent and is kept in small part."""

MOST_LISTS: Final = 64
_LARGEST_STORED_BYTES: Final = 64 << 20
_LONGEST_HEADER_BYTES: Final = 1 << 16
_LONGEST_LINE: Final = 1100
_SUFFIX: Final = ".list"
_FORMAT: Final = 1
_DAMAGED: Final = "damaged; what can be read is used"

log = logging.getLogger(__name__)


class ListError(RelayError):
    """A list cannot be taken; says why. What was stored before stays."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a list is from."""

    text: str
    """A URL, or the path of a file."""
    etag: str = ""
    last_modified: str = ""
    """Both as the server gave them; empty: not given."""
    country: str = ""
    """Whose lines or ranges were asked for."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of taking a list."""

    name: str
    entries: int
    """Resolvers."""
    ranges: dict[str, int]
    """Blocks of addresses by country."""
    sha256: str
    """Of the list as it came, in hexadecimal."""
    warnings: list[str]
    duplicates: int
    not_public: int
    unspoken: int


@dataclass(frozen=True, slots=True)
class Summary:
    """One stored list."""

    name: str
    origin: str
    own: bool
    entries: int
    ranges: dict[str, int]
    """Blocks of addresses by country."""
    fetched_at: float
    """Seconds since 1970; 0: not known."""
    sha256: str
    """Of the list as it came; empty: not known."""
    etag: str
    last_modified: str
    country: str
    """Whose lines or ranges were taken; empty: all."""
    fault: str
    """What is wrong with the file; empty where nothing is."""


@dataclass(slots=True)
class _Stored:
    """One file as it was read."""

    summary: Summary
    order: int
    addresses: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)


class ListStore:
    """The lists in one folder, which need not exist. Reads the files anew for every call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: set[tuple[str, str]] = set()

    def bulk(self) -> Iterator[ResolverAddress]:
        """Return the resolvers of all lists, in the order in which the lists were first taken.

        Each once. Lines that cannot be read are left out.
        """
        seen: set[str] = set()
        for stored in self._all():
            for line in stored.addresses:
                key = folded(line)
                if key not in seen:
                    seen.add(key)
                    address = _address(line)
                    if address is not None:
                        yield address

    def sample(self, country: str, count: int, rng: random.Random) -> list[ResolverAddress]:
        """Return up to `count` UDP resolvers drawn from the IPv4 ranges of `country`.

        None where no list has ranges of it. IPv6 ranges are too wide to find anybody by chance.
        """
        found = Ranges()
        for stored in self._all():
            for line in stored.blocks:
                version, block = _block(line, country)
                if version == 4:
                    found.ipv4.append(block)
        found.merge()
        hosts = ranges.sample(found.ipv4, count, rng)
        return [ResolverAddress("udp", host, 53) for host in hosts]

    def summary(self) -> list[Summary]:
        """Return what is stored, in the order of `bulk`."""
        return [stored.summary for stored in self._all()]

    def countries(self) -> frozenset[str]:
        """Return the codes of the countries of which ranges are kept. Cheap, see `_sketches`."""
        return frozenset(country for each in self._sketches() for country in each.ranges)

    def has_resolvers(self) -> bool:
        """Return whether any list may name a resolver. Cheap, see `_sketches`."""
        # One that says nothing of itself is damaged, and is read for what is left of it.
        return any(each.entries or not each.sha256 for each in self._sketches())

    def remove(self, name: str) -> None:
        """Delete a list. Raises ListError: there is none of that name, or it cannot be deleted."""
        paths = {path.stem: path for path in self._paths()}
        if name not in paths:
            near = did_you_mean(name, paths)
            raise ListError(f"there is no list {quoted(name)}{near}")
        try:
            paths[name].unlink()
            self._sync()
        except OSError as error:
            raise ListError(f"{paths[name]}: {error.strerror or error}") from None

    def take(
        self,
        name: str,
        data: bytes,
        *,
        own: bool,
        country: str = "",
        origin: Origin | None = None,
    ) -> Report:
        """Read the list `data` and keep it as `name`, in the place of one of that name.

        `own` and `country` as in `relay.lists.parsing.read`. Raises ListError: nothing in it can
        be used, it is too large, or it cannot be written.
        """
        largest = LARGEST_LIST_BYTES
        if is_registry_file(data):
            largest = LARGEST_REGISTRY_BYTES
        if len(data) > largest:
            raise ListError(f"larger than {largest >> 20} MiB")
        found = parsing.read(data, own=own, country=country)
        return self.keep(name, found, hashlib.sha256(data).hexdigest(), own=own, origin=origin)

    def keep(
        self, name: str, found: Parsed, sha256: str, *, own: bool, origin: Origin | None = None
    ) -> Report:
        """Keep what was read of a list; as `take`, which most callers want."""
        try:
            parse_name(name)
        except BadValue as error:
            raise ListError(str(error)) from None
        if not found.resolvers and not found.ranges:
            why = f" ({found.warnings[0]})" if found.warnings else ""
            raise ListError(f"names no resolver and no range of addresses{why}")
        counts = {country: len(each) for country, each in sorted(found.ranges.items())}
        report = Report(
            name,
            len(found.resolvers),
            counts,
            sha256,
            found.warnings,
            found.duplicates,
            found.not_public,
            found.unspoken,
        )
        came = origin or Origin("")
        lines = [*found.resolvers, *_range_lines(found)]
        body = "".join(f"{line}\n" for line in lines).encode()
        header = {
            "relay_list": _FORMAT,
            "order": self._order(name),
            "origin": came.text,
            "etag": came.etag,
            "last_modified": came.last_modified,
            "country": came.country,
            "own": own,
            "entries": report.entries,
            "ranges": counts,
            "fetched_at": time.time(),
            "sha256": sha256,
            "body_sha256": hashlib.sha256(body).hexdigest(),
        }
        try:
            self._write(name, orjson.dumps(header) + b"\n" + body)
        except OSError as error:
            raise ListError(f"{self._folder}: {error.strerror or error}") from None
        return report

    # -- files -------------------------------------------------------------------------------

    def _write(self, name: str, content: bytes) -> None:
        make_folder(self._folder)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".new-", delete=False) as file:
            try:
                file.write(content)
                file.flush()
                hand_over(file.fileno(), self._folder)
                os.fsync(file.fileno())
                os.rename(file.name, self._folder / f"{name}{_SUFFIX}")
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(file.name)
                raise
        self._sync()

    def _sync(self) -> None:
        """Have the disk keep what was renamed or deleted."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _order(self, name: str) -> int:
        """Return the place of a list: its own if it is there already, else the last."""
        stored = self._all()
        for each in stored:
            if each.summary.name == name:
                return each.order
        if len(stored) >= MOST_LISTS:
            raise ListError(f"{MOST_LISTS} lists are kept at most; `relay lists remove` makes room")
        return max((each.order for each in stored), default=0) + 1

    def _paths(self) -> list[Path]:
        try:
            return sorted(self._folder.glob(f"[!.]*{_SUFFIX}"))[: 2 * MOST_LISTS]
        except OSError:
            return []

    def _sketches(self) -> Iterator[Summary]:
        """Yield what every list says of itself; no more of it is read."""
        for path in self._paths():
            with contextlib.suppress(OSError), path.open("rb") as file:
                header = _header(file.readline(_LONGEST_HEADER_BYTES))
                yield _summary(path.stem, header, "")

    def _all(self) -> list[_Stored]:
        stored = []
        for path in self._paths():
            try:
                data = _bytes_of(path)
            except OSError as error:
                self._tell(path.stem, error.strerror or str(error))
                continue
            each = _read(path.stem, data)
            if each.summary.fault:
                self._tell(each.summary.name, each.summary.fault)
            stored.append(each)
        return sorted(stored, key=lambda each: (each.order, each.summary.name))

    def _tell(self, name: str, fault: str) -> None:
        if (name, fault) not in self._told:
            self._told.add((name, fault))
            log.warning("list %s: %s", printable(name), fault)


def _bytes_of(path: Path) -> bytes:
    # Opening a pipe would wait for somebody who writes.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read(_LARGEST_STORED_BYTES)


def _read(name: str, data: bytes) -> _Stored:
    """Return the file of a list, as much of it as there is."""
    first, _, body = data.partition(b"\n")
    header = _header(first)
    if not header:
        body = data  # the first line may be as good as the others
    lines = body.decode("utf-8", "replace").split("\n")
    stored = _Stored(_summary(name, header, ""), _whole(header.get("order"), 1 << 30))
    stored.addresses = [
        line for line in lines if line and line[0] != "=" and len(line) < _LONGEST_LINE
    ]
    stored.blocks = [line for line in lines if line[:1] == "=" and len(line) < _LONGEST_LINE]
    if hashlib.sha256(body).hexdigest() != header.get("body_sha256"):
        stored.addresses = [line for line in stored.addresses if _address(line) is not None]
        stored.blocks = [line for line in stored.blocks if _block(line)[0]]
        counts: dict[str, int] = {}
        for line in stored.blocks:
            counts[line[1:3]] = counts.get(line[1:3], 0) + 1
        # Without its tags, so that it is not taken for unchanged but fetched again.
        header = {**header, "entries": len(stored.addresses), "ranges": counts}
        header |= {"etag": "", "last_modified": ""}
        stored.summary = _summary(name, header, _DAMAGED)
    return stored


def _header(line: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        header = orjson.loads(line[:_LONGEST_HEADER_BYTES])
        if isinstance(header, dict) and header.get("relay_list") == _FORMAT:
            return header
    return {}


def _summary(name: str, header: dict[str, Any], fault: str) -> Summary:
    counts = header.get("ranges")
    fetched_at = header.get("fetched_at")
    return Summary(
        name,
        origin=_text(header.get("origin")),
        own=header.get("own") is True,
        entries=_whole(header.get("entries"), 0),
        ranges={
            country[:2]: _whole(count, 0)
            for country, count in (counts.items() if isinstance(counts, dict) else ())
        },
        fetched_at=float(fetched_at) if isinstance(fetched_at, int | float) else 0.0,
        sha256=_text(header.get("sha256")),
        etag=_text(header.get("etag")),
        last_modified=_text(header.get("last_modified")),
        country=_text(header.get("country")),
        fault=fault,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _range_lines(found: Parsed) -> Iterator[str]:
    for country, each in sorted(found.ranges.items()):
        for version, blocks in ((4, each.ipv4), (6, each.ipv6)):
            for first, last in blocks:
                yield f"={country} {version} {first} {last}"


def _block(line: str, country: str | None = None) -> tuple[int, Block]:
    """Return the IP version and the block of a line; version 0 where it is no block of `country`.

    None: of any country.
    """
    words = line[1:].split(" ")
    if len(words) == 4 and words[1] in ("4", "6") and country in (None, words[0]):
        version, bits = (4, 32) if words[1] == "4" else (6, 128)
        numbers = [int(word) for word in words[2:] if word.isascii() and word.isdecimal()]
        if len(numbers) == 2 and numbers[0] <= numbers[1] < 1 << bits:
            return version, (numbers[0], numbers[1])
    return 0, (0, 0)


def _address(line: str) -> ResolverAddress | None:
    """Return the resolver of a line; None where it names none."""
    if ipv4_number(line) is not None:
        return ResolverAddress("udp", line, 53)
    try:
        address = parse(line)
    except AddressError:
        return None
    return None if address.is_auto else address
