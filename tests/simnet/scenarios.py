"""What must hold of the pool, line by line, on the simulated network.

A scenario builds its network, runs it, and yields figures with the bounds that its line sets:

    for figure in SCENARIOS["three_limits_add_up"].play(seed=1, workers=4):
        assert figure.holds, figure

`python -m tests.simnet` plays them from a shell.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final

from shared import layout
from tests.simnet.delays import lognormal
from tests.simnet.net import Net
from tests.simnet.resolver import SimResolver
from workers.engine.health import State


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value and the bounds within which it must lie."""

    what: str
    value: float
    least: float = -inf
    most: float = inf

    @property
    def holds(self) -> bool:
        return self.least <= self.value <= self.most

    def __str__(self) -> str:
        bounds = []
        if self.least > -inf:
            bounds.append(f">= {self.least:g}")
        if self.most < inf:
            bounds.append(f"<= {self.most:g}")
        mark = "ok" if self.holds else "NOT"
        return f"{mark:3} {self.what}: {self.value:.4g} ({', '.join(bounds)})"


Play = Callable[[Net], Iterator[Figure]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One line. `workers` are the numbers of workers with which it must hold."""

    name: str
    line: str
    body: Play
    workers: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def play(self, seed: int, workers: int) -> list[Figure]:
        """Run it and return its figures."""
        with Net(seed=seed, workers=workers, **self.settings) as net:
            return list(self.body(net))


SCENARIOS: Final[dict[str, Scenario]] = {}


def line(
    text: str, *, workers: tuple[int, ...] = (1, 2, 4), **settings: Any
) -> Callable[[Play], Play]:
    """Register a scenario under the name of its function; `settings` are those of `Net`."""

    def register(body: Play) -> Play:
        SCENARIOS[body.__name__] = Scenario(body.__name__, text, body, workers, settings)
        return body

    return register


def three(net: Net, **behaviour: Any) -> list[SimResolver]:
    """Add three resolvers of a kind, 10 ms away unless told otherwise."""
    return [net.resolver(**({"rtt_s": 0.010} | behaviour)) for _ in range(3)]


def entered(net: Net, state: State, from_s: float = 0.0) -> int:
    """How often resolvers entered a state."""
    return sum(
        1 for at_s, _, entered_state in net.moves if entered_state is state and at_s >= from_s
    )


def blamed(net: Net) -> int:
    """Losses and network errors that the workers counted against resolvers."""
    return sum(
        net.board.counter_total(resolver.slot, counter)
        for resolver in net.resolvers
        for counter in (layout.COUNTER_LOST, layout.COUNTER_ERRORS)
    )


def equal_shares(net: Net, from_s: float, to_s: float) -> Iterator[Figure]:
    for slot, share in enumerate(net.shares(from_s, to_s)):
        yield Figure(f"share of resolver {slot}", share, 0.30, 0.36)


# -- choosing ------------------------------------------------------------------------------------


@line("Three equal resolvers: shares 33 +- 3 %")
def three_equal_share_equally(net: Net) -> Iterator[Figure]:
    three(net)
    net.closed_loop(40)
    net.run(20)
    yield from equal_shares(net, 1, 20)
    yield Figure("failures", net.failures(), most=0)


@line("10/60/250 ms: the fast one carries >= 95 % after the first second")
def fast_one_carries_the_load(net: Net) -> Iterator[Figure]:
    for rtt_s in (0.010, 0.060, 0.250):
        net.resolver(rtt_s=rtt_s)
    net.closed_loop(40)
    net.run(20)
    yield Figure("share of the fast one", net.shares(1, 20)[0], least=0.95)
    yield Figure("answered per second of 4,000", net.rate(2, 20), least=3_800)


@line("A poll held for 1 s by the server never sets its resolver aside", tunnel="dnstt")
def held_poll_sets_nobody_aside(net: Net) -> Iterator[Figure]:
    resolvers = three(net)
    net.server.hold_s = 1.0
    net.server.hold = "each"
    net.closed_loop(6, on_error="ignore")
    for start_s in range(4, 60, 8):  # data for 4 s, nothing but held polls for the next 4 s
        net.at(start_s, partial(net.server.set, fill=0.0))
        net.at(start_s + 4, partial(net.server.set, fill=1.0))
    net.run(60)
    yield Figure("polls held", net.server.held, least=60)
    yield Figure(
        "times aside or down", entered(net, State.ASIDE) + entered(net, State.DOWN), most=0
    )
    yield Figure("in use at the end", in_use(resolvers), least=3)


@line("0/10/30 % loss: the clean one carries >= 95 %")
def clean_one_carries_the_load(net: Net) -> Iterator[Figure]:
    for loss in (0.0, 0.1, 0.3):
        net.resolver(rtt_s=0.010, loss=loss)
    net.closed_loop(40)
    net.run(20)
    yield Figure("share of the clean one", net.shares(5, 20)[0], least=0.95)
    yield Figure("answered per second of 4,000", net.rate(5, 20), least=3_800)


@line("With 20 samples a healthy resolver that lost one is not set aside")
def one_loss_in_twenty_sets_nobody_aside(net: Net) -> Iterator[Figure]:
    net.resolver(rtt_s=0.010, lose=(15,))
    net.resolver(rtt_s=0.010)
    client = net.open_loop(20)
    net.at(2.0, client.stop)
    net.run(10)
    yield Figure("losses", sum(net.resolvers[0].lost), 1, 1)
    yield Figure("times aside", entered(net, State.ASIDE), most=0)


# -- sizes ---------------------------------------------------------------------------------------

LONG: Final = b"a-name-that-is-much-too-long-for-one-of-the-resolvers"
"""A client's label that makes names of 68 octets; those of the others have 18 and less."""


@line("One of three drops replies above 512: it gets none of those, and none is lost or late")
def small_replies_are_asked_of_others(net: Net) -> Iterator[Figure]:
    for _ in range(2):
        net.resolver(rtt_s=0.010)
    small = net.resolver(rtt_s=0.010, largest_reply=512)
    net.server.set_sizes(900, 12)
    net.server.set(fill=0.5)
    client = net.closed_loop(20)
    net.run(10)
    yield Figure("answered per second of 2,000", net.rate(1, 10), least=1_900)
    yield Figure("failures", net.failures(), most=0)
    yield Figure("slowest answer, s", max(client.latencies_s), most=0.1)
    yield Figure("questions lost there", sum(small.lost), most=40)  # in its first moments


@line("One of three drops names above 60: long ones never fail there, short ones use it")
def short_names_are_asked_of_all(net: Net) -> Iterator[Figure]:
    for _ in range(2):
        net.resolver(rtt_s=0.010)
    short = net.resolver(rtt_s=0.010, longest_name=60)
    long = net.closed_loop(10, label=LONG)
    net.closed_loop(20)
    net.run(10)
    yield Figure("answered per second of 3,000", net.rate(1, 10), least=2_850)
    yield Figure("failures", net.failures(), most=0)
    yield Figure("slowest answer of the long, s", max(long.latencies_s), most=0.1)
    yield Figure(
        "times aside or down", entered(net, State.ASIDE) + entered(net, State.DOWN), most=0
    )
    yield Figure("share of the one", net.shares(1, 10)[2], 0.25, 0.36)
    # None but before a worker knows another that answers.
    yield Figure("questions lost there", sum(short.lost), most=20)
    yield Figure("... later", short.lost.total(1, 10), most=0)


@line("Limits 30, 30 and 30 q/s, the third for short names only: the sum, and no long one lost")
def short_names_with_ceilings_add_up(net: Net) -> Iterator[Figure]:
    for _ in range(2):
        net.resolver(rtt_s=0.010, limit_qps=30)
    short = net.resolver(rtt_s=0.010, limit_qps=30, longest_name=60)
    net.closed_loop(100, label=LONG)
    net.closed_loop(100)
    net.run(30)
    yield Figure("answered per second of 90", net.rate(5, 30), least=81)
    yield Figure("questions lost there", sum(short.lost), most=0)


# -- ceilings ------------------------------------------------------------------------------------


@line("Limits 20, 30, 40 q/s (third drops), 300 in flight: >= 95 % of the sum from second 5 on")
def three_limits_add_up(net: Net) -> Iterator[Figure]:
    refusing = [net.resolver(rtt_s=0.010, limit_qps=qps) for qps in (20, 30)]
    net.resolver(rtt_s=0.010, limit_qps=40, over="drop")
    client = net.closed_loop(300)
    net.run(30)
    yield Figure("answered per second of 90", net.rate(5, 30), least=86)
    yield Figure("refusals that the client saw", client.refusals, most=0)
    refused = sum(resolver.refused.total(5, 30) for resolver in refusing)
    sent = sum(resolver.sent.total(5, 30) for resolver in refusing)
    yield Figure("refused, of what the refusing ones were sent", refused / sent, most=0.25)
    yield Figure("errors for one query", client.repeated_errors, most=0)


@line("One dead of three (30, 40, dead): >= 66 of 70")
def one_dead_of_three_limited(net: Net) -> Iterator[Figure]:
    net.resolver(rtt_s=0.010, limit_qps=30)
    net.resolver(rtt_s=0.010, limit_qps=40)
    net.resolver(rtt_s=0.010, dead=True)
    net.closed_loop(300)
    net.run(30)
    yield Figure("answered per second of 70", net.rate(5, 30), least=66)


@line("Limits 10 and 1,500 together: >= 95 % of the sum and the small one is not starved")
def small_and_large_limit_together(net: Net) -> Iterator[Figure]:
    small = net.resolver(rtt_s=0.010, limit_qps=10)
    net.resolver(rtt_s=0.010, limit_qps=1_500)
    net.closed_loop(300)
    net.run(30)
    yield Figure("share of the sum", net.efficiency(5, 30), least=0.95)
    yield Figure("answered per second by the small one", small.answered.rate(5, 30), least=8)


@line("A limit that moves from 100 to 30 to 100 q/s: within 3 s below, within 8 s back above 90")
def moving_limit_is_followed(net: Net) -> Iterator[Figure]:
    moving = net.resolver(rtt_s=0.010, limit_qps=100)
    net.closed_loop(300)
    net.at(20, moving.set_limit, 30)
    net.at(40, moving.set_limit, 100)
    net.run(60)
    yield Figure("answered per second of 100", net.rate(5, 20), least=95)
    yield Figure("sent per second at 30, after 3 s", moving.sent.rate(23, 40), most=40)
    yield Figure("answered per second of 30", net.rate(23, 40), least=28.5)
    yield Figure("seconds until 90 per second again", net.when_rate(90, 40), most=8)


@line("A ceiling of 30 q/s, 200 offered: sent at most 38 q/s, answers at least 28", workers=(4,))
def ceiling_is_exact_over_workers(net: Net) -> Iterator[Figure]:
    limited = net.resolver(rtt_s=0.010, limit_qps=30)
    net.open_loop(200, poisson=True)
    net.run(30)
    yield Figure("sent per second", limited.sent.rate(5, 30), most=38)
    yield Figure("answered per second", limited.answered.rate(5, 30), least=28)


@line("A fast refuser (1 ms) beside a good one (80 ms): the client sees only good answers")
def fast_refuser_is_never_seen(net: Net) -> Iterator[Figure]:
    net.resolver(rtt_s=0.001, limit_qps=0)
    net.resolver(rtt_s=0.080)
    net.closed_loop(40)
    net.run(20)
    yield Figure("errors that the client saw", net.failures(), most=0)
    yield Figure("answered per second of 500", net.rate(2, 20), least=450)


@line("All SERVFAIL one name at 2 q/s: no ceiling collapses, one SERVFAIL per query, sends bounded")
def one_failing_name_lowers_no_ceiling(net: Net) -> Iterator[Figure]:
    resolvers = three(net)
    net.server.servfail_for = b"bad"
    good = net.open_loop(100, label=b"good")
    bad = net.open_loop(2, label=b"bad")
    net.run(30)
    ceilings = [value / 1e6 for item in resolvers for value in item.ceilings if value]
    yield Figure("lowest ceiling", min(ceilings, default=inf), least=100)
    yield Figure("good questions that failed", sum(good.errors) + sum(good.silent), most=0)
    yield Figure("errors for one query", bad.repeated_errors, most=0)
    yield Figure("bad questions without an error", sum(bad.asked) - bad.servfails, most=1)
    sends = sum(sum(resolver.refused) for resolver in resolvers) / sum(bad.asked)
    yield Figure("sends of a failing query", sends, most=3)


@line("A resolver that goes silent for 2 s when over-used costs a fifth of the sum at most")
def cooling_resolver_is_spared(net: Net) -> Iterator[Figure]:
    net.resolver(rtt_s=0.010, limit_qps=50, cooldown_s=2.0, cooldown_over=20)
    net.resolver(rtt_s=0.010, limit_qps=50)
    net.closed_loop(300)
    net.run(30)
    yield Figure("answered per second of 100", net.rate(5, 30), least=80)


# -- down and back -------------------------------------------------------------------------------


@line("A dead one is set down and comes back")
def dead_one_comes_back(net: Net) -> Iterator[Figure]:
    resolvers = three(net)
    net.closed_loop(40)
    net.at(5, resolvers[0].die)
    net.at(15, resolvers[0].revive)
    net.run(25)
    yield Figure("sent per second while dead", resolvers[0].sent.rate(9, 15), most=2)
    yield Figure("times down", entered(net, State.DOWN), 1, 1)
    yield from equal_shares(net, 18, 25)


@line("Everything dead for 10 minutes, then back: in use within 3 s, shares equal, probes only")
def all_dead_and_back(net: Net) -> Iterator[Figure]:
    resolvers = three(net)
    net.open_loop(50)
    for resolver in resolvers:
        net.at(10, resolver.die)
        net.at(610, resolver.revive)
    net.run(613)
    yield Figure("in use after 3 s", in_use(resolvers), least=3)
    net.run(20)
    sent = sum(resolver.sent.rate(20, 610) for resolver in resolvers)
    yield Figure("sent per second while dead, of 3 resolvers", sent, most=3.3)
    yield from equal_shares(net, 613, 633)


@line("Sole resolver dead with no traffic, revived: the next query is answered")
def sole_resolver_revived(net: Net) -> Iterator[Figure]:
    sole = net.resolver(rtt_s=0.010)
    before = net.open_loop(20)
    net.at(5, sole.die)
    net.at(10, before.stop)
    net.at(199.9, sole.revive)
    net.run(200)
    after = net.open_loop(1)
    net.run(1.5)
    yield Figure("answered", sum(after.answered), 1, 1)
    yield Figure("failed", sum(after.errors), most=0)


@line("A resolver silent for one name pattern only is never down")
def partly_silent_is_never_down(net: Net) -> Iterator[Figure]:
    net.resolver(rtt_s=0.010, silent_for=b"bad")
    net.resolver(rtt_s=0.010)
    net.open_loop(20, label=b"good", poisson=True)
    bad = net.open_loop(10, label=b"bad", poisson=True)
    net.run(60)
    yield Figure("times down", entered(net, State.DOWN), most=0)
    yield Figure("bad questions that failed", sum(bad.errors) + sum(bad.silent), most=0)


def suspended(net: Net, *, keeps_packets: bool) -> Iterator[Figure]:
    three(net)
    net.closed_loop(40)
    net.at(10, partial(net.suspend, 3_600, keeps_packets=keeps_packets))
    net.run(3_630)
    yield Figure("losses and errors counted", blamed(net), most=0)
    moves = entered(net, State.DOWN) + entered(net, State.ASIDE)
    yield Figure("times aside or down", moves, most=0)
    yield from equal_shares(net, 3_611, 3_630)


@line("A jump of the clock by an hour (suspend) blames nobody")
def suspend_blames_nobody(net: Net) -> Iterator[Figure]:
    yield from suspended(net, keeps_packets=False)


@line("A jump of the clock by an hour (stopped process) blames nobody")
def stopped_process_blames_nobody(net: Net) -> Iterator[Figure]:
    yield from suspended(net, keeps_packets=True)


def local_fault(net: Net, number: int) -> Iterator[Figure]:
    resolvers = three(net)
    net.closed_loop(40)
    net.at(5, net.set_fault, number)
    net.at(8, net.set_fault, 0)
    net.run(15)
    yield Figure("losses and errors counted", blamed(net), most=0)
    moves = entered(net, State.DOWN) + entered(net, State.ASIDE)
    yield Figure("times aside or down", moves, most=0)
    yield Figure("in use at the end", in_use(resolvers), least=3)
    yield from equal_shares(net, 11, 15)


@line("ENOBUFS blames nobody")
def no_buffers_blames_nobody(net: Net) -> Iterator[Figure]:
    yield from local_fault(net, errno.ENOBUFS)


@line("EMFILE blames nobody")
def no_descriptors_blames_nobody(net: Net) -> Iterator[Figure]:
    yield from local_fault(net, errno.EMFILE)


@line("No route blames nobody")
def no_route_blames_nobody(net: Net) -> Iterator[Figure]:
    yield from local_fault(net, errno.ENETUNREACH)


@line("A network outage of 10 s: probes only, and all in use again within 3 s")
def outage_of_the_network(net: Net) -> Iterator[Figure]:
    resolvers = three(net)
    net.closed_loop(40)
    net.at(10, net.cut)
    net.at(20, net.mend)
    net.run(23)
    yield Figure("in use after 3 s", in_use(resolvers), least=3)
    sent = sum(resolver.sent.rate(15, 20) for resolver in resolvers)
    yield Figure("sent per second in the outage, of 3 resolvers", sent, most=3.3)


def masterdns(net: Net, idle_s: float = 1.0) -> None:
    """A download through three resolvers that begins with empty answers, as every session does."""
    three(net)
    net.server.set_sizes(900, 12)
    net.closed_loop(40, sockets=4)
    net.server.set(fill=0.0 if idle_s else 1.0)
    net.at(idle_s, partial(net.server.set, fill=1.0))


# -- copies and hedges ---------------------------------------------------------------------------


@line(
    "A server that fills every answer: deliveries rise to `duplicate` per query", tunnel="masterdns"
)
def copies_that_pay_are_sent(net: Net) -> Iterator[Figure]:
    masterdns(net)
    net.run(20)
    yield Figure("deliveries per query of 3", net.deliveries(5, 20), least=2.8, most=3.01)


@line("The same where no answer was ever empty", tunnel="masterdns")
def copies_that_pay_from_the_first_answer(net: Net) -> Iterator[Figure]:
    masterdns(net, idle_s=0.0)
    net.run(20)
    yield Figure("deliveries per query of 3", net.deliveries(5, 20), least=2.8, most=3.01)


@line("Half of the copies empty: near none within 3 s, tried again every 2 s", tunnel="masterdns")
def copies_that_do_not_pay_stop(net: Net) -> Iterator[Figure]:
    masterdns(net)
    net.at(10, partial(net.server.set, fill_again=0.5))
    net.at(20, partial(net.server.set, fill_again=1.0))
    net.run(30)
    yield Figure("deliveries per query while all copies are full", net.deliveries(5, 10), least=2.8)
    yield Figure("deliveries per query from 3 s after", net.deliveries(13, 20), most=1.1)
    tried = sum(client.delivered.total(13, 20) for client in net.clients)
    tried -= sum(client.answered.total(13, 20) for client in net.clients)
    yield Figure("copies answered in those 7 s", tried, least=3)
    yield Figure("deliveries per query when they pay again", net.deliveries(25, 30), least=2.8)


@line("A limited resolver never gets a copy", tunnel="masterdns")
def limited_resolver_gets_no_copy(net: Net) -> Iterator[Figure]:
    net.resolver(rtt_s=0.010, limit_qps=30)
    net.resolver(rtt_s=0.010, limit_qps=40)
    net.server.set_sizes(900, 12)
    net.closed_loop(300, sockets=4)
    net.run(5)
    before = net.pool_count(layout.POOL_COPIES)
    net.run(25)
    yield Figure("copies after 5 s", net.pool_count(layout.POOL_COPIES) - before, most=0)
    yield Figure("answered per second of 70", net.rate(5, 30), least=66)


@line("A fresh-socket client never causes a copy", tunnel="dnstt")
def fresh_sockets_cause_no_copy(net: Net) -> Iterator[Figure]:
    three(net)
    net.closed_loop(40, sockets=0, timeout_s=0.5, on_error="ignore")
    net.run(10)
    yield Figure("copies", net.pool_count(layout.POOL_COPIES), most=0)
    yield Figure("answered per second of 4,000", net.rate(1, 10), least=3_800)


@line("Slow but honest (p50 40 ms, p99 900 ms): hedged to equals only, both answers delivered")
def slow_but_honest_is_hedged(net: Net) -> Iterator[Figure]:
    net.resolver(rtt_s=lognormal(0.040, 0.900))
    net.resolver(rtt_s=lognormal(0.040, 0.900))
    far = net.resolver(rtt_s=0.300)
    client = net.closed_loop(40)
    net.run(30)
    hedges = net.pool_count(layout.POOL_HEDGES)
    yield Figure("hedges", hedges, least=10)
    extra = sum(client.delivered) - sum(client.answered)
    yield Figure("second answers delivered, of hedges", extra / max(hedges, 1), least=0.9)
    yield Figure("sent per second to the far one", far.sent.rate(5, 30), most=1)
    yield Figure("failures", net.failures(), most=0)


def in_use(resolvers: list[SimResolver]) -> int:
    """How many resolvers were in use when the current bin began."""
    return sum(1 for resolver in resolvers if resolver.state is State.IN_USE)
