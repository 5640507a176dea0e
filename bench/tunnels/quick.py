"""The short run: what the relay must do for a tunnel, checked on real programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from bench.tunnels.download import Download
from bench.tunnels.layouts import LAYOUTS
from tests.simnet import Figure

SHARE_OF_SUM: Final = 0.95
SHARE_OF_BEST: Final = 0.95


@dataclass(frozen=True, slots=True)
class Check:
    """A layout, how long it is looked at and from when on, and what must be found."""

    layout: str
    after_s: float
    seconds: float
    find: Callable[[Download], Iterator[Figure]]


def _shares(found: Download) -> Iterator[Figure]:
    questions = sum(each.questions for each in found.counts) or 1
    for place, count in enumerate(found.counts):
        yield Figure(f"share of resolver {place + 1}", count.questions / questions, 0.30, 0.36)


def _stands_aside(found: Download) -> Iterator[Figure]:
    yield Figure("share of the best resolver", found.first_share, least=SHARE_OF_BEST)


def _adds_up(layout: str) -> Callable[[Download], Iterator[Figure]]:
    def find(found: Download) -> Iterator[Figure]:
        sum_qps = LAYOUTS[layout].rate_qps(len(LAYOUTS[layout].resolvers))
        least = SHARE_OF_SUM * sum_qps
        yield Figure(f"answers/s of {sum_qps}", found.answers_per_s, least=least)

    return find


CHECKS: Final = (
    Check("three-unlimited", 1.0, 4.0, _shares),
    Check("three-uneven-latency", 1.0, 6.0, _stands_aside),
    Check("three-lossy", 3.0, 5.0, _stands_aside),
    Check("three-limited", 5.0, 10.0, _adds_up("three-limited")),
    Check("three-limited-one-dead", 5.0, 10.0, _adds_up("three-limited-one-dead")),
)
