"""Addresses of resolvers in every form a person types, in one canonical spelling.

Used by: the configuration, resolver lists, the roster. Pure: a host name stays a name.
Invariant: what `parse` returns is canonical, so equal addresses compare equal whatever their
spelling was (case, default port, compressed IPv6, a dot at the end of a name, a DNS stamp).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

from relay import stamps
from relay.config_errors import AddressError, nearest
from relay.endpoints import (
    ListenAddress,
    bracketed,
    ip_of,
    no_controls,
    parse_host,
    split_host_port,
)
from relay.ways_out import DIRECT, Proxy

LONGEST_ADDRESS: Final = 1024
MOST_PINS: Final = 8

_DEFAULT_PORT: Final = {"udp": 53, "tcp": 53, "dot": 853, "https": 443}
_ALIASES: Final = {"tls": "dot"}
_MEANT: Final = {"http": "https", "doh": "https", "h2": "https", "h3": "https", "dns": "udp"}
_WITH_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(:/{1,3}|//)(.*)")
_PASSWORD: Final = re.compile(r"//[^/]*@")
_URL_PATH: Final = re.compile(r"/[!$&-;=?-Z_a-z~%]*")
_ENCRYPTED: Final = ("dot", "https")
_BETWEEN: Final = re.compile(r"\s*[,;]\s*")
_ANOTHER: Final = re.compile(r"[,;]\s*(?:(?:udp|tcp|dot|tls|https)://|sdns:)", re.IGNORECASE)
_PARTS_READ: Final = 4
"""Of what may be several addresses: a list may have many such lines."""

_SEVERAL: Final = "names several resolvers; each goes into an entry of its own"


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
    pins: tuple[str, ...] = ()
    """Where dot or https is to connect instead of resolving `host`: IP literals, in order."""
    server_name: str = ""
    """Whom the certificate must name instead of `host`."""
    ca_file: str = ""
    insecure: bool = False
    get: bool = False
    via: Proxy | None = None
    """None: what the pool says. `DIRECT`: none, whatever the pool says."""
    bind: str = ""
    weight: int = 1
    remark: str = field(default="", compare=False)
    """What a person should know of it, although it can be used."""

    def __str__(self) -> str:
        if self.scheme == "auto":
            return "auto"
        pinned = "#" + ",".join(self.pins) if self.pins else ""
        return f"{self.scheme}://{bracketed(self.host)}:{self.port}{self.path}{pinned}"

    @property
    def shown(self) -> str:
        """The resolver as a person is shown it, with what was said beside its address."""
        parts = [
            str(self),
            f"as {self.server_name}" if self.server_name else "",
            "unverified" if self.insecure else "",
            "by GET" if self.get else "",
            f"via {self.proxy}" if self.proxy else "",
            f"from {self.bind}" if self.bind else "",
            f"weight {self.weight}" if self.weight != 1 else "",
        ]
        return " ".join(filter(None, parts))

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes it another resolver than the next; the rest is how it is dealt with."""
        pins = tuple(sorted(self.pins))
        server = (self.scheme, self.host, self.port, self.path, pins, self.server_name)
        return (*server, self.proxy, self.bind)

    @property
    def is_auto(self) -> bool:
        """Whether this stands for the resolvers that the relay finds by itself."""
        return self.scheme == "auto"

    @property
    def is_encrypted(self) -> bool:
        """Whether it is asked over TLS."""
        return self.scheme in _ENCRYPTED

    @property
    def proxy(self) -> Proxy | None:
        """The proxy that it is asked through."""
        return None if self.via == DIRECT else self.via

    @property
    def unresolved(self) -> str:
        """The name that the relay has to resolve before it can ask; empty where there is none.

        Through a proxy that is the proxy's own name: the resolver's name is left to it.
        """
        if self.is_auto:
            return ""
        host = self.proxy.host if self.proxy else self.host
        if self.pins and not self.proxy:
            return ""
        return "" if ip_of(host) else host


AUTO: Final = ResolverAddress("auto")


@dataclass(frozen=True, slots=True)
class Options:
    """What an entry of a configuration may say of a resolver beside its address."""

    server_name: str = ""
    ca_file: str = ""
    insecure: bool = False
    path: str = ""
    get: bool | None = None
    via: Proxy | None = None
    bind: str = ""
    weight: int = 1


def parse(text: str, options: Options | None = None) -> ResolverAddress:
    """Return the resolver that `text` names; raise `AddressError` where it names none.

    Forms: `host[:port]` and `udp://` (UDP), `tcp://host[:port]`, `dot://host[:853]` (also `tls://`),
    `https://host[:port]/path`, `sdns://stamp`, `auto`. After `#` stand addresses to connect to
    instead of resolving the name (dot and https), with commas between them.
    """

    def read(text: str) -> ResolverAddress:
        plain = no_controls(text, LONGEST_ADDRESS)
        return _with_options(plain, options) if options else _parse(plain)

    try:
        return read(text)
    except AddressError as error:
        told = AddressError(_SEVERAL) if _names_several(text) else error.vetted(read)
        raise told.about(_PASSWORD.sub("//...@", text)) from None


