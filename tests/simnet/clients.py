"""Clients of the relay: closed and open loops, and the two tunnels whose pace depends on the data.

A client on the machine of the relay asks through `Net.offer` and hears through `receive`. It
knows its questions by their number; an answer counts once, further ones are extra deliveries.
"""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heappush
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal

from tests.simnet import wire as messages
from tests.simnet.wire import IDS, NUMBER_AT, QUERY_HEAD, REFUSED, SERVFAIL

if TYPE_CHECKING:
    from tests.simnet.net import Net

OnError = Literal["next", "ignore"]

SWEEP_S: Final = 0.01
"""Time-outs of clients are looked after this often at most."""


class Client:
    """Asks, counts, and leaves to its kinds when to ask.

    sockets     long-lived sockets, used in turn; 0: a new one for every question, closed at the
                first NOERROR or at the time-out
    timeout_s   how long it waits for an answer
    on_error    "next": an error ends the question, and after `pause_s` comes the next one;
                "ignore": it waits on (dnstt and its kind take errors for forged)
    zero_ids    every question has ID 0
    stream      asks over TCP
    """

    def __init__(
        self,
        net: Net,
        label: bytes,
        *,
        sockets: int = 1,
        timeout_s: float = 8.0,
        on_error: OnError = "next",
        pause_s: float = 0.01,
        zero_ids: bool = False,
        stream: bool = False,
    ) -> None:
        self.label = label
        self.asked = net.series()
        self.answered = net.series()
        self.delivered = net.series()
        self.full = net.series()
        self.errors = net.series()
        self.silent = net.series()
        self.good_bytes = net.series()
        self.servfails = 0
        self.refusals = 0
        self.repeated_errors = 0
        self.strays = 0
        self.latencies_s = array("f")
        self.is_stopped = False
        self._net = net
        self._tail = messages.query_tail(label)
        self._end = 12 + 9 + len(self._tail) - len(messages.OPT_4096)
        self._full_from = self._end + messages.RECORD_BYTES + net.server.empty_bytes + 4
        self._timeout_s = timeout_s
        self._ignores_errors = on_error == "ignore"
        self._pause_s = pause_s
        self._zero_ids = zero_ids
        self._stream = stream
        self._is_fresh = sockets == 0
        self._addresses = deque(net.open_port(self) for _ in range(sockets))
        self._number = 0
        self._open: dict[bytes, tuple[float, Any, bytes]] = {}
        self._errored: set[bytes] = set()
        self._timeouts: deque[tuple[float, bytes]] = deque()
        self._is_sweeping = False

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.label.decode()} asked={sum(self.asked)} "
            f"answered={sum(self.answered)} delivered={sum(self.delivered)} "
            f"errors={sum(self.errors)} silent={sum(self.silent)}>"
        )

    def stop(self) -> None:
        """Ask nothing from now on."""
        self.is_stopped = True

    def latency_s(self, share: float = 0.5) -> float:
        """The time within which this share of all answers came, from asking to the first."""
        if not self.latencies_s:
            return inf
        ordered = sorted(self.latencies_s)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    # -- asking --------------------------------------------------------------------------------

    def ask(self, now: float) -> bytes:
        """Ask the next question; return its number."""
        net = self._net
        self._number = number = self._number + 1
        key = b"%08x" % number
        if self._is_fresh:
            address = net.open_port(self)
        else:
            addresses = self._addresses
            address = addresses[0]
            addresses.rotate(-1)
        message_id = IDS[0 if self._zero_ids else number & 0xFFFF]
        self._open[key] = (now, address, message_id)
        self._timeouts.append((now + self._timeout_s, key))
        if not self._is_sweeping:
            self._is_sweeping = True
            heappush(net.heap, (now + self._timeout_s, net.order(), self._sweep, None))
        self.asked[net.bin] += 1
        net.offer(address, message_id + QUERY_HEAD + key + self._tail, self._stream)
        return key

    # -- hearing -------------------------------------------------------------------------------

    def receive(self, now: float, packet: tuple[Any, bytes]) -> None:
        """A datagram of the relay arrives."""
        address, message = packet
        net = self._net
        key = message[NUMBER_AT]
        rcode = message[3] & 0x0F
        entry = self._open.get(key)
        if rcode:
            self._receive_error(now, key, rcode, entry)
            return
        if entry is None:
            if not self._was_asked(key):
                self.strays += 1
                return
        else:
            if entry[1] != address or entry[2] != message[:2]:
                self.strays += 1
                return
            del self._open[key]
            self.answered[net.bin] += 1
            self.latencies_s.append(now - entry[0])
            if self._is_fresh:
                net.close_port(address)
        self.delivered[net.bin] += 1
        is_full = len(message) > self._full_from
        if is_full:
            self.full[net.bin] += 1
        self.got_answer(now, key, message, entry is not None, is_full)

    def _receive_error(
        self, now: float, key: bytes, rcode: int, entry: tuple[float, Any, bytes] | None
    ) -> None:
        if rcode == SERVFAIL:
            self.servfails += 1
        elif rcode == REFUSED:
            self.refusals += 1
        self.errors[self._net.bin] += 1
        if entry is None or key in self._errored:
            self.repeated_errors += 1
        elif self._ignores_errors:
            self._errored.add(key)
        else:
            del self._open[key]
            if self._is_fresh:
                self._net.close_port(entry[1])
            self.got_nothing(now, self._pause_s)

    def _was_asked(self, key: bytes) -> bool:
        try:
            return 0 < int(key, 16) <= self._number and key == key.lower()
        except ValueError:
            return False

    def _sweep(self, now: float, _: None) -> None:
        timeouts = self._timeouts
        while timeouts and timeouts[0][0] <= now:
            key = timeouts.popleft()[1]
            entry = self._open.pop(key, None)
            self._errored.discard(key)
            if entry is not None:
                self.silent[self._net.bin] += 1
                if self._is_fresh:
                    self._net.close_port(entry[1])
                self.got_nothing(now, 0.0)
        self._is_sweeping = bool(timeouts)
        if timeouts:
            net = self._net
            at = max(timeouts[0][0], now + SWEEP_S)
            heappush(net.heap, (at, net.order(), self._sweep, None))

    # -- what the kinds do ---------------------------------------------------------------------

    def start(self, now: float, _: None) -> None:
        """Begin."""

    def got_answer(
        self, now: float, key: bytes, message: bytes, is_first: bool, is_full: bool
    ) -> None:
        """An answer came, the first one to its question or a further one."""

    def got_nothing(self, now: float, pause_s: float) -> None:
        """A question ended with an error or in silence."""


