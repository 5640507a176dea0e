"""What came of the checks of a pool's candidates, in numbers and for people. Pure.

Used by: the finder, for `status`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from relay.discovery.verdict import AT_TUNNEL, Stage, Verdict
from relay.resolver_address import ResolverAddress
from shared.printable import printable

RECENT: Final = 50
"""Failures that are told one by one."""


class Tally:
    """Counts the verdicts, and remembers the last failures that are of interest."""

    def __init__(self) -> None:
        self.checked = 0
        self.passed = 0
        self._failed_at: Counter[str] = Counter()
        self._recent: dict[ResolverAddress, str] = {}

    def take(self, verdict: Verdict, *, is_early: bool) -> None:
        """Take a verdict. That somebody of the long lists is dead is told in the numbers alone.

        Why one of a DoT or DoH server is refused is told: only its owner, or its user, can mend it.
        """
        self.checked += 1
        if verdict.passed:
            self.passed += 1
            return
        self._failed_at["could not send" if verdict.local_fault else verdict.stage.value] += 1
        if is_early or verdict.stage is not Stage.PLAIN or verdict.heard:
            self._recent.pop(verdict.address, None)  # the newest are the last
            self._recent[verdict.address] = told(verdict)
            if len(self._recent) > RECENT:
                del self._recent[next(iter(self._recent))]

    def status(self) -> dict[str, Any]:
        """Return it as `/status` shows it."""
        return {
            "checked": self.checked,
            "passed": self.passed,
            "failed_at": dict(self._failed_at),
            "recent": [
                {"address": address.shown, "verdict": printable(text)}
                for address, text in self._recent.items()
            ],
        }


def told(verdict: Verdict) -> str:
    """Return in words why a candidate did not pass."""
    if verdict.stage in AT_TUNNEL:
        return f"passes plain, fails the {verdict.stage} check: {verdict.reason}"
    return f"fails the {verdict.stage} check: {verdict.reason}"
