"""Lists from the web.

Used by: `relay lists update`. HTTPS only, verified; conditional where a stored list has tags; at
most LARGEST bytes, counted as they come; redirects to https only. What cannot be fetched or read
harms itself only. Names are looked up as those of resolvers are: not with this machine's own
resolver, which may lie; through a proxy they are left to it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp_socks import (
    ProxyConnectionError,
    ProxyConnector,
    ProxyError,
    ProxyTimeoutError,
)

from relay import __version__
from relay.bootstrap import Bootstrap, BootstrapError
from relay.config_errors import BadValue
from relay.endpoints import ip_of
from relay.lists.sources import Source, parse_url
from relay.lists.store import LARGEST_REGISTRY_BYTES, ListError, ListStore, Origin, Report
from relay.resolver_address import ResolverAddress
from relay.ways_out import DIRECT, Proxy
from shared.printable import printable
from workers.transports.faults import in_words

LARGEST_BYTES: Final = LARGEST_REGISTRY_BYTES
"""What is read of any list; the store has narrower bounds for what is no registry's file."""

LIMIT_S: Final = 600.0
"""The longest that one list takes."""

SILENCE_S: Final = 30.0
"""How long a server may say nothing."""

MOST_REDIRECTS: Final = 5

_CHUNK_BYTES: Final = 65_536
_LONGEST_TAG: Final = 1024
_REDIRECTS: Final = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one source: a report, unchanged, or a failure."""

    source: Source
    report: Report | None = None
    failure: str = ""
    """Empty where it did not fail. Without a report too, the list is as it is stored."""
    sha256: str = ""
    """Of the stored list, where that is unchanged."""


@dataclass(frozen=True, slots=True)
class Way:
    """How to go out."""

    via: Proxy | None = None
    ca_file: Path | None = None
    """Whom to trust instead of the system's authorities, PEM."""
    largest_bytes: int = LARGEST_BYTES
    silence_s: float = SILENCE_S


