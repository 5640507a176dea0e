"""Ways out of this machine: the proxy to go through (`via`), the address to send from (`bind`).

Used by: the configuration and the roster. Nothing is resolved or sent here. Invariant: a proxy's
password is in the URL that workers get, and in nothing that is shown to a person.
"""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from relay.config_errors import AddressError, nearest
from relay.endpoints import bracketed, ip_of, no_controls, split_host_port

LONGEST_VIA: Final = 1024
LONGEST_CREDENTIAL_BYTES: Final = 255
"""What a SOCKS5 message has room for (RFC 1929)."""

_SCHEMES: Final = ("socks5", "http")
_MEANT: Final = {"socks5h": "socks5", "socks": "socks5", "tor": "socks5", "https": "http"}
_USUAL_PORT: Final = {"socks5": 1080, "http": 8080}
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_INTERFACE: Final = re.compile(r"[A-Za-z0-9_.@-]{1,15}")
"""Names that a network interface is given; the kernel takes more (IFNAMSIZ is 16)."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A SOCKS5 or HTTP proxy. Names are left to it to resolve."""

    scheme: str
    """socks5, http, or direct for none at all."""
    host: str = ""
    """An IP literal or a host name."""
    port: int = 0
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Return the proxy as a person is shown it."""
        return f"{self.scheme}://{bracketed(self.host)}:{self.port}"

    def url(self, host: str) -> str:
        """Return the whole URL, with `host`, an address of it, in the place of its name."""
        login = ""
        if self.user or self.password:
            login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}@"
        return f"{self.scheme}://{login}{bracketed(host)}:{self.port}"


DIRECT: Final = Proxy("direct")


def parse_via(text: str) -> Proxy:
    """Return the proxy that `socks5://[user:password@]host:port` or `http://...` names.

    `direct` is no proxy. Raises `AddressError`, in which no password is repeated.
    """
    try:
        return _parse_via(text)
    except AddressError as error:
        raise error.vetted(_parse_via).about(_without_login(text)) from None


def parse_bind(text: str) -> str:
    """Return the source address, in its canonical spelling, or interface that `text` names."""
    try:
        return _parse_bind(text)
    except AddressError as error:
        raise error.vetted(_parse_bind).about(text) from None


def why_absent(bind: str) -> str:
    """Return why `bind`, as `parse_bind` gives it, cannot be sent from now; empty where it can."""
    ip = ip_of(bind)
    if ip is not None:
        return "" if is_local(bind) else "this machine does not have the address now"
    try:
        socket.if_nametoindex(bind)
    except OSError:
        return "there is no such interface now"
    return ""


def is_local(host: str) -> bool:
    """Whether an IP literal is an address of this machine: whether a socket can be bound to it."""
    ip = ip_of(host)
    if ip is None or ip.is_unspecified or ip.is_multicast:
        return False
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return True
    return False


def _parse_bind(text: str) -> str:
    plain = no_controls(text, 255)
    bare = plain[1:-1] if plain.startswith("[") and plain.endswith("]") else plain
    if ip_of(bare) is None:
        return _interface(plain)
    host, _ = split_host_port(bare, 0)
    ip = ip_of(host)
    if ip is None or ip.is_unspecified or ip.is_multicast:
        raise AddressError("is not the address of one host")
    if ip.version == 6 and ip.is_link_local:
        zone = host.partition("%")[2]
        raise AddressError("for a link-local address, name its interface", zone)
    return host


def _parse_via(text: str) -> Proxy:
    text = no_controls(text, LONGEST_VIA)
    if text.lower() == "direct":
        return DIRECT
    matched = _URL.fullmatch(text)
    if not matched:
        login, at, place = text.rpartition("@")
        meant = f"socks5://{'' if at else place}"
        raise AddressError("a proxy is written socks5://HOST:PORT or http://HOST:PORT", meant)
    scheme, rest = matched[1].lower(), matched[2].removesuffix("/")
    scheme = "socks5" if scheme == "socks5h" else scheme  # a name always goes to the proxy
    login, at, place = rest.rpartition("@")
    if scheme not in _SCHEMES:
        near = _MEANT.get(scheme) or nearest(scheme, _SCHEMES)
        raise AddressError(
            f'"{scheme[:32]}://" is neither socks5:// nor http://',
            f"{near}://{place}" if near else "",
        )
    if any(mark in place for mark in "/?#"):
        raise AddressError("a proxy has no path", f"{scheme}://{re.split('[/?#]', place)[0]}")
    user, _, password = login.partition(":")
    if at and not user:
        raise AddressError('the user name before the "@" is missing')
    try:
        host, port = split_host_port(place, None)
    except AddressError as error:
        if error.suggestion.endswith(":53"):  # the port is missing
            usual = error.suggestion.removesuffix(":53")
            meant = f"{scheme}://{usual}:{_USUAL_PORT[scheme]}"
            raise AddressError(error.reason, meant) from None
        raise
    ip = ip_of(host)
    if ip is not None and (ip.is_unspecified or ip.is_multicast):
        raise AddressError(f"{host} is not the address of one host")
    return Proxy(scheme, host, port, _credential(user), _credential(password))


def _credential(text: str) -> str:
    if _BAD_ESCAPE.search(text):
        raise AddressError('a "%" in a user name or password is written %25')
    try:
        plain = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise AddressError("a user name or password is not UTF-8") from None
    if len(plain.encode()) > LONGEST_CREDENTIAL_BYTES:
        raise AddressError(f"a user name or password has at most {LONGEST_CREDENTIAL_BYTES} bytes")
    return plain


def _interface(text: str) -> str:
    host, colon, _ = text.rpartition(":")
    if colon and ip_of(host.strip("[]")):
        raise AddressError("a source address has no port", host)
    if not _INTERFACE.fullmatch(text) or text in (".", ".."):
        raise AddressError("is neither an IP address nor the name of an interface")
    return text


def _without_login(text: str) -> str:
    before, at, after = text.rpartition("@")
    if not at:
        return text
    scheme, mark, _ = before.partition("://")
    return f"{scheme if mark else ''}{mark}...@{after}"
