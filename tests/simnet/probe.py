"""Questions by hand: what simulated resolvers do with them, without an engine in between."""

from __future__ import annotations

from tests.simnet.net import START_AT, Net
from tests.simnet.resolver import SimResolver
from tests.simnet.wire import IDS, OPT_4096, QUERY_HEAD, query_tail


class Ear:
    """A socket that only listens: what came, and when, in seconds since the start."""

    is_stream = False
    is_connected = True

    def __init__(self) -> None:
        self.heard: list[tuple[float, bytes]] = []
        self.unreachable_at: list[float] = []

    def deliver(self, now: float, wire: bytes) -> None:
        self.heard.append((now - START_AT, wire))

    def unreachable(self, now: float, _: None) -> None:
        self.unreachable_at.append(now - START_AT)

    @property
    def times(self) -> list[float]:
        return [at_s for at_s, _ in self.heard]

    def rcodes(self) -> list[int]:
        return [wire[3] & 0x0F for _, wire in self.heard]


def question(number: int, label: bytes = b"q") -> bytes:
    """A client's question."""
    return IDS[number & 0xFFFF] + QUERY_HEAD + b"%08x" % number + query_tail(label)


def ask_at(
    net: Net, at_s: float, resolver: SimResolver, ear: Ear, number: int = 1, label: bytes = b"q"
) -> None:
    """Ask a resolver one question at a time of the simulation."""
    wire = question(number, label)
    net.at(at_s, lambda: resolver.carry(net.now, ear, wire, len(wire) - len(OPT_4096)))


def ask_steadily(net: Net, resolver: SimResolver, rate_qps: float, for_s: float) -> Ear:
    """Ask a resolver at a rate from the start on; return who hears the answers."""
    ear = Ear()
    for number in range(round(rate_qps * for_s)):
        ask_at(net, number / rate_qps, resolver, ear, number)
    return ear
