"""The resolvers that the relay knows from the start: public ones, and those inside some countries.

Used by: the candidates of `auto`. Both tables are data files of this package, read once and only
when asked for. They name candidates; whether one is of use here and now is for a check to say.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Final

from relay.endpoints import bracketed
from relay.resolver_address import MOST_PINS, ResolverAddress, parse

_PUBLIC: Final = "public.csv"
_DOMESTIC: Final = "domestic.txt"


@functools.cache
def well_known() -> tuple[ResolverAddress, ...]:
    """Return the well-known public resolvers, the best to try first.

    Those that filter nothing come before those that do, whose answers are of less use to a tunnel.
    Within each group: UDP over IPv4 in the order of the table (the large anycast services first),
    then DoT and DoH, with the addresses pinned that are known to serve it, then UDP over IPv6,
    which fewer networks carry.
    """
    lines = (line.partition("#")[0].rstrip() for line in _text(_PUBLIC).splitlines())
    rows = list(csv.DictReader(filter(None, lines)))
    filtering = [row for row in rows if row["filtering"] not in ("none", "unknown")]
    unfiltered = [row for row in rows if row["filtering"] in ("none", "unknown")]
    found: dict[ResolverAddress, None] = {}
    for group in (unfiltered, filtering):
        found |= dict.fromkeys(_ordered(group))
    return tuple(found)


@functools.cache
def domestic(country: str) -> tuple[ResolverAddress, ...]:
    """Return the known resolvers inside `country`, an ISO 3166 code; none for any other text."""
    found: dict[ResolverAddress, None] = {}
    for line in _text(_DOMESTIC).splitlines():
        words = line.partition("#")[0].split()
        if words and words[0] == country.upper():
            found[parse(f"udp://{bracketed(words[1])}")] = None
    return tuple(found)


def domestic_countries() -> tuple[str, ...]:
    """Return the codes of the countries that `domestic` knows resolvers of."""
    lines = (line.partition("#")[0].split() for line in _text(_DOMESTIC).splitlines())
    return tuple(dict.fromkeys(words[0] for words in lines if words))


def _ordered(rows: Iterable[Mapping[str, str]]) -> Iterator[ResolverAddress]:
    rows = list(rows)
    plain = [
        parse(f"udp://{bracketed(host)}")
        for row in rows
        if row["port_53"] == "yes"
        for host in row["addresses"].split()
    ]
    yield from (address for address in plain if ":" not in address.host)
    for row in rows:
        if row["dot_host"]:
            yield parse(_pinned(f"dot://{row['dot_host']}", row["addresses"].split()))
        if row["doh_url"]:
            yield parse(_pinned(row["doh_url"], row["doh_addresses"].split()))
        # No name goes over the wire in these: some networks look for the name and cut it off.
        path = row["doh_url"].partition("://")[2].partition("/")[2]
        for host in row["doh_by_address"].split():
            yield parse(f"https://{bracketed(host)}/{path}")
    yield from (address for address in plain if ":" in address.host)


def _pinned(url: str, hosts: list[str]) -> str:
    host = url.partition("://")[2].partition("/")[0]
    return url if not hosts or host in hosts else f"{url}#{','.join(hosts[:MOST_PINS])}"


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
