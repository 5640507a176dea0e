"""The pool over real resolvers: the lines that must hold in the simulation, on real sockets.

Every resolver is a dnsdist before one fast server; what it was sent and refused is read from its
own counters. Only rates and shares are judged, over seconds, so that a slow moment of the machine
decides nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.closed_loop import ClosedLoop, OpenLoop, Sent, read_sent, sent_since
from tests.load_client import Echo, pool_of
from tests.rig import Address, Dnsdist, Limits, Relay, ScriptedResolver, free_address
from tests.rig.net import why_not_installed
from tests.rig.scripted import Asked, Reply, Say
from tests.rig.wire import REFUSED, reply_wire

pytestmark = pytest.mark.skipif(
    bool(why_not_installed("dnsdist")), reason=why_not_installed("dnsdist")
)

WORKERS = pytest.mark.parametrize("workers", [1, 4])
STEADY_S = (5.0, 12.0)
"""The part of the run in which ceilings must have been learned."""

HOLD_S = 1.0
HELD_EVERY = 50


@contextlib.contextmanager
def pool(
    workdir: Path, workers: int, *limits: Limits, server: Address | None = None
) -> Iterator[tuple[Relay, list[Dnsdist]]]:
    """A relay of so many workers over a resolver for each of `limits`, before one server."""
    with contextlib.ExitStack() as stack:
        if server is None:
            server = stack.enter_context(Echo(workdir=workdir)).address
        resolvers = [
            stack.enter_context(Dnsdist([server], workdir=workdir, limits=each)) for each in limits
        ]
        relay = stack.enter_context(
            Relay([each.address for each in resolvers], workdir=workdir, workers=workers)
        )
        yield relay, resolvers


def watch(
    client: ClosedLoop | OpenLoop, resolvers: list[Dnsdist], from_s: float, to_s: float
) -> list[Sent]:
    """What each resolver counted in a part of the run of `client`."""
    client.wait(from_s)
    before = [read_sent(each) for each in resolvers]
    client.wait(to_s)
    return [sent_since(each, then) for each, then in zip(resolvers, before, strict=True)]


def shares(counts: list[Sent]) -> list[float]:
    """The questions of each resolver, of all."""
    questions = sum(each.questions for each in counts)
    return [each.questions / questions for each in counts]


@WORKERS
def test_pool_three_equal_resolvers_share_equally(workdir: Path, workers: int) -> None:
    alike = Limits(delay_ms=10)
    with (
        pool(workdir, workers, alike, alike, alike) as (relay, resolvers),
        ClosedLoop(relay.address, 20) as client,
    ):
        found = shares(watch(client, resolvers, 1.0, 4.0))
    assert found == pytest.approx([1 / 3] * 3, abs=0.03)
    assert client.count(REFUSED) == 0


@WORKERS
def test_pool_uneven_latency_fast_one_carries_the_load(workdir: Path, workers: int) -> None:
    limits = [Limits(delay_ms=delay_ms) for delay_ms in (10, 60, 250)]
    with (
        pool(workdir, workers, *limits) as (relay, resolvers),
        ClosedLoop(relay.address, 20) as client,
    ):
        found = shares(watch(client, resolvers, 1.0, 4.0))
    assert found[0] >= 0.95, found


@WORKERS
def test_pool_held_polls_set_no_resolver_aside(workdir: Path, workers: int) -> None:
    def hold_some(asked: Asked) -> Reply:
        after_s = HOLD_S if asked.number % HELD_EVERY == 0 else 0.0
        return Say(reply_wire(asked.wire), after_s=after_s)

    alike = Limits(delay_ms=10)
    states: list[str] = []
    with (
        ScriptedResolver(hold_some, address=free_address()) as server,
        pool(workdir, workers, alike, alike, alike, server=server.address) as (relay, resolvers),
        ClosedLoop(relay.address, 10) as client,
    ):
        client.wait(1.5)
        before = [read_sent(each) for each in resolvers]
        for step in range(8):
            client.wait(2.0 + step * 0.4)
            states += [each["state"] for each in pool_of(relay)["resolvers"]]
        counts = [sent_since(each, then) for each, then in zip(resolvers, before, strict=True)]
        held = server.count // HELD_EVERY
    assert held >= 10
    assert set(states) == {"in_use"}
    assert shares(counts) == pytest.approx([1 / 3] * 3, abs=0.03)


@pytest.mark.long
@WORKERS
def test_pool_limited_resolvers_add_up(workdir: Path, workers: int) -> None:
    limits = [
        Limits(rate_qps=20, delay_ms=10),
        Limits(rate_qps=30, delay_ms=10),
        Limits(rate_qps=40, over_rate="drop", delay_ms=10),
    ]
    with (
        pool(workdir, workers, *limits) as (relay, resolvers),
        ClosedLoop(relay.address, 300) as client,
    ):
        counts = watch(client, resolvers, *STEADY_S)
    refusing = counts[:2]
    refused = sum(each.refused for each in refusing) / sum(each.questions for each in refusing)
    assert client.rate(*STEADY_S) >= 86, counts
    assert client.refusals == 0
    assert refused <= 0.25, counts


@pytest.mark.long
def test_pool_ceiling_is_one_over_all_workers(workdir: Path) -> None:
    with (
        pool(workdir, 4, Limits(rate_qps=30, delay_ms=10)) as (relay, resolvers),
        OpenLoop(relay.address, 200) as client,
    ):
        [count] = watch(client, resolvers, *STEADY_S)
    assert count.questions / (STEADY_S[1] - STEADY_S[0]) <= 38, count
    assert client.rate(*STEADY_S) >= 28, count
    assert client.refusals == 0


@WORKERS
def test_pool_fast_refuser_is_never_seen(workdir: Path, workers: int) -> None:
    def refuse(asked: Asked) -> Reply:
        return Say(reply_wire(asked.wire, rcode=REFUSED), after_s=0.001)

    with (
        ScriptedResolver(refuse) as refuser,
        Echo(workdir=workdir) as server,
        Dnsdist([server.address], workdir=workdir, limits=Limits(delay_ms=80)) as good,
        Relay([refuser.address, good.address], workdir=workdir, workers=workers) as relay,
        ClosedLoop(relay.address, 20) as client,
    ):
        client.wait(4.0)
        codes = {each.rcode for each in client.heard}
        given_up = client.given_up
    assert codes == {0}
    assert given_up == 0
    assert client.rate(1, 4) >= 0.9 * 20 / 0.080
