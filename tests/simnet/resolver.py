"""A resolver of the simulated network: its path, its limit and its whims.

All of its attributes may be changed while the simulation runs, best through `Net.at`:
`net.at(10, resolver.set_limit, 30)`.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappush
from math import inf
from typing import TYPE_CHECKING, Final, Literal, Protocol

from tests.simnet.delays import Delay
from tests.simnet.wire import (
    HEADER_BYTES,
    LABEL_AT,
    REFUSED_HEAD,
    SERVFAIL_HEAD,
    TRUNCATED_HEAD,
    recased,
)
from workers.engine.fitness import NAME_OVERHEAD
from workers.engine.health import State
from workers.settings import ResolverEntry

if TYPE_CHECKING:
    from tests.simnet.net import Net


class Socket(Protocol):
    """Where questions come from and answers go."""

    is_stream: bool
    is_connected: bool

    def deliver(self, now: float, wire: bytes) -> None:
        """An answer arrives."""

    def unreachable(self, now: float, _: None) -> None:
        """An ICMP error arrives: the port is closed."""


Packet = tuple[Socket, bytes, int, float]
"""A question on its way: the relay's socket, the message, the end of its question, the way back."""

Over = Literal["refuse", "servfail", "drop"]
OVER_HEADS: Final = {"refuse": REFUSED_HEAD, "servfail": SERVFAIL_HEAD, "drop": b""}