class ClosedLoop(Client):
    """`window` questions in flight: whatever ends one is followed by the next.

    They begin spread over the first hundredth of a second, as those of a real client would.
    """

    def __init__(self, net: Net, label: bytes, window: int, **options: Any) -> None:
        super().__init__(net, label, **options)
        self.window = window

    def start(self, now: float, _: None) -> None:
        net = self._net
        for _each in range(self.window):
            at = now + net.random.random() * 0.01
            heappush(net.heap, (at, net.order(), self._next, None))

    def _next(self, now: float, _: None) -> None:
        if not self.is_stopped:
            self.ask(now)

    def got_answer(
        self, now: float, key: bytes, message: bytes, is_first: bool, is_full: bool
    ) -> None:
        if is_first and not self.is_stopped:
            self.ask(now)

    def got_nothing(self, now: float, pause_s: float) -> None:
        net = self._net
        heappush(net.heap, (now + pause_s, net.order(), self._next, None))


class OpenLoop(Client):
    """Asks at a rate, whatever comes back. With `poisson` at random times."""

    def __init__(
        self, net: Net, label: bytes, rate_qps: float, *, poisson: bool = False, **options: Any
    ) -> None:
        super().__init__(net, label, **options)
        self.rate_qps = rate_qps
        self.is_poisson = poisson

    def start(self, now: float, _: None) -> None:
        self._plan(now)

    def _plan(self, now: float) -> None:
        net = self._net
        wait_s = net.random.expovariate(self.rate_qps) if self.is_poisson else 1 / self.rate_qps
        heappush(net.heap, (now + wait_s, net.order(), self._next, None))

    def _next(self, now: float, _: None) -> None:
        if not self.is_stopped:
            self.ask(now)
            self._plan(now)


