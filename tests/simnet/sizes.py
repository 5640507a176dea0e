"""What must hold where some resolvers drop large replies, while replies are small or grow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.simnet.clients import Client
from tests.simnet.net import Net
from tests.simnet.resolver import SimResolver
from tests.simnet.scenarios import Figure, equal_shares, line


def passing_1232(net: Net) -> list[SimResolver]:
    """Two that drop replies above 1,232, and one that lets everything through."""
    limited = [net.resolver(rtt_s=0.010, largest_reply=1232) for _ in range(2)]
    net.resolver(rtt_s=0.010)
    return limited


@line("Two of three drop replies above 1,232, none is above 1,100: shares 33 +- 3 %")
def limit_that_no_reply_reaches_costs_nothing(net: Net) -> Iterator[Figure]:
    limited = passing_1232(net)
    net.server.set_sizes(1_030, 12)
    net.server.set(fill=0.5)
    net.closed_loop(40)
    net.run(20)
    yield from equal_shares(net, 1, 20)
    yield Figure("answered per second of 4,000", net.rate(1, 20), least=3_900)
    yield Figure("questions lost", sum(sum(resolver.lost) for resolver in limited), most=0)
    yield Figure("failures", net.failures(), most=0)


def growing_replies(net: Net, client: Client) -> Iterator[Figure]:
    """Replies grow from 300 to 2,500 octets after a minute; `net` is as `passing_1232` made it."""
    limited = net.resolvers[:2]
    net.at(60, partial(net.server.set_sizes, 2_430, 12))
    net.run(80)
    yield from equal_shares(net, 30, 60)
    lost = sum(sum(resolver.lost) for resolver in limited)
    yield Figure("questions lost", lost, most=15)
    # Trials of those that were set aside or down for it.
    late = sum(resolver.sent.rate(61, 80) for resolver in limited)
    yield Figure("sent per second to those that drop, after 1 s", late, most=1)
    yield Figure("answered, of the rate before", net.rate(62, 80) / net.rate(1, 60), least=0.97)
    yield Figure("failures", net.failures(), most=0)
    yield Figure("slowest answer, s", max(client.latencies_s), most=0.5)


@line("Replies grow beyond what two of three pass: these stand back within 1 s, few are late")
def growing_replies_raise_the_need(net: Net) -> Iterator[Figure]:
    passing_1232(net)
    net.server.set_sizes(230, 12)
    yield from growing_replies(net, net.open_loop(200))


@line(
    "The same with one question in flight, as of a client that tests its MTU",
    tunnel="dnstt",
    duplicate=1,
)
def growing_replies_of_a_slow_client(net: Net) -> Iterator[Figure]:
    passing_1232(net)
    net.server.set_sizes(230, 12)
    yield from growing_replies(net, net.open_loop(20, on_error="ignore"))
