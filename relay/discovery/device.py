"""The resolvers that this device itself uses.

Used by: the candidates of `auto`, and whoever looks names up. Everything is read tolerantly, as the
C library does: a line that means nothing is skipped, and a file that is not there names no
resolver. Behind a stub on this machine (systemd-resolved, NetworkManager's dnsmasq) stand the real
resolvers, in a file of their own; the stub comes last, because it may be slow with a tunnel's names
and may ask this very relay.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from relay.config_errors import AddressError
from relay.endpoints import ip_of
from relay.resolver_address import ResolverAddress, parse

RESOLV_CONF: Final = Path("/etc/resolv.conf")

UPLINKS: Final = (
    Path("/run/systemd/resolve/resolv.conf"),
    Path("/run/NetworkManager/no-stub-resolv.conf"),
    Path("/run/NetworkManager/resolv.conf"),
)
"""Where the stubs of Linux write down whom they ask."""

MOST: Final = 64
"""Resolvers of one device that are of use; a file may be garbage of any size."""

_LONGEST_FILE_BYTES: Final = 1 << 20
_COMMAND_LIMIT_S: Final = 5.0
_BOM: Final = "\ufeff"

_SCUTIL: Final = ("scutil", "--dns")
_TCPIP: Final = r"HKLM\SYSTEM\CurrentControlSet\Services\{}\Parameters\Interfaces"
_REG_QUERIES: Final = tuple(
    ("reg", "query", _TCPIP.format(service), "/s") for service in ("Tcpip", "Tcpip6")
)


def device_resolvers(
    resolv_conf: Path = RESOLV_CONF, uplinks: Sequence[Path] = UPLINKS
) -> tuple[ResolverAddress, ...]:
    """Return the name servers of this device, each once, as UDP resolvers on port 53.

    The paths are those of Linux. Blocks for a moment; elsewhere it runs a command of the system.
    """
    if sys.platform == "darwin":
        return _resolvers(of_scutil(_output(_SCUTIL)))
    if sys.platform == "win32":
        texts = [_output(command) for command in _REG_QUERIES]
        return _resolvers(server for text in texts for server in of_registry(text))
    named = _of_file(resolv_conf)
    if not any(_is_loopback(each) for each in named):
        return named
    found = dict.fromkeys((*named, *(each for path in uplinks for each in _of_file(path))))
    return tuple(sorted(found, key=_is_loopback))


def of_resolv_conf(text: str) -> Iterator[str]:
    """Yield the name servers that a resolv.conf names."""
    for line in text.removeprefix(_BOM).splitlines():
        # A comment starts in the first column; what follows the address is ignored.
        words = line[:256].split()
        if line[:1] not in ("#", ";") and len(words) > 1 and words[0] == "nameserver":
            yield words[1]


def of_scutil(text: str) -> Iterator[str]:
    """Yield the name servers that macOS's `scutil --dns` shows, the general ones first.

    Those of one domain only, such as a company's, answer for that alone and are left out.
    """
    for block in re.split(r"^resolver #\d+", text, flags=re.MULTILINE)[1:]:
        if re.search(r"^\s*(domain|port)\s*:|^\s*options\s*:.*mdns", block, re.MULTILINE):
            continue
        yield from re.findall(r"^\s*nameserver\[\d+\]\s*:\s*(\S+)", block, re.MULTILINE)


def of_registry(text: str) -> Iterator[str]:
    """Yield the name servers of Windows's interfaces, from `reg query ...\\Interfaces /s`.

    What was typed in for an interface counts before what DHCP said. An interface that lost its
    address keeps the servers of its last network, which are left out.
    """
    for block in re.split(r"^(?=HKEY_)", text, flags=re.MULTILINE):
        values = dict(re.findall(r"^\s+(\w+)\s+REG_\w+[ \t]+(\S.*?)\s*$", block, re.MULTILINE))
        if values.get("DhcpIPAddress") == "0.0.0.0" and not values.get("IPAddress"):  # noqa: S104
            continue
        yield from re.split(r"[\s,]+", values.get("NameServer") or values.get("DhcpNameServer", ""))


def _of_file(path: Path) -> tuple[ResolverAddress, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    return _resolvers(of_resolv_conf(text))


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_COMMAND_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:_LONGEST_FILE_BYTES].decode("utf-8", "replace")


def _resolvers(servers: Iterable[str]) -> tuple[ResolverAddress, ...]:
    found: dict[ResolverAddress, None] = {}
    for server in servers:
        try:
            # Brackets: a bare address, so that nothing in it passes for a scheme or a port.
            resolver = parse(f"[{server}]" if ":" in server else server)
        except AddressError:
            continue
        if ip_of(resolver.host) is not None:
            found[resolver] = None
            if len(found) == MOST:
                break
    return tuple(found)


def _is_loopback(resolver: ResolverAddress) -> bool:
    ip = ip_of(resolver.host)
    return ip is not None and ip.is_loopback