class Download(Client):
    """A client that fetches the packets of a `Session` in order. `good_bytes` is its goodput."""

    def __init__(
        self,
        net: Net,
        label: bytes,
        *,
        window: int,
        packets: int | None,
        resends_at_once: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(net, label, **options)
        self.session = net.server.session(
            label, window=window, packets=packets, resends_at_once=resends_at_once
        )
        self.packets = 0
        """How many packets came so far in order."""
        self.again = 0
        """Packets that came more than once."""
        self._ahead: set[int] = set()

    def take_packet(self, message: bytes) -> int:
        """Put a full answer's packet into order; return its number."""
        packet = messages.packet_of(message[self._end + messages.RECORD_BYTES :][:5])
        if packet < self.packets or packet in self._ahead:
            self.again += 1
            return packet
        self._ahead.add(packet)
        before = self.packets
        while self.packets in self._ahead:
            self._ahead.remove(self.packets)
            self.packets += 1
        net = self._net
        self.good_bytes[net.bin] += (self.packets - before) * net.server.payload_bytes
        return packet


class DnsttClient(Download):
    """A tunnel with a window of data, as dnstt's: KCP inside polls.

    Every full answer is followed by a question at once, but for the machine's own unrest; what is
    to be acknowledged waits for the next beat of `ack_s` (KCP's update interval) and goes in one
    further question. While nothing comes it polls after 0.5 s, then 1 s, 2 s, ... up to 10 s.
    """

    FIRST_POLL_S: Final = 0.5
    LAST_POLL_S: Final = 10.0
    UNREST_S: Final = 0.001
    """Questions leave up to so much later: without it, client and limit fall into step."""

    def __init__(
        self,
        net: Net,
        label: bytes,
        *,
        window: int = 64,
        packets: int | None = None,
        ack_s: float = 0.01,
        max_open: int = 512,
        **options: Any,
    ) -> None:
        options = {"on_error": "ignore", "timeout_s": 5.0, **options}
        super().__init__(net, label, window=window, packets=packets, **options)
        self._ack_s = ack_s
        self._max_open = max_open
        self._to_ack: list[int] = []
        self._poll_s = self.FIRST_POLL_S
        self._poll_at = 0.0

    def start(self, now: float, _: None) -> None:
        self._poll_at = now
        self._poll(now, now)

    def _poll(self, now: float, planned_at: float) -> None:
        if planned_at != self._poll_at or self.is_stopped:
            return
        self.ask(now)
        self._plan_poll(now)
        self._poll_s = min(self._poll_s * 2, self.LAST_POLL_S)

    def _plan_poll(self, now: float) -> None:
        net = self._net
        self._poll_at = at = now + self._poll_s
        heappush(net.heap, (at, net.order(), self._poll, at))

    def got_answer(
        self, now: float, key: bytes, message: bytes, is_first: bool, is_full: bool
    ) -> None:
        if not is_full or self.is_stopped:
            return
        packet = self.take_packet(message)
        net = self._net
        unrest_s = net.random.random() * self.UNREST_S
        if not self._to_ack:
            beat_at = (now // self._ack_s + 1.0) * self._ack_s + unrest_s
            heappush(net.heap, (beat_at, net.order(), self._acknowledge, None))
        self._to_ack.append(packet)
        self._poll_s = self.FIRST_POLL_S
        heappush(net.heap, (now + unrest_s, net.order(), self._follow, None))
        if self._poll_at - now < self.FIRST_POLL_S / 2:
            self._plan_poll(now)

    def _follow(self, now: float, _: None) -> None:
        if len(self._open) < self._max_open and not self.is_stopped:
            self.ask(now)

    def _acknowledge(self, now: float, _: None) -> None:
        packets = self._to_ack
        self._to_ack = []
        if not self.is_stopped:
            number = b"%08x" % (self._number + 1)
            self.session.acks[number] = (self.packets, packets)
            self.ask(now)


class IodineClient(Download):
    """A tunnel with one packet on the way, as iodine's in lazy mode.

    One question waits at the server. Its answer is followed by the next question, which
    acknowledges the packet that came; so is a second without an answer while data comes, and
    four while there is none. Answers to all but the last three questions are not accepted.
    """

    ACCEPTED: Final = 3
    BUSY_WAIT_S: Final = 1.0
    IDLE_WAIT_S: Final = 4.0

    def __init__(
        self, net: Net, label: bytes, *, packets: int | None = None, **options: Any
    ) -> None:
        options = {"on_error": "ignore", **options}
        super().__init__(net, label, window=1, packets=packets, resends_at_once=True, **options)
        self.too_old = 0
        self._wait_s = self.BUSY_WAIT_S

    def start(self, now: float, _: None) -> None:
        self._ask(now)

    def _ask(self, now: float) -> None:
        if self.is_stopped:
            return
        net = self._net
        self.session.acks[b"%08x" % (self._number + 1)] = (self.packets, [])
        self.ask(now)
        heappush(net.heap, (now + self._wait_s, net.order(), self._look, self._number))

    def _look(self, now: float, number: int) -> None:
        if number == self._number:
            self._ask(now)

    def got_answer(
        self, now: float, key: bytes, message: bytes, is_first: bool, is_full: bool
    ) -> None:
        number = int(key, 16)
        if number <= self._number - self.ACCEPTED:
            self.too_old += 1
            return
        self._wait_s = self.BUSY_WAIT_S if is_full else self.IDLE_WAIT_S
        if is_full:
            self.take_packet(message)
        if is_first and number == self._number:
            self._ask(now)
