"""Addresses of resolvers in every form a person types, in one canonical spelling.

Used by: the configuration, resolver lists, the roster. Pure: a host name stays a name.
Invariant: what `parse` returns is canonical, so equal addresses compare equal whatever their
spelling was (case, default port, compressed IPv6, a dot at the end of a name).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from relay.config_errors import AddressError, nearest
from relay.endpoints import ListenAddress, bracketed, ip_of, no_controls, split_host_port

LONGEST_ADDRESS: Final = 1024
ENCRYPTED_UNSUPPORTED: Final = (
    "encrypted resolvers are not supported yet; use udp:// or tcp:// in this version"
)

_DEFAULT_PORT: Final = {"udp": 53, "tcp": 53, "dot": 853, "https": 443}
_ALIASES: Final = {"tls": "dot"}
_MEANT: Final = {"http": "https", "doh": "https", "h2": "https", "h3": "https", "dns": "udp"}
_WITH_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(:/{1,3}|//)(.*)")
_URL_PATH: Final = re.compile(r"/[!$&-;=?-Z_a-z~%]*")


@dataclass(frozen=True, slots=True)
class ResolverAddress:
    """One resolver, or `AUTO`. Made by `parse`, which sees to the canonical spelling."""

    scheme: str
    """udp, tcp, dot, https or auto."""
    host: str = ""
    """An IP literal (IPv6 without brackets, its zone kept) or a host name in lower case."""
    port: int = 0
    path: str = ""
    """Path and query of https, else empty."""

    def __str__(self) -> str:
        if self.scheme == "auto":
            return "auto"
        return f"{self.scheme}://{bracketed(self.host)}:{self.port}{self.path}"

    @property
    def is_auto(self) -> bool:
        """Whether this stands for the resolvers that the relay finds by itself."""
        return self.scheme == "auto"

    @property
    def is_name(self) -> bool:
        """Whether the host has to be resolved before it can be asked."""
        return not self.is_auto and ip_of(self.host) is None

    @property
    def is_encrypted(self) -> bool:
        """Whether it is asked over TLS."""
        return self.scheme in ("dot", "https")


AUTO: Final = ResolverAddress("auto")


def parse(text: str) -> ResolverAddress:
    """Return the resolver that `text` names; raise `AddressError` where it names none.

    Forms: `host[:port]` and `udp://` (UDP), `tcp://host[:port]`, `dot://host[:853]` (also `tls://`),
    `https://host[:port]/path`, `auto`.
    """
    try:
        return _parse(no_controls(text, LONGEST_ADDRESS))
    except AddressError as error:
        raise error.about(text) from None


def loops_back(resolver: ResolverAddress, listen: ListenAddress) -> bool:
    """Whether asking `resolver` would bring the question back to the pool that listens there."""
    if resolver.port != listen.port or resolver.scheme not in ("udp", "tcp"):
        return False
    ours, theirs = ip_of(listen.host), ip_of(resolver.host)
    if ours is None or theirs is None:
        return False
    return ours == theirs or (ours.is_unspecified and theirs.is_loopback)


def _parse(text: str) -> ResolverAddress:
    if text.lower() == "auto":
        return AUTO
    matched = _WITH_SCHEME.fullmatch(text)
    written, rest = (matched[1].lower(), matched[3]) if matched else ("udp", text)
    scheme = _ALIASES.get(written, written)
    if scheme not in _DEFAULT_PORT:
        meant = _MEANT.get(scheme) or nearest(scheme, _DEFAULT_PORT)
        raise AddressError(
            f'"{scheme[:32]}://" is not udp://, tcp://, dot:// (tls://) or https://',
            f"{meant}://{rest}" if meant else "",
        )
    if matched and matched[2] != "://":
        raise AddressError('a scheme is followed by "://"', f"{scheme}://{rest}")
    if rest.startswith("/"):
        raise AddressError("the host is missing")
    authority, slash, tail = rest.partition("/")
    if "@" in authority:
        raise AddressError("a resolver has no user name or password", rest.rpartition("@")[2])
    path = slash + tail
    if scheme == "https":
        path = _url_path(path, authority)
    elif path:
        raise AddressError("only https:// has a path", text[: -len(path)])
    host, port = split_host_port(authority, _DEFAULT_PORT[scheme])
    _check_reachable(scheme, host)
    return ResolverAddress(scheme, host, port, path)


def _url_path(path: str, authority: str) -> str:
    path = path.removesuffix("{?dns}")  # a URI template of RFC 8484; the relay posts
    if not path:
        raise AddressError(
            "the path of an https:// resolver is missing", f"https://{authority}/dns-query"
        )
    if "#" in path:
        raise AddressError("an https:// resolver has no fragment", path.partition("#")[0])
    if not _URL_PATH.fullmatch(path):
        raise AddressError("the path holds a character that belongs %-escaped")
    return path


def _check_reachable(scheme: str, host: str) -> None:
    ip = ip_of(host)
    if ip is None:
        return
    if ip.is_unspecified or ip.is_multicast or host == "255.255.255.255":
        raise AddressError(f"{host} is not the address of one host")
    if ip.version == 6 and ip.is_link_local:
        if "%" not in host:
            raise AddressError("a link-local address needs its interface", f"{host}%eth0")
        if scheme not in ("udp", "tcp"):
            raise AddressError("a link-local address is for udp:// and tcp:// only")