def with_defaults(
    address: ResolverAddress, via: Proxy | None = None, bind: str = ""
) -> ResolverAddress:
    """Return a resolver with the ways out of its pool where it names none itself.

    A proxy is for streams: a UDP resolver is left without. Raises `AddressError` where the source
    address is of the other IP version.
    """
    if via is not None and address.via is None and address.scheme not in ("udp", "auto"):
        address = replace(address, via=via)
    if bind and not address.bind:
        address = replace(address, bind=bind)
    if address.bind:
        try:
            _check_bind(address)
        except AddressError as error:
            raise error.about(str(address)) from None
    return address


def folded(text: str) -> str:
    """Return an address in its canonical spelling `text` with its pins in one order, IPv4 first.

    Whoever differs in the order of the pins alone is the same resolver.
    """
    if "," not in text:
        return text
    server, mark, pins = text.partition("#")
    return server + mark + ",".join(sorted(pins.split(","), key=lambda pin: (":" in pin, pin)))


def loops_back(resolver: ResolverAddress, listen: ListenAddress) -> bool:
    """Whether asking `resolver` would bring the question back to the pool that listens there."""
    if resolver.port != listen.port or resolver.scheme not in ("udp", "tcp"):
        return False
    ours, theirs = ip_of(listen.host), ip_of(resolver.host)
    if ours is None or theirs is None or resolver.proxy:
        return False
    return ours == theirs or (ours.is_unspecified and theirs.is_loopback)


# -- an address --------------------------------------------------------------------------------


def _names_several(text: str) -> bool:
    """Whether a text that is no address is several ones. What follows a "#" may have commas."""
    parts = _BETWEEN.split(text[:LONGEST_ADDRESS].strip(), _PARTS_READ)
    return len(parts) > 1 and "#" not in text and all(parts) and any(map(_is_address, parts))


def _is_address(text: str) -> bool:
    try:
        _parse(text)
    except AddressError:
        return False
    return True


def _parse(text: str, path: str = "") -> ResolverAddress:
    """Return the address `text`; an https address without a path has the given one."""
    if _ANOTHER.search(text):  # a comma may also stand in a path
        raise AddressError(_SEVERAL)
    if text.lower() == "auto":
        return AUTO
    if text[: len(stamps.PREFIX)].lower() == stamps.PREFIX:
        return _of_stamp(stamps.decode(text))
    matched = _WITH_SCHEME.fullmatch(text)
    written, rest = (matched[1].lower(), matched[3]) if matched else ("udp", text)
    begin = f"{written}://" if matched else ""
    scheme = _ALIASES.get(written, written)
    if scheme not in _DEFAULT_PORT:
        meant = _MEANT.get(scheme) or nearest(scheme, _DEFAULT_PORT)
        raise AddressError(
            f'"{scheme[:32]}://" is not udp://, tcp://, dot:// (tls://), https:// or sdns://',
            f"{meant}://{rest}" if meant else "",
        )
    if matched and matched[2] != "://":
        raise AddressError('a scheme is followed by "://"', f"{scheme}://{rest}")
    rest, mark, pins = rest.partition("#")
    if rest.startswith("/"):
        raise AddressError("the host is missing")
    authority, slash, tail = rest.partition("/")
    if "@" in authority:
        meant = rest.rpartition("@")[2]
        raise AddressError("a resolver has no user name or password", begin + meant)
    written_path = slash + tail
    if scheme == "https":
        path = _url_path(written_path or path, authority)
    elif written_path or path:
        bare = text.partition("#")[0].removesuffix(written_path)
        raise AddressError("only https:// has a path", bare if written_path else f"https://{rest}")
    try:
        host, port = split_host_port(authority, _DEFAULT_PORT[scheme])
        _check_reachable(scheme, host)
    except AddressError as error:
        if not error.suggestion:
            raise
        end = f"{written_path}{mark}{pins}"
        raise AddressError(error.reason, f"{begin}{error.suggestion}{end}") from None
    address = ResolverAddress(scheme, host, port, path)
    return replace(address, pins=_pins(address, pins)) if mark else address


def _url_path(path: str, authority: str) -> str:
    path = path.removesuffix("{?dns}")  # a URI template of RFC 8484; what is asked by is an option
    if not path:
        raise AddressError(
            "the path of an https:// resolver is missing", f"https://{authority}/dns-query"
        )
    if not _URL_PATH.fullmatch(path):
        raise AddressError("the path holds a character that belongs %-escaped")
    return path


