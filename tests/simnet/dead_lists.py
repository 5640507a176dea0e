"""Lists of resolvers that somebody took from somewhere: most of them are dead."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simnet.net import Net
from tests.simnet.resolver import SimResolver
from tests.simnet.scenarios import Figure, in_use, line

WORKING = 10


def mostly_dead(net: Net, count: int) -> list[SimResolver]:
    """Add so many resolvers, all dead but ten spread over the list; return the ten."""
    every = count // WORKING
    made = [net.resolver(rtt_s=0.050, dead=slot % every != every // 2) for slot in range(count)]
    return [resolver for resolver in made if not resolver.is_dead]


def sent_to_dead(net: Net, from_s: float, to_s: float) -> float:
    return sum(each.sent.rate(from_s, to_s) for each in net.resolvers if each.is_dead)


def found_and_bounded(net: Net) -> Iterator[Figure]:
    working = mostly_dead(net, 1_000)
    client = net.open_loop(100)
    for at_s, least in ((10, 3), (25, WORKING)):
        net.run(at_s - net.now_s)
        yield Figure(f"of ten in use after {at_s} s", in_use(working), least=least)
    within_s = sum(1 for latency_s in client.latencies_s if latency_s <= 1.0)
    yield Figure("answered within 1 s", within_s / sum(client.asked), least=0.98)
    yield Figure("questions lost", net.failures(), most=0)
    yield Figure("slowest from 5 s on", max(client.latencies_s[600:]), most=0.2)
    yield Figure("sent to the dead per second", sent_to_dead(net, 5, 25), most=52)


@line("990 of 1,000 dead, 100 q/s: the ten in use after 25 s, 50 sendings a second to the dead")
def ten_of_a_thousand_are_found(net: Net) -> Iterator[Figure]:
    yield from found_and_bounded(net)


@line("The same for a tunnel that bears no copies", tunnel="dns2tcp")
def ten_of_a_thousand_are_found_without_copies(net: Net) -> Iterator[Figure]:
    yield from found_and_bounded(net)


@line("990 of 1,000 dead, 4 questions in flight (dns2tcp): answered within 6 s", tunnel="dns2tcp")
def first_of_a_thousand_is_found_with_little_traffic(net: Net) -> Iterator[Figure]:
    mostly_dead(net, 1_000)
    client = net.closed_loop(4)
    net.run(6)
    yield Figure("answered", sum(client.answered), least=1)


@line("10 of 20 dead: all ten in use within 6 s, each dead one asked once in a second at most")
def ten_of_twenty_are_found(net: Net) -> Iterator[Figure]:
    working = mostly_dead(net, 20)
    client = net.open_loop(100)
    net.run(6)
    yield Figure("of ten in use", in_use(working), least=WORKING)
    net.run(14)
    yield Figure("slowest from 3 s on", max(client.latencies_s[300:]), most=0.2)
    yield Figure("sent to the dead per second", sent_to_dead(net, 5, 20), most=10.5)


@line("The ten of 1,000 die for 10 s: answered within 3 s, all in use again within 15 s")
def ten_of_a_thousand_come_back(net: Net) -> Iterator[Figure]:
    working = mostly_dead(net, 1_000)
    client = net.open_loop(100)
    for resolver in working:
        net.at(25, resolver.die)
        net.at(35, resolver.revive)
    net.run(38)
    yield Figure("answered in 3 s", client.answered.total(35, 38), least=1)
    net.run(12)
    yield Figure("of ten in use", in_use(working), least=WORKING)
