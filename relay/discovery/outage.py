"""Telling a network that is gone from resolvers that do not work. Pure.

Used by: the hunt. A dead address and a dead network look the same from here: nothing comes back.
So failures without any answer are held back, not yet believed. An answer of anybody vouches for the
network, and with it for the failures before it. After a long run of silence, or a short one of
errors of this machine, those who are known to answer are asked; if they are silent as well, it was
the network: whom the silence was blamed on is checked again later.

    believed --silence, local errors--> doubted --a known one answers--> believed
                                           |
                                           +-----nobody answers--> out --anybody answers--> believed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from relay.discovery.verdict import Verdict

SILENT_RUN: Final = 50
"""Checks in a row without an answer that raise doubt. Long lists have longer runs of the dead; each
then costs one question to somebody known."""

LOCAL_RUN: Final = 3
"""Checks in a row that this machine could not make that raise doubt."""


@dataclass(slots=True)
class Doubt:
    """Holds back the failures that nobody has vouched for yet."""

    held: list[Verdict] = field(default_factory=list)
    answered: bool = False
    """Whether anybody has answered anything so far."""

    def take(self, verdict: Verdict) -> list[Verdict]:
        """Take a verdict; return those that can be believed now, in the order they came in."""
        if is_answer(verdict):
            self.answered = True
            return [*self.vouched(), verdict]
        self.held.append(verdict)
        return []

    @property
    def is_raised(self) -> bool:
        """Whether those who are known to answer should be asked."""
        if len(self.held) >= SILENT_RUN:
            return True
        recent = self.held[-LOCAL_RUN:]
        return len(recent) == LOCAL_RUN and all(each.local_fault for each in recent)

    def vouched(self) -> list[Verdict]:
        """The network works: return what was held back."""
        believed, self.held = self.held, []
        return believed


def is_answer(verdict: Verdict) -> bool:
    """Whether anything came back, be it of no use: then the network is there."""
    return verdict.passed or verdict.answered > 0 or verdict.is_self