def _pins(address: ResolverAddress, text: str) -> tuple[str, ...]:
    bare = str(address)
    if not address.is_encrypted:
        # Some programs write the port so.
        meant = text.isascii() and text.isdecimal() and len(text) <= 5
        raise AddressError(
            'only dot:// and https:// have addresses after a "#"',
            f"{address.scheme}://{bracketed(address.host)}:{text}" if meant else bare,
        )
    pins: dict[str, None] = {}
    for item in text.split(","):
        written = item.strip()
        try:
            pin, port = split_host_port(written, 0)
            usable = ip_of(pin) is not None and not port
        except AddressError:
            pin, usable = written, False
        if not usable:
            what = f'after the "#" stand IP addresses of the server, not "{written[:64]}"'
            raise AddressError(what, _turned_round(address, pin))
        _check_reachable(address.scheme, pin)
        pins[pin] = None
    if ip_of(address.host):
        if tuple(pins) != (address.host,):
            raise AddressError("an IP address needs no other one to connect to", bare)
        return ()
    if len(pins) > MOST_PINS:
        raise AddressError(f'at most {MOST_PINS} addresses stand after the "#"')
    return tuple(pins)


def _turned_round(address: ResolverAddress, name: str) -> str:
    """Return the right form of `dot://8.8.8.8#dns.google`, as other programs write it."""
    try:
        if ip_of(address.host) is None or ip_of(parse_host(name)):
            return ""
    except AddressError:
        return ""
    port = "" if address.port == _DEFAULT_PORT[address.scheme] else f":{address.port}"
    return f"{address.scheme}://{name}{port}{address.path}#{address.host}"


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


def _of_stamp(stamp: stamps.Stamp) -> ResolverAddress:
    scheme = stamp.scheme
    default = _DEFAULT_PORT[scheme]
    place = stamp.address
    if place.startswith(":"):
        place, port = "", split_host_port(f"h{place}", default)[1]
    elif place:
        place, port = split_host_port(place, default)
        if ip_of(place) is None:
            raise AddressError("the stamp has a name where an address belongs")
        _check_reachable(scheme, place)
    else:
        port = default
    if scheme == "udp":
        if not place:
            raise AddressError("the stamp has no address")
        return ResolverAddress(scheme, place, port)
    host, named_port = split_host_port(stamp.name, port)
    if port not in (default, named_port):
        raise AddressError(f"the stamp names two ports, {port} and {named_port}")
    _check_reachable(scheme, host)
    path = _url_path(stamp.path or "/dns-query", host) if scheme == "https" else ""
    if ip_of(host) and place not in ("", host):
        raise AddressError(f"the stamp names two addresses, {place} and {host}")
    remark = ""
    if stamp.hashes:
        remark = "the stamp pins certificates; these are verified by name only"
    pins = (place,) if place and place != host else ()
    return ResolverAddress(scheme, host, named_port, path, pins, remark=remark)


# -- what is said beside it --------------------------------------------------------------------


def _with_options(text: str, options: Options) -> ResolverAddress:
    tls = {
        "server_name": options.server_name,
        "ca_file": options.ca_file,
        "insecure": options.insecure,
    }
    if options.path and not options.path.startswith("/"):
        raise AddressError(f'the path "{options.path[:64]}" starts with no "/"')
    if text.lower() != "auto" and not _WITH_SCHEME.fullmatch(text):
        # What else is said tells what is meant.
        if options.path or options.get is not None:
            text = f"https://{text}"
        elif any(tls.values()):
            text = f"dot://{text}"
    address = _parse(text, options.path)
    if options.path and address.path != options.path:
        raise AddressError(f'has another path than the field "path": {options.path[:64]}')
    if not address.is_encrypted:
        for name, value in tls.items():
            if value:
                raise AddressError(f'"{name}" is for dot:// and https:// only', _as_dot(address))
    if options.get is not None and address.scheme != "https":
        raise AddressError('"method" is for https:// only')
    if address.scheme in ("udp", "auto") and options.via not in (None, DIRECT):
        raise AddressError('"via" is for tcp://, dot:// and https:// only', _as_tcp(address))
    if options.insecure and options.ca_file:
        raise AddressError('with "insecure" no certificate is verified, and "ca_file" is of no use')
    return replace(
        address,
        server_name="" if options.server_name == address.host else options.server_name,
        ca_file=options.ca_file,
        insecure=options.insecure,
        get=bool(options.get),
        via=options.via,
        bind=options.bind,
        weight=options.weight,
    )


def _as_dot(address: ResolverAddress) -> str:
    return "" if address.is_auto else f"dot://{bracketed(address.host)}"


def _as_tcp(address: ResolverAddress) -> str:
    return "" if address.is_auto else f"tcp://{bracketed(address.host)}:{address.port}"


def _check_bind(address: ResolverAddress) -> None:
    source = ip_of(address.bind)
    if source is None or address.is_auto:
        return
    proxy = address.proxy
    hosts = [proxy.host] if proxy else list(address.pins or (address.host,))
    what = "its proxy cannot be reached" if proxy else "cannot be asked"
    for target in filter(None, map(ip_of, hosts)):
        if target.version != source.version:
            raise AddressError(
                f"{what} from {source}: one is IPv{target.version}, the other IPv{source.version}"
            )
