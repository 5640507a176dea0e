"""What a check found out about one candidate.

Made by `relay.discovery.checks`; read by the finder, the scores and `relay scan`. Pure.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Fitness:
    """What of a tunnel's messages a resolver lets through. None, or 0: not known."""

    keeps_case: bool | None = None
    """Whether the question of its answers is spelt as it was asked."""
    longest_name: int = 0
    """Octets of the longest question name it answered, without the last dot: up to 253."""
    largest_reply: int = 0
    """Octets of the largest reply that came back whole."""
    drops_larger: bool = False
    """Whether a larger one was asked for, and nothing came or it was cut: then that is a limit, and
    else only the largest that there was to ask for."""
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