async def update(store: ListStore, sources: Sequence[Source], way: Way) -> list[Outcome]:
    """Fetch `sources` at once and keep what they give; return what came of each, in order.

    Raises ListError where none can be asked: `ca_file` or the proxy's name is of no use.
    """
    try:
        trust = ssl.create_default_context(cafile=str(way.ca_file) if way.ca_file else None)
    except OSError as error:
        raise ListError(f"{way.ca_file}: {error.strerror or 'no certificate in it'}") from None
    tags = {summary.name: summary for summary in store.summary()}
    timeout = aiohttp.ClientTimeout(
        total=LIMIT_S, sock_connect=way.silence_s, sock_read=way.silence_s
    )
    headers = {"User-Agent": f"relay/{__version__}", "Accept-Encoding": "identity"}
    connector = await _connector(way.via, trust)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, auto_decompress=False
    ) as session:

        async def fetched(source: Source) -> Fetched | Outcome:
            known = tags.get(source.name)
            conditions = {}
            same = known and (known.origin, known.country) == (source.url, source.country)
            if known and same and not known.fault:
                if known.etag:
                    conditions["If-None-Match"] = known.etag
                if known.last_modified:
                    conditions["If-Modified-Since"] = known.last_modified
            try:
                found = await _fetch(session, source, conditions, way.largest_bytes)
            except ListError as error:
                return Outcome(source, failure=str(error))
            return found or Outcome(source, sha256=known.sha256 if known else "")

        answers = await asyncio.gather(*map(fetched, sources))
    # One after the other, so that their order in the store is that of the sources.
    return [each if isinstance(each, Outcome) else _kept(store, each) for each in answers]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The content of a source."""

    source: Source
    data: bytes
    origin: Origin


def _kept(store: ListStore, fetched: Fetched) -> Outcome:
    source = fetched.source
    try:
        report = store.take(
            source.name, fetched.data, own=False, country=source.country, origin=fetched.origin
        )
    except ListError as error:
        return Outcome(source, failure=str(error))
    return Outcome(source, report)


async def _fetch(
    session: aiohttp.ClientSession, source: Source, conditions: dict[str, str], largest: int
) -> Fetched | None:
    """Return the content of a source; None where it is unchanged. Raises ListError."""
    url = source.url
    try:
        for _ in range(MOST_REDIRECTS + 1):
            async with session.get(url, headers=conditions, allow_redirects=False) as answer:
                if answer.status in _REDIRECTS:
                    url = _redirected(url, answer.headers.get("Location", ""))
                    continue
                if answer.status == 304 and conditions:
                    return None
                if answer.status != 200:
                    raise ListError(f"the server answered HTTP {answer.status}")
                data = await _body(answer, largest)
                etag, modified = _tag(answer, "ETag"), _tag(answer, "Last-Modified")
                return Fetched(source, data, Origin(source.url, etag, modified, source.country))
        raise ListError(f"more than {MOST_REDIRECTS} redirects")
    except aiohttp.ClientConnectorCertificateError as error:
        raise ListError(f"its certificate: {_reason(error.certificate_error)}") from None
    except aiohttp.ClientConnectorDNSError as error:
        # What our own look-up says, which knows nothing of an errno.
        name = printable(error.host)
        raise ListError(f"{name} cannot be looked up: {error.os_error.strerror}") from None
    except aiohttp.ClientConnectorError as error:
        raise ListError(_reason(error.os_error)) from None
    except TimeoutError:
        raise ListError("took too long to answer") from None
    except ProxyConnectionError:
        raise ListError("the proxy cannot be reached") from None
    except ProxyTimeoutError:
        raise ListError("the proxy took too long to answer") from None
    except ProxyError as error:
        raise ListError(f"the proxy: {_reason(error)}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ListError(_reason(error) or type(error).__name__) from None


def _tag(answer: aiohttp.ClientResponse, name: str) -> str:
    """Return a tag of a list where it can be sent back as it is, else nothing."""
    tag = answer.headers.get(name, "")
    return tag if len(tag) <= _LONGEST_TAG and tag.isprintable() and tag.isascii() else ""


async def _body(answer: aiohttp.ClientResponse, largest: int) -> bytes:
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise ListError("is compressed, which was not asked for")
    too_large = ListError(f"larger than {largest:,} bytes")
    if (answer.content_length or 0) > largest:
        raise too_large
    data = bytearray()
    async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
        data += chunk
        if len(data) > largest:
            raise too_large
    return bytes(data)


def _redirected(url: str, location: str) -> str:
    try:
        return parse_url(urljoin(url, location))
    except (BadValue, ValueError):
        raise ListError(f"redirects to {printable(location)}, which is no https URL") from None


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return in_words(error)  # its errno is no errno
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)  # event loops write texts of their own into some
    return printable(str(getattr(error, "strerror", None) or error))


async def _connector(via: Proxy | None, trust: ssl.SSLContext) -> aiohttp.BaseConnector:
    bootstrap = Bootstrap((), ())
    if via is None or via == DIRECT:
        return aiohttp.TCPConnector(ssl=trust, resolver=_Resolver(bootstrap))
    host = via.host
    if not ip_of(host):
        try:
            host = (await bootstrap.look_up(ResolverAddress("https", host, via.port)))[0]
        except BootstrapError as error:
            raise ListError(f"the proxy {via}: {error}") from None
    connector: aiohttp.BaseConnector = ProxyConnector.from_url(via.url(host), ssl=trust, rdns=True)
    return connector


class _Resolver(AbstractResolver):
    """The relay's own look-up of names, as aiohttp wants it."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap = bootstrap

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        try:
            found = await self._bootstrap.look_up(ResolverAddress("https", host.lower(), port))
        except BootstrapError as error:
            raise OSError(None, str(error)) from None
        return [
            ResolveResult(
                hostname=host,
                host=each,
                port=port,
                family=socket.AF_INET6 if ":" in each else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for each in found
        ]

    async def close(self) -> None:
        """Nothing is kept open."""
