"""Where `relay lists update` gets lists from.

Used by: the command and the configuration. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from relay.config_errors import BadValue
from relay.endpoints import no_controls

LONGEST_URL: Final = 2048
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Source:
    """One list on the web. Its form is seen from its content."""

    name: str
    url: str
    """https only."""
    country: str = ""
    """Whose ranges its blocks of addresses are, or which country's lines are taken."""


DEFAULT_SOURCES: Final = (
    Source("public-dns.info", "https://public-dns.info/nameservers.csv"),
    Source(
        "dnscrypt-public-resolvers",
        "https://download.dnscrypt.info/dnscrypt-resolvers/v3/public-resolvers.md",
    ),
    Source(
        "trickest-resolvers",
        "https://raw.githubusercontent.com/trickest/resolvers/main/resolvers.txt",
    ),
)

_REGISTRIES: Final = {
    "ripencc": "https://ftp.ripe.net/pub/stats/ripencc/delegated-ripencc-extended-latest",
    "apnic": "https://ftp.apnic.net/stats/apnic/delegated-apnic-extended-latest",
    "afrinic": "https://ftp.afrinic.net/pub/stats/afrinic/delegated-afrinic-extended-latest",
    "arin": "https://ftp.arin.net/pub/stats/arin/delegated-arin-extended-latest",
    "lacnic": "https://ftp.lacnic.net/pub/stats/lacnic/delegated-lacnic-extended-latest",
}
_REGISTRY_OF: Final = {
    **dict.fromkeys(("AE", "BY", "IR", "RU", "SA", "TR"), "ripencc"),
    **dict.fromkeys(("CN", "MM", "PK"), "apnic"),
    "EG": "afrinic",
}
"""The registry that gave a country nearly all its addresses. For others all five are asked."""


def country_sources(country: str) -> tuple[Source, ...]:
    """Return the registries' files that hold the ranges of a country."""
    only = _REGISTRY_OF.get(country)
    names = (only,) if only else tuple(_REGISTRIES)
    return tuple(Source(f"{name}-{country}", _REGISTRIES[name], country) for name in names)


def parse_source(text: str, country: str = "") -> Source:
    """Return the source that `NAME=URL` names; raise `BadValue`."""
    name, equals, url = text.partition("=")
    if not equals:
        raise BadValue("a source is written NAME=https://HOST/PATH", text=text)
    return Source(parse_name(name.strip()), parse_url(url), country)


def parse_name(text: str) -> str:
    """Return the name of a list; raise `BadValue`."""
    if not _NAME.fullmatch(text):
        raise BadValue(
            "the name of a list has up to 64 letters, digits and . _ -",
            re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-_")[:64],
            text,
        )
    return text


def parse_url(text: str) -> str:
    """Return an https URL; raise `BadValue`."""
    try:
        url = no_controls(text, LONGEST_URL)
        parts = urlsplit(url)
        usable = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
        # What is not ASCII, or has blanks, two programs would read in two ways.
        usable = usable and url.isascii() and " " not in url and not parts.username
    except BadValue as error:
        raise error.about(text) from None
    except ValueError:
        usable = False
    if not usable:
        raise BadValue("a list is fetched from https://HOST/PATH", text=text)
    return url
