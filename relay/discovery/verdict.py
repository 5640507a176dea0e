"""What a check found out about one candidate.

Made by `relay.discovery.checks`; read by the finder, the scores and `relay scan`. Pure.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Final

from relay.resolver_address import ResolverAddress


class Stage(enum.StrEnum):
    """The checks of a candidate, from cheap to dear."""

    PLAIN = "plain"
    HONESTY = "honesty"
    TUNNEL = "tunnel"
    COMMAND = "command"
    FITNESS = "fitness"


AT_TUNNEL: Final = (Stage.TUNNEL, Stage.COMMAND)
"""Checks that everybody fails while the tunnel's server is down."""


REPLY_STEPS: Final = (512, 1_232, 4_096)
"""Octets: what passes without EDNS, what no way on the internet cuts into fragments, and what the
clients of tunnels say that they take."""


@dataclass(frozen=True, slots=True)
class ReplySizes:
    """How large the replies are that a resolver lets through.

    A step passes by a whole reply of at least half of it, than which no smaller step is larger, and
    fails by a missing one that is no larger than the step. Else nothing is known of it.
    """

    largest: int = 0
    """Octets of the largest reply that came back whole; 0: none."""
    missing: int = 0
    """Octets of the smallest reply that did not come back whole; 0: none."""

    def passed(self, size: int) -> ReplySizes:
        """Return what is known once another reply came back whole."""
        return replace(self, largest=max(self.largest, size))

    def failed(self, size: int) -> ReplySizes:
        """Return what is known once another reply, of this size, did not."""
        return replace(self, missing=min(self.missing or size, size))

    @property
    def steps(self) -> tuple[bool | None, ...]:
        """Whether each of `REPLY_STEPS` passes; None: not known."""
        # A larger one came through: then it was not the size.
        missing = self.missing if self.missing > self.largest else 0
        return tuple(
            False if 0 < missing <= step else True if 2 * self.largest >= step else None
            for step in REPLY_STEPS
        )

    @property
    def limit(self) -> int:
        """Octets of the largest reply that may pass; 0: no limit is known.

        That is the step below the first that fails, be it proven or just not known to fail: whom a
        limit is ascribed that he has not, gets no large queries.
        """
        steps = self.steps
        if False not in steps:
            return 0
        first = steps.index(False)
        return max(self.largest, REPLY_STEPS[first - 1] if first else 1)

    def is_open(self, size: int) -> bool:
        """Whether a reply of `size` octets, 0 if that is not known, would tell anything new."""
        if not size:
            return None in self.steps
        known = dict(zip(REPLY_STEPS, self.steps, strict=True))
        return next((known[step] is None for step in REPLY_STEPS if size <= step), False)


@dataclass(frozen=True, slots=True)
class Fitness:
    """What of a tunnel's messages a resolver lets through. None, or 0: not known."""

    keeps_case: bool | None = None
    """Whether the question of its answers is spelt as it was asked."""
    longest_name: int = 0
    """Octets of the longest question name it answered, without the last dot: up to 253."""
    replies: ReplySizes = ReplySizes()
    txt: bool | None = None
    edns: bool | None = None
    """Whether its answers carry an OPT record when asked with one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one check."""

    address: ResolverAddress
    passed: bool
    stage: Stage
    """Where it failed, or the last check that it passed."""
    reason: str = ""
    """Why it failed, in the relay's own words; empty where it passed."""
    latency_s: float = 0.0
    """Its fastest answer; 0 where nothing was answered."""
    asked: int = 0
    answered: int = 0
    honest: bool | None = None
    """None: not looked at."""
    tunnel: bool | None = None
    """Whether the tunnel's own server answered through it; None: not asked."""
    fitness: Fitness = field(default_factory=Fitness)
    local_fault: bool = False
    """This machine could not send: that says nothing about the resolver."""
    is_self: bool = False
    """The question came back to this relay."""
    heard: bool = False
    """It said something on its connection that is no answer to a question: it shows a wrong
    certificate, say, or is another kind of server."""

    @property
    def loss(self) -> float:
        """Share of the questions that were not answered, 0 to 1."""
        return 1 - self.answered / self.asked if self.asked else 0.0
