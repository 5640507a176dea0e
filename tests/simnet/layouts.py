"""The eight layouts of resolvers over which tunnels are measured, and downloads over them.

`first_only` leaves the first resolver of a layout alone in the pool and sends no copies, as for a
tunnel without a pool.
The limits are those of the measured programs: the third of `three-limited` drops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.simnet.net import Net
from tests.simnet.scenarios import Figure, line

LAYOUTS: Final[Mapping[str, tuple[Mapping[str, Any], ...]]] = {
    "one-unlimited": ({},),
    "one-10ms": ({"rtt_s": 0.010},),
    "one-limited": ({"limit_qps": 30},),
    "three-unlimited": ({}, {}, {}),
    "three-limited": (
        {"limit_qps": 20},
        {"limit_qps": 30},
        {"limit_qps": 40, "over": "drop"},
    ),
    "three-limited-one-dead": ({"limit_qps": 30}, {"limit_qps": 40}, {"dead": True}),
    "three-uneven-latency": ({"rtt_s": 0.010}, {"rtt_s": 0.060}, {"rtt_s": 0.250}),
    "three-lossy": ({}, {"loss": 0.1}, {"loss": 0.3}),
}

SERVICE_S: Final = 0.000_1
"""The server's work on one question: 10,000 per second, what the real ones reach here."""


def build(net: Net, layout: str, first_only: bool = False) -> None:
    """Add a layout's resolvers and a dnstt-like download through them."""
    for behaviour in LAYOUTS[layout][: 1 if first_only else None]:
        net.resolver(**behaviour)
    net.server.set(hold_s=1.0, service_s=SERVICE_S)
    net.dnstt()


def goodput(
    layout: str, *, seed: int, workers: int = 1, first_only: bool = False, run_s: float = 20.0
) -> float:
    """Bytes per second that the download gets over a layout, the first five seconds aside."""
    alone: dict[str, Any] = (
        {"duplicate": 1} if first_only else {}
    )  # nobody makes copies for a tunnel by itself
    with Net(seed=seed, workers=workers, tunnel="dnstt", **alone) as net:
        build(net, layout, first_only)
        net.run(run_s)
        return net.goodput(5, run_s)


def of_the_sum(net: Net, layout: str) -> Iterator[Figure]:
    build(net, layout)
    net.run(40)
    yield Figure("answered, of what the limits let through", net.efficiency(5, 40), least=0.95)


def of_the_first(net: Net, layout: str, least: float) -> Iterator[Figure]:
    build(net, layout)
    net.run(20)
    first = goodput(layout, seed=net.seed, workers=net.workers, first_only=True)
    yield Figure("goodput, of that over the first alone", net.goodput(5, 20) / first, least=least)


@line("dnstt over one limited resolver: >= 95 % of its limit", tunnel="dnstt")
def dnstt_over_one_limit(net: Net) -> Iterator[Figure]:
    yield from of_the_sum(net, "one-limited")


@line("dnstt over three limited resolvers: >= 95 % of the sum", tunnel="dnstt")
def dnstt_over_three_limits(net: Net) -> Iterator[Figure]:
    yield from of_the_sum(net, "three-limited")


@line("dnstt over two limited resolvers and a dead one: >= 95 % of the sum", tunnel="dnstt")
def dnstt_over_limits_and_a_dead_one(net: Net) -> Iterator[Figure]:
    yield from of_the_sum(net, "three-limited-one-dead")


@line("dnstt over 10/60/250 ms: >= 0.9 x the first alone", tunnel="dnstt")
def dnstt_over_uneven_latency(net: Net) -> Iterator[Figure]:
    yield from of_the_first(net, "three-uneven-latency", 0.9)


@line("dnstt over 0/10/30 % loss: >= 0.9 x the first alone", tunnel="dnstt")
def dnstt_over_losses(net: Net) -> Iterator[Figure]:
    yield from of_the_first(net, "three-lossy", 0.9)
