"""Counts in words. The cleaner of text from outside is `shared.printable`."""

from __future__ import annotations


def counted(count: int, what: str, several: str = "") -> str:
    """Return "1 failure", "2 failures", "1,000 failures"; `several` where that takes no mere s."""
    return f"{count:,} {what if count == 1 else several or what + 's'}"
