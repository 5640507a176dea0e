"""Hosts, ports and the relay's own addresses, read and put in one canonical spelling.

Used by: the configuration and the command. Pure: nothing is resolved or opened here.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from relay.config_errors import AddressError, BadValue
from shared.printable import quoted

LONGEST_NAME: Final = 253
LONGEST_SOCKET_PATH_BYTES: Final = 107
"""What `sun_path` holds beside its closing zero."""

_PORT: Final = re.compile(r"[0-9]{1,5}")
_LIKELY_PORT: Final = re.compile(r"[1-9][0-9]{1,3}")
_ZONE: Final = re.compile(r"[A-Za-z0-9._~-]{1,15}")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC_END: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9a-fA-F]*)")


def no_controls(text: str, longest: int) -> str:
    """Return `text` stripped; raise where it is empty, too long or holds what cannot be printed."""
    if len(text) > longest:
        raise AddressError(f"longer than {longest:,} characters")
    plain = text.strip()
    if not plain:
        raise AddressError("is empty")
    if not plain.isprintable():
        raise AddressError("holds a control character")
    return plain


def parse_domain(text: str) -> str:
    """Return a domain name in lower case, without a dot at its end."""
    try:
        return _name(no_controls(text, 1024))
    except AddressError as error:
        raise error.about(text) from None


def parse_country(text: str) -> str:
    """Return an ISO code of a country in capital letters."""
    if not (len(text) == 2 and text.isascii() and text.isalpha()):
        raise BadValue(f"expected an ISO country code of two letters, not {quoted(text)}")
    return text.upper()


def parse_port(text: str, lowest: int = 1) -> int:
    """Return a port number from `lowest` to 65535."""
    if not text:
        raise AddressError("the port after the colon is missing")
    if not _PORT.fullmatch(text) or not lowest <= int(text) <= 65535:
        raise AddressError(f'port "{text[:16]}" is not a number from {lowest} to 65535')
    return int(text)


def parse_host(text: str) -> str:
    """Return an IP address in its canonical spelling or a host name in lower case.

    An IPv4 address mapped into IPv6 becomes the IPv4 address it stands for. A zone is kept, and
    taken only where it means something: on a link-local IPv6 address.
    """
    if not text:
        raise AddressError("the host is missing")
    if ":" in text or "%" in text:
        return _ipv6(text)
    if _NUMERIC_END.fullmatch(text.removesuffix(".")):
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            raise AddressError(f'"{text[:64]}" is not an IPv4 address') from None
    return _name(text)


def split_host_port(text: str, default_port: int | None, lowest: int = 1) -> tuple[str, int]:
    """Return the canonical host and the port of `host`, `host:port`, `v6` or `[v6]:port`.

    Without a `default_port` the text has to name one.
    """
    if text.startswith("["):
        inside, bracket, after = text[1:].partition("]")
        if not bracket:
            raise AddressError('the "[" is not closed', f"[{inside}]")
        if ":" not in inside:
            raise AddressError("only an IPv6 address stands in brackets", inside + after)
        if after and not after.startswith(":"):
            raise AddressError('only ":port" may follow the "]"')
        host, has_port, port = inside, bool(after), after[1:]
    elif text.count(":") > 1:
        host, has_port, port = text, False, ""
    else:
        host, colon, port = text.partition(":")
        has_port = bool(colon)
    canonical = parse_host(host)
    if has_port:
        return canonical, parse_port(port, lowest)
    if default_port is None:
        raise AddressError("the port is missing", _with_port(canonical))
    return canonical, default_port


def _with_port(host: str) -> str:
    """Return what was probably meant by a host that has to have a port, and has none."""
    before, _, tail = host.rpartition(":")
    # An IPv6 address without brackets whose port was taken for a part of it.
    if ip_of(before) and _LIKELY_PORT.fullmatch(tail):
        return f"[{before}]:{tail}"
    return f"{bracketed(host)}:53"


def bracketed(host: str) -> str:
    """Return a host as it stands before `:port`."""
    return f"[{host}]" if ":" in host else host


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a canonical host is, None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a pool listens, UDP and TCP. Port 0 asks for a free one."""

    host: str = "127.0.0.1"
    """An IP literal, IPv6 without brackets."""
    port: int = 0

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """Where the control API is: a Unix socket, or a TCP port on loopback where `path` is None."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{bracketed(self.host)}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """Return the address that `HOST:PORT` names; HOST is an IP address or localhost."""
    try:
        return _parse_listen(text)
    except AddressError as error:
        raise error.vetted(_parse_listen).about(text) from None


def _parse_listen(text: str) -> ListenAddress:
    plain = no_controls(text, 1024)
    if plain.isdecimal():
        raise AddressError("the host is missing", f"127.0.0.1:{plain}")
    if plain.startswith(":") and plain.count(":") == 1:
        raise AddressError("the host is missing", f"127.0.0.1{plain}")
    host, port = split_host_port(plain, None, lowest=0)
    host = "127.0.0.1" if host == "localhost" else host
    ip = ip_of(host)
    if ip is None:
        raise AddressError("an address to listen on is an IP address, not a name")
    if ip.is_multicast:
        raise AddressError("nothing can listen on a multicast address")
    return ListenAddress(host, port)


def parse_control(text: str, base: Path | None = None) -> ControlAddress:
    """Return the address that `unix:PATH`, `PATH` or `HOST:PORT` names.

    A text with a colon and no slash is HOST:PORT. A relative path is taken from `base`, else from
    the working directory.
    """
    try:
        return _parse_control(text, base)
    except AddressError as error:
        raise error.vetted(_parse_control).about(text) from None


def _parse_control(text: str, base: Path | None = None) -> ControlAddress:
    plain = no_controls(text, 4096)
    named = plain.removeprefix("unix:")
    if named == plain and "/" not in plain and ":" in plain:
        listen = _parse_listen(plain)
        ip = ip_of(listen.host)
        if ip is None or not ip.is_loopback:
            raise AddressError(
                "the control API listens on a Unix socket or on loopback only",
                f"127.0.0.1:{listen.port}",
            )
        return ControlAddress(None, listen.host, listen.port)
    if not named:
        raise AddressError("the path is missing")
    path = base / named if base else Path(named)
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH_BYTES:
        raise AddressError(f"a path of a Unix socket has at most {LONGEST_SOCKET_PATH_BYTES} bytes")
    return ControlAddress(path)


def _ipv6(text: str) -> str:
    address, percent, zone = text.partition("%")
    try:
        ip = ipaddress.IPv6Address(address)
    except ValueError:
        host, _, port = address.rpartition(":")
        meant = f"[{host}]:{port}" if ip_of(host) and _PORT.fullmatch(port) else ""
        raise AddressError(f'"{text[:64]}" is not an IPv6 address', meant) from None
    if ip.ipv4_mapped and not percent:
        return str(ip.ipv4_mapped)
    if not percent:
        return str(ip)
    if not ip.is_link_local:
        raise AddressError("only a link-local address (fe80::) has a zone", str(ip))
    # In an address with a scheme the percent sign itself may come escaped (RFC 6874).
    zone = zone[2:] if zone.startswith("25") and len(zone) > 2 else zone
    if not _ZONE.fullmatch(zone):
        raise AddressError("the zone after the % is not an interface's name")
    return f"{ip}%{zone}"


def _name(text: str) -> str:
    if not text.isascii():
        raise AddressError("a name is written in ASCII (its xn-- form)")
    name = text.lower().removesuffix(".")
    if len(name) > LONGEST_NAME:
        raise AddressError(f"a name has at most {LONGEST_NAME} characters")
    for label in name.split("."):
        if not label:
            raise AddressError("the name has an empty label (two dots in a row, or one in front)")
        if len(label) > 63:
            raise AddressError("a label of the name has more than 63 characters")
        if not _LABEL.fullmatch(label):
            raise AddressError(
                f'"{label}" has a character that no name has'
                if not re.fullmatch(r"[a-z0-9_-]+", label)
                else f'"{label}" starts or ends with a hyphen'
            )
    return name
