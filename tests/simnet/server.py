"""The far side: the tunnel's server, which answers every question that a resolver brings.

What it has to send comes from one of three sources: a share of answers that are full (`fill`), a
queue that fills at a rate (`set_data`), or, for clients that made a `Session`, a window of
numbered packets that are sent again until they are acknowledged. A question that finds nothing to
send is a poll. It is answered empty at once, or held for `hold_s` as the tunnels' servers do:

    hold="server"   one question is held for the whole server; the next one flushes it (dnstt)
    hold="session"  the same for every client (iodine)
    hold="each"     every question by itself (dns2tcp)
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final, Literal

from tests.simnet import wire as messages
from tests.simnet.wire import ANSWER_HEAD, LABEL_AT, NUMBER_AT

if TYPE_CHECKING:
    from tests.simnet.net import Net
    from tests.simnet.resolver import Packet, SimResolver

Hold = Literal["server", "session", "each"]
Outage = Literal["", "servfail", "silent"]

REMEMBERED_QUESTIONS: Final = 20_000
"""So many questions are remembered at least, to tell copies from first sendings."""

FIRST_RTO_S: Final = 0.2
MIN_RTO_S: Final = 0.1
MAX_RTO_S: Final = 60.0
"""Resend times of KCP in its normal mode (kcp-go: IKCP_RTO_DEF, IKCP_RTO_MIN, IKCP_RTO_MAX)."""


class Session:
    """What the server owes one client: packets 0, 1, 2, ... of which `window` may be open.

    `acks` is what questions carry, by their number: everything below the first figure has
    arrived, and each packet of the list.
    """

    def __init__(self, window: int, packets: int | None, resends_at_once: bool) -> None:
        self.acks: dict[bytes, tuple[int, list[int]]] = {}
        self.window = window
        self.resent = 0
        self._packets = packets
        self._resends_at_once = resends_at_once
        self._next = 0
        self._below = 0
        self._open: dict[int, tuple[float, int]] = {}
        self._due: list[tuple[float, int]] = []
        self._srtt_s = 0.0
        self._rttvar_s = 0.0

    @property
    def rto_s(self) -> float:
        """How long the server waits for an acknowledgement."""
        if self._resends_at_once:
            return 0.0
        if not self._srtt_s:
            return FIRST_RTO_S
        return min(max(self._srtt_s + 4.0 * self._rttvar_s, MIN_RTO_S), MAX_RTO_S)

    def take_acks(self, now: float, number: bytes) -> None:
        """A question came; what it acknowledges is done with."""
        carried = self.acks.pop(number, None)
        if carried is None:
            return
        below, packets = carried
        for packet in packets:
            entry = self._open.pop(packet, None)
            if entry is not None and entry[1] == 1:
                self._sample(now - entry[0])
        while self._below < below:
            self._open.pop(self._below, None)
            self._below += 1

    def take(self, now: float) -> int | None:
        """Return the packet that goes next: one whose time is over, then a new one."""
        due = self._due
        while due and (due[0][1] not in self._open or due[0][0] <= now):
            _, packet = heappop(due)
            entry = self._open.get(packet)
            if entry is not None:
                self.resent += 1
                self._sent(now, packet, entry[1] + 1)
                return packet
        if len(self._open) >= self.window or self._next == self._packets:
            return None
        packet = self._next
        self._next = packet + 1
        self._sent(now, packet, 1)
        return packet

    def due_at(self) -> float:
        """Return when a packet is to be sent again, infinity while all is acknowledged."""
        return self._due[0][0] if self._due else inf

    def _sent(self, now: float, packet: int, times: int) -> None:
        self._open[packet] = (now, times)
        heappush(self._due, (now + self.rto_s * times, packet))  # KCP adds one RTO every time

    def _sample(self, round_trip_s: float) -> None:
        if not self._srtt_s:
            self._srtt_s = round_trip_s
            self._rttvar_s = round_trip_s / 2
            return
        self._rttvar_s += (abs(round_trip_s - self._srtt_s) - self._rttvar_s) / 4
        self._srtt_s += (round_trip_s - self._srtt_s) / 8


class Server:
    """The tunnel's server. Its attributes may be changed while the simulation runs.

    payload_bytes  record data of a full answer; `empty_bytes` of an empty one
    fill           share of questions that are answered full
    fill_again     the same for a question that was asked before (a copy); None: as `fill`
    service_s      the server works this long on one question, one after the other
    outage         "servfail": every resolver says SERVFAIL; "silent": nobody says anything
    servfail_for   labels with these bytes get SERVFAIL through every resolver
    """

    def __init__(self, net: Net) -> None:
        self.fill = 1.0
        self.fill_again: float | None = None
        self.hold_s = 0.0
        self.hold: Hold = "server"
        self.service_s = 0.0
        self.outage: Outage = ""
        self.servfail_for = b""
        self.questions = 0
        self.held = 0
        self.sessions: dict[bytes, Session] = {}
        self.payload_bytes = 900
        self.empty_bytes = 1
        self._net = net
        self._queued = 0
        self._data_qps: float | None = None
        self._data_epoch = 0
        self._busy_until = 0.0
        self._asked: dict[bytes, None] = {}
        self._asked_before: dict[bytes, None] = {}
        self._holding: OrderedDict[bytes, tuple[float, SimResolver, Packet, Session | None]] = (
            OrderedDict()
        )
        self.set_sizes(self.payload_bytes, self.empty_bytes)

    def set_sizes(self, payload_bytes: int, empty_bytes: int) -> None:
        """Change the size of the record data of full and of empty answers."""
        self.payload_bytes = payload_bytes
        self.empty_bytes = empty_bytes
        self._padding = messages.padding_of(payload_bytes)
        self._full = messages.packet_record(0, self._padding)
        self._empty = messages.empty_record(empty_bytes)

    def set_data(self, data_qps: float | None) -> None:
        """Let packets come at this rate from now on, at random; None: `fill` decides again."""
        self._data_qps = data_qps
        self._data_epoch += 1
        self._queued = 0
        if data_qps:
            self._next_data(self._net.now, data_qps)

    def set(self, **attributes: object) -> None:
        """Change attributes, for `Net.at`."""
        for name, value in attributes.items():
            if not hasattr(self, name):
                raise AttributeError(f"a server has no {name!r}")
            setattr(self, name, value)

    def session(
        self,
        label: bytes,
        *,
        window: int,
        packets: int | None = None,
        resends_at_once: bool = False,
    ) -> Session:
        """Make the session of a client: it has `packets` to get, endlessly many by default."""
        made = self.sessions[label] = Session(window, packets, resends_at_once)
        return made

    # -- questions -----------------------------------------------------------------------------

    def ask(self, now: float, resolver: SimResolver, packet: Packet) -> None:
        """A resolver brings a question."""
        if self.outage or (self.servfail_for and packet[1].find(self.servfail_for, LABEL_AT) >= 0):
            if self.outage == "silent":
                resolver.lost[self._net.bin] += 1
            else:
                resolver.fail(now, packet)
            return
        if self.service_s:
            net = self._net
            self._busy_until = max(self._busy_until, now) + self.service_s
            heappush(net.heap, (self._busy_until, net.order(), self._serve, (resolver, packet)))
            return
        self._serve(now, (resolver, packet))

    def _serve(self, now: float, asked: tuple[SimResolver, Packet]) -> None:
        resolver, packet = asked
        self.questions += 1
        message = packet[1]
        number = message[NUMBER_AT]
        session = None
        if self.sessions:
            session = self.sessions.get(message[LABEL_AT : LABEL_AT + message[LABEL_AT - 1]])
            if session is not None:
                session.take_acks(now, number)
        if self.hold_s:
            self._flush_held(now, session, message)
        record = self._record(now, session, number)
        if record is not None:
            resolver.answer(now, packet, ANSWER_HEAD, record)
        elif self.hold_s:
            self._hold(now, resolver, packet, session)
        else:
            resolver.answer(now, packet, ANSWER_HEAD, self._empty)

    def _record(self, now: float, session: Session | None, number: bytes) -> bytes | None:
        """Return a full answer's record, or None when there is nothing to send."""
        if session is not None:
            packet = session.take(now)
            return None if packet is None else messages.packet_record(packet, self._padding)
        if self._data_qps is not None:
            if not self._queued:
                return None
            self._queued -= 1
            return self._full
        fill = self.fill
        if self.fill_again is not None and self._is_asked_again(number):
            fill = self.fill_again
        if fill >= 1.0 or self._net.random.random() < fill:
            return self._full
        return None

    def _is_asked_again(self, number: bytes) -> bool:
        if number in self._asked or number in self._asked_before:
            return True
        self._asked[number] = None
        if len(self._asked) > REMEMBERED_QUESTIONS:
            self._asked_before = self._asked
            self._asked = {}
        return False

    # -- held questions ------------------------------------------------------------------------

    def _place(self, session: Session | None, message: bytes) -> bytes:
        """Return where a question is held: two questions cannot be held in one place."""
        if self.hold == "server":
            return b""
        if self.hold == "each":
            return message[:2] + message[NUMBER_AT]
        return message[LABEL_AT : LABEL_AT + message[LABEL_AT - 1]]

    def _flush_held(self, now: float, session: Session | None, message: bytes) -> None:
        place = self._place(session, message)
        entry = self._holding.pop(place, None)
        if entry is not None:
            _, resolver, packet, held_session = entry
            record = self._held_record(now, held_session)
            resolver.answer(now, packet, ANSWER_HEAD, record or self._empty)

    def _hold(
        self, now: float, resolver: SimResolver, packet: Packet, session: Session | None
    ) -> None:
        place = self._place(session, packet[1])
        until = now + self.hold_s
        self.held += 1
        self._holding[place] = (until, resolver, packet, session)
        self._wake_held(now, until, place, session)

    def _wake_held(self, now: float, until: float, place: bytes, session: Session | None) -> None:
        at = until if session is None else min(until, max(session.due_at(), now + 0.001))
        net = self._net
        heappush(net.heap, (at, net.order(), self._look_at_held, (place, until)))

    def _look_at_held(self, now: float, held: tuple[bytes, float]) -> None:
        place, until = held
        entry = self._holding.get(place)
        if entry is None or entry[0] != until:
            return
        _, resolver, packet, session = entry
        record = self._held_record(now, session)
        if record is None and now < until:
            self._wake_held(now, until, place, session)
            return
        del self._holding[place]
        resolver.answer(now, packet, ANSWER_HEAD, record or self._empty)

    def _held_record(self, now: float, session: Session | None) -> bytes | None:
        """What a held question gets: by chance alone nothing, or no poll would ever be held."""
        if session is None and self._data_qps is None:
            return None
        return self._record(now, session, b"")

    def _next_data(self, now: float, data_qps: float) -> None:
        net = self._net
        at = now + net.random.expovariate(data_qps)
        heappush(net.heap, (at, net.order(), self._data_came, (data_qps, self._data_epoch)))

    def _data_came(self, now: float, source: tuple[float, int]) -> None:
        data_qps, epoch = source
        if epoch != self._data_epoch:
            return
        self._queued += 1
        self._next_data(now, data_qps)
        for place, entry in self._holding.items():
            if entry[3] is None:
                del self._holding[place]
                self._queued -= 1
                entry[1].answer(now, entry[2], ANSWER_HEAD, self._full)
                return
