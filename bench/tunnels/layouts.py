"""The eight layouts of resolvers, each resolver a dnsdist before the tunnel's server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.rig import Address, Dnsdist, Limits, free_port_53

DEAD: Final = Limits(loss=1.0)
"""Takes every question and answers none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Resolvers in the order in which the programs are told of them."""

    name: str
    resolvers: tuple[Limits, ...]

    @property
    def is_limited(self) -> bool:
        """Whether rates limit it: then a file is downloaded, else as much as comes in a time."""
        return self.rate_qps(len(self.resolvers)) > 0

    def rate_qps(self, count: int) -> int:
        """Answers per second that the first `count` resolvers allow; 0 for no limit."""
        return sum(each.rate_qps or 0 for each in self.resolvers[:count])


LAYOUTS: Final[Mapping[str, Layout]] = {
    layout.name: layout
    for layout in (
        Layout("one-unlimited", (Limits(),)),
        Layout("one-10ms", (Limits(delay_ms=10),)),
        Layout("one-limited", (Limits(rate_qps=30),)),
        Layout("three-unlimited", (Limits(), Limits(), Limits())),
        Layout(
            "three-limited",
            (
                Limits(rate_qps=20),
                Limits(rate_qps=30),
                Limits(rate_qps=40, over_rate="drop"),
            ),
        ),
        Layout("three-limited-one-dead", (Limits(rate_qps=30), Limits(rate_qps=40), DEAD)),
        Layout(
            "three-uneven-latency", (Limits(delay_ms=10), Limits(delay_ms=60), Limits(delay_ms=250))
        ),
        Layout("three-lossy", (Limits(), Limits(loss=0.1), Limits(loss=0.3))),
    )
}


@dataclass(frozen=True, slots=True)
class Count:
    """Questions that reached a resolver, and how many of them it let the server answer."""

    questions: int
    answers: int


@contextlib.contextmanager
def resolvers_of(layout: Layout, server: Address, workdir: Path) -> Iterator[list[Dnsdist]]:
    """Start the resolvers of a layout; the first on port 53, for clients that ask no other."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Dnsdist(
                    [server],
                    workdir=workdir,
                    address=None if place else free_port_53(),
                    limits=limits,
                )
            )
            for place, limits in enumerate(layout.resolvers)
        ]


def read_counts(resolvers: Sequence[Dnsdist]) -> list[Count]:
    """What each resolver has counted since it started."""
    counters = [each.counters() for each in resolvers]
    return [Count(each["queries"], each["responses"]) for each in counters]


def counts_since(resolvers: Sequence[Dnsdist], before: Sequence[Count]) -> list[Count]:
    """What each resolver has counted since an earlier reading."""
    return [
        Count(now.questions - then.questions, now.answers - then.answers)
        for now, then in zip(read_counts(resolvers), before, strict=True)
    ]
