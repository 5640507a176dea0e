"""Text from outside made safe to print.

Used by: the command, the configuration, the workers. Invariant: what leaves here holds no control,
format or separator character, so it can neither move a terminal's cursor nor forge a second log
line.
"""

from __future__ import annotations

from typing import Final

_SHOWN_LENGTH: Final = 120


def printable(text: str, limit: int = _SHOWN_LENGTH) -> str:
    """Return `text` with unprintable characters escaped, cut after `limit` characters of it."""
    cut = text[:limit]
    if not cut.isprintable():
        cut = "".join(
            c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
            for c in cut
        )
    return cut + "..." if len(text) > limit else cut


def quoted(text: str) -> str:
    """Return `text` as it may stand in a message, in double quotes."""
    return f'"{printable(text)}"'