class SimResolver:
    """One resolver. Times in seconds, rates in queries per second, shares between 0 and 1.

    rtt_s          round trip, fixed or drawn (`delays`); half there, half back
    loss           share of questions lost on the way there
    loss_after     share of answers lost on the way back: the server has given its data
    lose           numbers of single questions to lose, the first one is 1
    limit_qps      token bucket filled at this rate; None for no limit, 0 refuses everything
    burst          size of the bucket, as much as one second brings unless given (as dnsdist's)
    over           what happens above the limit: refuse, servfail or drop
    cooldown_s     silent for so long after more than `cooldown_over` questions above the limit
                   within one second
    silent_for     no answer to questions with these bytes in the client's label
    servfail_for   SERVFAIL for questions with these bytes in the client's label
    recase         changes the case of the question in its replies
    truncate       answers over UDP have TC set and no data
    longest_name   drops questions with names of more octets; 0 for none. It stands in the roster
    largest_reply  drops answers over UDP of more octets; 0 for none. It stands in the roster
    dead, icmp     does not answer; with `icmp` a closed port says so
    """

    def __init__(
        self,
        net: Net,
        slot: int,
        *,
        rtt_s: float | Delay = 0.001,
        loss: float = 0.0,
        loss_after: float = 0.0,
        lose: Collection[int] = (),
        limit_qps: float | None = None,
        burst: float | None = None,
        over: Over = "refuse",
        cooldown_s: float = 0.0,
        cooldown_over: int = 20,
        silent_for: bytes = b"",
        servfail_for: bytes = b"",
        recase: bool = False,
        truncate: bool = False,
        longest_name: int = 0,
        largest_reply: int = 0,
        dead: bool = False,
        icmp: bool = False,
        scheme: str = "udp",
        weight: int = 1,
    ) -> None:
        self.slot = slot
        self.scheme = scheme
        self.weight = weight
        self.rtt_s = 0.0
        self.draw: Delay | None = None
        self.loss = loss
        self.loss_after = loss_after
        self.lose = frozenset(lose)
        self.limit_qps: float | None = None
        self.over: Over = over
        self.cooldown_s = cooldown_s
        self.cooldown_over = cooldown_over
        self.silent_for = silent_for
        self.servfail_for = servfail_for
        self.recase = recase
        self.truncate = truncate
        self.longest_name = longest_name
        self.largest_reply = largest_reply
        self.is_dead = dead
        self.icmp = icmp
        self.arrived = 0
        self.state = State.FRESH
        self.ceilings: list[int] = []
        """RESOLVER_CEILING at the beginning of every bin of the run, in micro-q/s."""
        self.sent = net.series()
        self.answered = net.series()
        self.refused = net.series()
        self.dropped = net.series()
        self.lost = net.series()
        self._net = net
        self._burst = 0.0
        self._tokens = 0.0
        self._filled_at = net.now
        self._over_since = 0.0
        self._over_count = 0
        self._silent_until = 0.0
        self._capacities: list[tuple[float, float]] = []
        self.set_rtt(rtt_s)
        self.set_limit(limit_qps, burst)
        self._tokens = self._burst

    def __repr__(self) -> str:
        counts = " ".join(
            f"{name}={sum(getattr(self, name))}"
            for name in ("sent", "answered", "refused", "dropped", "lost")
        )
        return f"<SimResolver {self.slot} {self.state.name} {counts}>"

    def entry(self) -> ResolverEntry:
        """Return the resolver's line in the roster."""
        return ResolverEntry(
            self.slot,
            self.scheme,
            f"10.0.{self.slot >> 8}.{self.slot & 255}",
            53,
            f"{self.scheme}://resolver-{self.slot}",
            self.weight,
            longest_name=self.longest_name,
            largest_reply=self.largest_reply,
        )

    # -- what a scenario may change ------------------------------------------------------------

    def set_rtt(self, rtt_s: float | Delay) -> None:
        """Change the round trip."""
        if callable(rtt_s):
            self.draw = rtt_s
        else:
            self.draw = None
            self.rtt_s = rtt_s

    def set_limit(self, limit_qps: float | None, burst: float | None = None) -> None:
        """Change the limit; the bucket keeps what it holds, up to its new size."""
        self.limit_qps = limit_qps
        if burst is None:
            burst = max(limit_qps, 1.0) if limit_qps else 0.0
        self._burst = burst
        self._tokens = min(self._tokens, self._burst)
        self._note_capacity()

    def die(self, icmp: bool = False) -> None:
        """Answer nothing from now on; with `icmp` the port is closed."""
        self.is_dead = True
        self.icmp = icmp
        self._note_capacity()

    def revive(self) -> None:
        """Answer again."""
        self.is_dead = False
        self._note_capacity()

    def set_loss(self, loss: float) -> None:
        """Change the share of questions lost on the way there."""
        self.loss = loss

    # -- what was allowed ----------------------------------------------------------------------

    def allowed(self, from_s: float, to_s: float) -> float:
        """How many queries the limit lets through between two times, the bucket's size aside."""
        total = 0.0
        ends = [start_s for start_s, _ in self._capacities[1:]]
        for (start_s, qps), end_s in zip(self._capacities, [*ends, inf], strict=True):
            span_s = min(end_s, to_s) - max(start_s, from_s)
            if span_s > 0.0:
                total += span_s * qps
        return total

    def _note_capacity(self) -> None:
        qps = inf if self.limit_qps is None else self.limit_qps
        self._capacities.append((self._net.now_s, 0.0 if self.is_dead else qps))

    # -- packets -------------------------------------------------------------------------------

    def carry(self, now: float, socket: Socket, wire: bytes, end: int) -> None:
        """Take a question on the way. `end` is the end of the question in `wire`."""
        net = self._net
        self.sent[net.bin] += 1
        if net.trace is not None:
            net.trace.append((now, "send", self.slot, wire))
        back_s = (self.rtt_s if self.draw is None else self.draw(net.random)) * 0.5
        there_s = back_s
        if socket.is_stream and not socket.is_connected:
            socket.is_connected = True
            there_s += 2.0 * back_s  # the handshake
        heappush(net.heap, (now + there_s, net.order(), self.arrive, (socket, wire, end, back_s)))

    def arrive(self, now: float, packet: Packet) -> None:
        """A question arrives."""
        net = self._net
        self.arrived += 1
        if self.is_dead or not net.is_connected:
            self.lost[net.bin] += 1
            if self.icmp and net.is_connected:
                heappush(net.heap, (now + packet[3], net.order(), packet[0].unreachable, None))
            return
        if self.loss and net.random.random() < self.loss and not packet[0].is_stream:
            self.lost[net.bin] += 1
            return
        if self.lose and self.arrived in self.lose:
            self.lost[net.bin] += 1
            return
        if self.silent_for and packet[1].find(self.silent_for, LABEL_AT) >= 0:
            self.lost[net.bin] += 1
            return
        if self.longest_name and packet[2] - NAME_OVERHEAD > self.longest_name:
            self.lost[net.bin] += 1
            return
        limit_qps = self.limit_qps
        if limit_qps is not None:
            if now < self._silent_until:
                self.dropped[net.bin] += 1
                return
            tokens = self._tokens + (now - self._filled_at) * limit_qps
            self._filled_at = now
            if tokens > self._burst:
                tokens = self._burst
            if tokens < 1.0:
                self._tokens = tokens
                self._refuse(now, packet)
                return
            self._tokens = tokens - 1.0
        if self.servfail_for and packet[1].find(self.servfail_for, LABEL_AT) >= 0:
            self.fail(now, packet)
            return
        net.server.ask(now, self, packet)

    def answer(self, now: float, packet: Packet, head: bytes, tail: bytes) -> None:
        """Send the server's answer back: `head` are flags and counts, `tail` the records."""
        net = self._net
        socket, wire, end, back_s = packet
        if self.is_dead or (
            self.loss_after and not socket.is_stream and net.random.random() < self.loss_after
        ):
            self.lost[net.bin] += 1
            return
        if self.truncate and not socket.is_stream:
            head, tail = TRUNCATED_HEAD, b""
        question = wire[HEADER_BYTES:end]
        if self.recase:
            question = recased(question)
        reply = wire[:2] + head + question + tail
        if self.largest_reply and len(reply) > self.largest_reply and not socket.is_stream:
            self.lost[net.bin] += 1
            return
        self.answered[net.bin] += 1
        heappush(net.heap, (now + back_s, net.order(), socket.deliver, reply))

    def fail(self, now: float, packet: Packet, head: bytes = SERVFAIL_HEAD) -> None:
        """Send an error back."""
        net = self._net
        socket, wire, end, back_s = packet
        self.refused[net.bin] += 1
        reply = wire[:2] + head + wire[HEADER_BYTES:end]
        heappush(net.heap, (now + back_s, net.order(), socket.deliver, reply))

    def _refuse(self, now: float, packet: Packet) -> None:
        if self.cooldown_s:
            if now - self._over_since > 1.0:
                self._over_since = now
                self._over_count = 0
            self._over_count += 1
            if self._over_count > self.cooldown_over:
                self._silent_until = now + self.cooldown_s
                self._over_count = 0
        if self.over == "drop":
            self.dropped[self._net.bin] += 1
        else:
            self.fail(now, packet, OVER_HEADS[self.over])
