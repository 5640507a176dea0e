"""The cleaner of text from outside, where the command and the configuration look for it."""

from __future__ import annotations

from shared.printable import printable, quoted

__all__ = ["printable", "quoted"]
