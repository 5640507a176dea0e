"""The resolvers that this device itself uses, as `auto` gives them.

Used by: the supervisor, at start and whenever it looks again. Read tolerantly, as the C library
does: a line that means nothing is skipped, and a file that is not there names no resolver.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from relay.config_errors import AddressError
from relay.endpoints import ip_of
from relay.resolver_address import ResolverAddress, parse

RESOLV_CONF: Final = Path("/etc/resolv.conf")
_LONGEST_FILE_BYTES: Final = 1 << 20


def device_resolvers(path: Path = RESOLV_CONF) -> tuple[ResolverAddress, ...]:
    """Return the name servers of `path` in its order, each once, as UDP resolvers on port 53."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    found: dict[ResolverAddress, None] = {}
    for line in text.splitlines():
        # A comment starts in the first column; what follows the address is ignored.
        words = line.split()
        if line[:1] in ("#", ";") or len(words) < 2 or words[0] != "nameserver":
            continue
        try:
            # Brackets: a bare address, so that nothing in it passes for a scheme or a port.
            resolver = parse(f"[{words[1]}]" if ":" in words[1] else words[1])
        except AddressError:
            continue
        if ip_of(resolver.host) is not None:
            found[resolver] = None
    return tuple(found)
