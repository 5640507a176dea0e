"""Lists of resolvers and of address ranges, in the forms that are about, read from bytes.

Used by: `relay.lists.store`. Pure. The form is seen from the content:

- one resolver a line in any spelling of `relay.resolver_address`, with comments; `ip:port`,
  `[v6]:port`; blocks (`192.0.2.0/24:53`, and of IPv4 `192.0.2.1-192.0.2.9`), which stand for their
  hosts, or for a country's ranges where the caller names the country; further columns, as in
  `8.8.8.8 GOOGLE US 1`;
- CSV whose header names a column of addresses, as that of public-dns.info;
- the markdown of DNSCrypt's public-resolvers.md, of which the stamps count;
- the files of the regional registries (`delegated-...`), which give ranges of countries.

Invariant: whatever the bytes are, nothing raises and no line ends the list; what cannot be used is
told with its line number, in bounded number. All that is kept is bounded too.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from socket import inet_aton
from typing import Final

from relay.config_errors import AddressError
from relay.endpoints import ip_of, split_host_port
from relay.lists.addresses import (
    OCTET,
    ipv4_number,
    ipv4_text,
    is_host,
    is_public,
    is_public_nowhere,
    is_public_number,
    unglue,
)
from relay.lists.forms import (
    Columns,
    Delegated,
    Lines,
    cells_of,
    delegated,
    is_registry_line,
)
from relay.lists.ranges import Block, Ranges
from relay.printable import counted
from relay.resolver_address import LONGEST_ADDRESS, ResolverAddress, folded, parse
from relay.stamps import PREFIX, UnspokenStamp
from shared.printable import printable, quoted

MOST_ENTRIES: Final = 200_000
"""Resolvers of one list that are kept, and blocks of addresses of all its countries."""

MOST_EXPANDED: Final = 65_536
"""Addresses that the blocks of one list stand for, in all."""

WARNINGS_SHOWN: Final = 20
_LONGEST_WARNING: Final = 400

_DNS_PORT: Final = 53
_SNIFFED_LINES: Final = 200

_ALONE: Final = re.compile(rf"({OCTET}(?:\.{OCTET}){{3}})(?::53)?(?:[ \t][^\0.:/\[,;|=\"'<>()]*)?")
"""Nearly all lines of long lists: an address, and nothing after it that could be another."""

_COMMENT_STARTS: Final = ("#", ";", "//")
_SEPARATORS: Final = re.compile(r"[\s,;|=\"'<>()]+")
_SEPARATED: Final = re.compile(r"[,;|=\"'<>()\[]")
_BEFORE_SCHEME: Final = re.compile(r"(?<=\S)(?=(?:udp|tcp|tls|dot|https|sdns)://)", re.IGNORECASE)
_BLOCK: Final = re.compile(r"\[?([0-9a-fA-F.:]{2,45})(\]?)/([0-9]{1,3})(\]?)(?::([0-9]{1,5}))?")
_FROM_TO: Final = re.compile(r"([0-9.]{7,15})-([0-9.]{7,15})(?::([0-9]{1,5}))?")
_SPACED: Final = re.compile(
    r"(?<![^\s,;])([0-9.]{7,15})[ \t]+-[ \t]+(?=([0-9.]{7,15})(?![^\s,;:]))"
)
_LIKE_IPV4: Final = re.compile(r"[0-9.:/]+")

_IP: Final = {4: ipaddress.IPv4Address, 6: ipaddress.IPv6Address}


@dataclass(slots=True)
class Parsed:
    """What a list holds."""

    resolvers: dict[str, None] = field(default_factory=dict)
    """Each resolver once, in order, as `relay.resolver_address.parse` takes it."""
    ranges: dict[str, Ranges] = field(default_factory=dict)
    """By country."""
    warnings: list[str] = field(default_factory=list)
    """At most WARNINGS_SHOWN, each with its line number, and one that counts the rest."""
    bad: int = 0
    """How many warnings there would be without that bound."""
    duplicates: int = 0
    not_public: int = 0
    """Addresses left out because they are not of the public internet."""
    unspoken: int = 0
    """Stamps of protocols that the relay does not speak."""


def read(data: bytes, *, own: bool, country: str = "") -> Parsed:
    """Return what the list `data` holds.

    `own`: a person's own list, in which private addresses and bare host names mean something.
    `country`: whose ranges blocks without a port are; of lists that name countries, only lines of
    that one are taken.
    """
    reader = _Reader(own, country)
    lines = Lines(data)
    _form(lines, reader)(lines)
    reader.sum_up()
    return reader.found


def canonical(address: ResolverAddress) -> str:
    """Return the one spelling in which a list keeps an address."""
    if address.scheme == "udp" and ":" not in address.host:
        port = "" if address.port == _DNS_PORT else f":{address.port}"
        return f"{address.host}{port}"
    return str(address)


def _form(lines: Iterable[str], reader: _Reader) -> Callable[[Iterable[str]], None]:
    """Return what reads lines like these."""
    head = [line.strip() for line in itertools.islice(lines, _SNIFFED_LINES)]
    head = [line for line in head if line and not line.startswith(_COMMENT_STARTS)]
    if any(map(is_registry_line, head)):
        return reader.registry
    if head:
        table = Columns.of(head[0])
        if table:
            return lambda lines: reader.table(lines, table)
    headings = any(line.startswith("## ") for line in lines)
    if headings and any(map(_is_stamp, lines)) and not any(map(_is_address, lines)):
        return reader.markdown
    return reader.plain


def _joined(spaced: re.Match[str]) -> str:
    """Return a range without its blanks; of two addresses in another order what stands there."""
    first, last = ipv4_number(spaced[1]), ipv4_number(spaced[2])
    is_range = first is not None and last is not None and first <= last
    return f"{spaced[1]}-" if is_range else spaced[0]


def _is_stamp(line: str) -> bool:
    return line.startswith(PREFIX)


def _is_address(line: str) -> bool:
    words = line.split(None, 1)
    return bool(words) and ipv4_number(words[0].partition(":")[0]) is not None


class _Reader:
    """Takes the lines of one list."""

    def __init__(self, own: bool, country: str) -> None:
        self.found = Parsed()
        self._own = own
        self._country = country
        self._expanded = 0
        self._blocks = 0
        self._says_countries = False
        self._line = 0
        self._pinned: set[str] = set()
        """Those that are kept with several pins, whose order may be another the next time."""

    # -- the forms ---------------------------------------------------------------------------

    def plain(self, lines: Iterable[str]) -> None:
        """Read one entry a line, or several."""
        for self._line, line in enumerate(lines, start=1):
            alone = _ALONE.fullmatch(line)
            if alone:
                self._ipv4(int.from_bytes(inet_aton(alone[1]), "big"), alone[1], _DNS_PORT)
                continue
            text = self._cleaned(line)
            if not text or text.startswith(_COMMENT_STARTS):
                continue
            if "://" in text:
                self._urls(text)
            else:
                self._words(text.partition("#")[0])

    def markdown(self, lines: Iterable[str]) -> None:
        """Read the stamps; the rest is prose."""
        for self._line, line in enumerate(lines, start=1):
            if line.startswith(PREFIX):
                self._urls(self._cleaned(line))

    def table(self, lines: Iterable[str], columns: Columns) -> None:
        """Read rows under a header."""
        self._says_countries = columns.country >= 0
        had_header = False
        for self._line, line in enumerate(lines, start=1):
            text = self._cleaned(line)
            if not text or text.startswith(_COMMENT_STARTS):
                continue
            if not had_header:
                had_header = True
                continue
            cells = cells_of(text, columns.delimiter)
            word = cells[columns.address].strip() if columns.address < len(cells) else ""
            country = cells[columns.country] if 0 <= columns.country < len(cells) else ""
            if self._country and columns.country >= 0 and country.strip().upper() != self._country:
                continue
            port = cells[columns.port].strip() if 0 <= columns.port < len(cells) else ""
            if port and port != str(_DNS_PORT):
                word = f"[{word}]:{port}" if ":" in word else f"{word}:{port}"
            if not word:
                self._warn(f"no address in {quoted(text)}")
            elif "://" in word:
                self._urls(word)
            elif not self._word(word):
                self._warn(f"{quoted(word)} is no address")

    def registry(self, lines: Iterable[str]) -> None:
        """Read what a registry gave to whom: registry|country|type|start|value|date|status."""
        for self._line, line in enumerate(lines, start=1):
            given = delegated(line, self._country)
            if isinstance(given, Delegated):
                self._range(given.country, given.version, given.block)
            elif not given:
                self._warn(f"not of the form of a registry's file: {quoted(line)}")

    # -- parts of a line ---------------------------------------------------------------------

    def _cleaned(self, line: str) -> str:
        if "\0" in line:
            line = line.replace("\0", " ")
            self._warn("holds NUL bytes")
        return line.strip()

    def _urls(self, text: str) -> None:
        """Take the resolvers of a line in which some have a scheme."""
        for word in _BEFORE_SCHEME.sub(" ", text).split():
            if word.startswith("#"):
                break
            word = word.strip(",;\"'<>")
            if "://" in word:
                self._address(word)
            elif ipv4_number(word.partition(":")[0]) is not None:
                self._word(word)

    def _words(self, text: str) -> None:
        """Take the addresses of a line without schemes; the other columns say nothing here."""
        if self._country and "-" in text:
            # As registries write ranges. Without a country they may be two that belong together.
            text = _SPACED.sub(_joined, text)
        if _SEPARATED.search(text):
            words = list(filter(None, _SEPARATORS.split(text.replace("[", " ["))))
        else:
            words = text.split()
        told = self.found.bad
        taken = [word for word in words if self._word(word)]
        if taken or self.found.bad > told or not words:
            return
        if self._own and len(words) == 1 and "." in words[0]:
            self._address(words[0])
        else:
            self._warn(f"no address in {quoted(text.strip())}")

    def _word(self, word: str) -> bool:
        """Take an address or a block; return whether it was meant as one."""
        host, colon, port = word.partition(":")
        number = ipv4_number(host)
        if number is not None:
            if not colon:
                return self._ipv4(number, host, _DNS_PORT)
            if port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) <= 65_535:
                return self._ipv4(number, host, int(port))
        if "/" in word and (matched := _BLOCK.fullmatch(word)):
            return self._block(word, matched)
        if "-" in word and (matched := _FROM_TO.fullmatch(word)):
            return self._from_to(word, matched)
        glued = unglue(word)
        for each, each_port in glued:
            self._ipv4(ipv4_number(each) or 0, each, each_port)
        if glued:
            return True
        if word.startswith("[") or (word.count(":") > 1 and len(word) <= 64):
            return self._ipv6(word)
        if word.count(".") < 3 or not _LIKE_IPV4.fullmatch(word):
            return False
        self._warn(f"{quoted(word)} is no address")
        return True

    def _ipv4(self, number: int, host: str, port: int) -> bool:
        if not is_host(number):
            self._warn(f"{host} is not the address of one host")
        elif not self._own and not is_public_number(number):
            self._private(host)
        else:
            self._keep(host if port == _DNS_PORT else f"{host}:{port}")
        return True

    def _ipv6(self, word: str) -> bool:
        try:
            host, _ = split_host_port(word, _DNS_PORT)
        except AddressError as error:
            if not (word.startswith("[") and ":" in word):
                return False  # a time of day, a MAC address, a heading
            self._warn(str(error.about(word)))
            return True
        if ip_of(host) is not None:
            self._address(word if word.startswith("[") else f"[{word}]")
        return True

    def _address(self, word: str) -> None:
        """Take whatever the configuration would take."""
        if len(word) > LONGEST_ADDRESS:
            self._warn(f"{quoted(word)}: longer than {LONGEST_ADDRESS:,} characters")
            return
        try:
            address = parse(word)
        except UnspokenStamp:
            self.found.unspoken += 1
            return
        except AddressError as error:
            self._warn(str(error))
            return
        hosts = [host for host in (address.host, *address.pins) if ip_of(host)]
        if address.is_auto:
            self._warn('"auto" is no resolver')
        elif not self._own and not all(map(is_public, hosts)):
            self._private(hosts[0])
        else:
            self._keep(canonical(address))

    def _block(self, word: str, matched: re.Match[str]) -> bool:
        port = int(matched[5] or _DNS_PORT)
        try:
            network = ipaddress.ip_network(f"{matched[1]}/{matched[3]}", strict=False)
        except ValueError:
            self._warn(f"{quoted(word)} is no block of addresses")
            return True
        if not 0 < port <= 65_535 or word.startswith("[") != bool(matched[2] or matched[4]):
            self._warn(f"{quoted(word)} is no block of addresses with a port")
            return True
        first, last = int(network.network_address), int(network.broadcast_address)
        if self._country and not matched[5]:
            self._of_country(word, network.version, (first, last))
            return True
        if network.version == 4 and network.prefixlen < 31:
            first, last = first + 1, last - 1
        self._expand(word, network.version, (first, last), port)
        return True

    def _from_to(self, word: str, matched: re.Match[str]) -> bool:
        """Take the IPv4 addresses from one to another, both included."""
        first, last = ipv4_number(matched[1]), ipv4_number(matched[2])
        port = int(matched[3] or _DNS_PORT)
        if first is None or last is None or last < first or not 0 < port <= 65_535:
            self._warn(f"{quoted(word)} is no range of addresses")
        elif self._country and not matched[3]:
            self._of_country(word, 4, (first, last))
        else:
            self._expand(word, 4, (first, last), port)
        return True

    def _of_country(self, word: str, version: int, block: Block) -> None:
        """Take a block for a range of the country that was named."""
        if not self._own and not all(is_public(str(_IP[version](end))) for end in block):
            self._private(word)
        else:
            self._range(self._country, version, block)

    def _expand(self, word: str, version: int, block: Block, port: int) -> None:
        """Take a block for its hosts."""
        first, last = block
        count = last - first + 1
        if not self._own and is_public_nowhere(version, first, last):
            # Before it takes the room of others.
            self._private(word, min(count, MOST_EXPANDED))
            return
        room = MOST_EXPANDED - self._expanded
        if count > room:
            kept = f"the first {room:,} of its {count:,} addresses are kept" if room else "left out"
            self._warn(
                f"{word}: {kept}: the blocks of a list stand for {MOST_EXPANDED:,} addresses at"
                " most (ranges of a country are kept whole with --country)"
            )
            last = first + room - 1
        self._expanded += max(0, last - first + 1)
        left_out = 0
        for number in range(first, last + 1):
            if version == 6:
                host = f"[{ipaddress.IPv6Address(number)}]"
                usable = self._own or is_public(host[1:-1])
                text = f"udp://{host}:{port}"
            else:
                host = ipv4_text(number)
                usable = is_host(number) and (self._own or is_public_number(number))
                text = host if port == _DNS_PORT else f"{host}:{port}"
            if usable:
                self._keep(text)
            else:
                left_out += 1
        if left_out:
            self._private(word, left_out)

    # -- what is kept ------------------------------------------------------------------------

    def _keep(self, text: str) -> None:
        resolvers = self.found.resolvers
        if text in resolvers or ("," in text and folded(text) in self._pinned):
            self.found.duplicates += 1
        elif len(resolvers) < MOST_ENTRIES:
            resolvers[text] = None
            if "," in text:
                self._pinned.add(folded(text))
        else:
            self._warn(f"a list has at most {MOST_ENTRIES:,} resolvers: {text} is left out")

    def _range(self, country: str, version: int, block: Block) -> None:
        if self._blocks >= MOST_ENTRIES:
            self._warn(f"a list has at most {MOST_ENTRIES:,} blocks: this one is left out")
            return
        self._blocks += 1
        self._says_countries = True
        ranges = self.found.ranges.setdefault(country, Ranges())
        (ranges.ipv4 if version == 4 else ranges.ipv6).append(block)

    def _private(self, text: str, count: int = 1) -> None:
        self.found.not_public += count
        self._warn(f"{text} is not of the public internet, and left out")

    def _warn(self, text: str) -> None:
        self.found.bad += 1
        if self.found.bad <= WARNINGS_SHOWN:
            self.found.warnings.append(f"line {self._line}: {printable(text, _LONGEST_WARNING)}")

    def sum_up(self) -> None:
        """Put the ranges in order and add what was not told one by one."""
        for ranges in self.found.ranges.values():
            ranges.merge()
        if self.found.bad > WARNINGS_SHOWN:
            more = self.found.bad - WARNINGS_SHOWN
            self.found.warnings.append(counted(more, "more such line"))
        if self._country and self.found.resolvers and not self._says_countries:
            self.found.warnings.append(
                f"names no country and no ranges, so {self._country} changes nothing: all its"
                " resolvers are kept"
            )
