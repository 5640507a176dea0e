"""A client with a fixed number of questions in flight, and real resolvers for it to ask through.

`ClosedLoop` is one UDP socket in a thread: whatever ends a question, an answer, an error or its
time, is followed by the next. What came is kept by the time at which it came, so that a test can
look at any part of the run: `rate(5, 20)`, `errors(0, 20)`. `OpenLoop` asks at a rate instead.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Self

from tests.load_client import numbered
from tests.rig import Address, Dnsdist, udp_client
from tests.rig.wire import NOERROR, REFUSED, rcode_of

TIMEOUT_S = 6.0
"""A question without an answer is given up after this: the relay has given it up before."""

ERROR_PAUSE_S = 0.01
"""A question that ended with an error is followed by the next after this."""

_LOOK_S = 0.005
_BURST = 64
_RECEIVE_BYTES = 65_535


@dataclass(frozen=True, slots=True)
class Heard:
    """One reply: when it came, in seconds from the start, its code, and when it was asked for."""

    at_s: float
    rcode: int
    asked_s: float


class _Client:
    """One socket in a thread of its own. Subclasses say in `_due` how many questions to send."""

    def __init__(self, server: Address, prefix: int = 0) -> None:
        self.heard: list[Heard] = []
        self.given_up_s: list[float] = []
        """When the questions were asked that nobody answered."""
        self._socket = udp_client(server)
        self._socket.setblocking(False)
        self._number = prefix
        self._open: dict[int, float] = {}
        self._order: deque[tuple[float, int]] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.started_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(5.0)
        self._socket.close()

    # -- used by the test ------------------------------------------------------------------

    def wait(self, at_s: float) -> None:
        """Return when the run is `at_s` old."""
        time.sleep(max(0.0, self.started_at + at_s - time.monotonic()))

    def rate(self, from_s: float, to_s: float) -> float:
        """Good answers per second in a part of the run."""
        return self.count(NOERROR, from_s, to_s) / (to_s - from_s)

    def count(self, rcode: int, from_s: float = 0.0, to_s: float = 1e9) -> int:
        """Replies with this code in a part of the run."""
        return sum(1 for each in self.heard if each.rcode == rcode and from_s <= each.at_s < to_s)

    @property
    def refusals(self) -> int:
        """REFUSED that the client got."""
        return self.count(REFUSED)

    @property
    def given_up(self) -> int:
        """Questions that nobody answered."""
        return len(self.given_up_s)

    @property
    def open(self) -> int:
        """Questions that wait for their answer now."""
        return len(self._open)

    def failed_s(self) -> list[float]:
        """When the questions were asked that were answered with an error or not at all."""
        return [each.asked_s for each in self.heard if each.rcode != NOERROR] + self.given_up_s

    # -- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            now = time.monotonic()
            while self._order and self._order[0][0] <= now - TIMEOUT_S:
                sent_at, message_id = self._order.popleft()
                if self._open.get(message_id) == sent_at:
                    del self._open[message_id]
                    self.given_up_s.append(sent_at - self.started_at)
            for _ in range(self._due(now)):
                self._ask(now)
            if select.select([self._socket], [], [], _LOOK_S)[0]:
                self._receive()

    def _due(self, now: float) -> int:
        raise NotImplementedError

    def _ask(self, now: float) -> None:
        self._number += 1
        message_id = self._number & 0xFFFF
        self._open[message_id] = now
        self._order.append((now, message_id))
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            self._socket.send(numbered(self._number, message_id))

    def _receive(self) -> None:
        for _ in range(_BURST):
            try:
                wire = self._socket.recv(_RECEIVE_BYTES)
            except (BlockingIOError, ConnectionRefusedError):
                return
            now = time.monotonic()
            sent_at = self._open.pop(int.from_bytes(wire[:2], "big"), None)
            if sent_at is None:
                continue
            asked_s = sent_at - self.started_at
            self.heard.append(Heard(now - self.started_at, rcode_of(wire), asked_s))
            self._ended(now, rcode_of(wire))

    def _ended(self, now: float, rcode: int) -> None:
        """A question ended with a reply."""


class ClosedLoop(_Client):
    """`window` questions in flight, all the time."""

    def __init__(self, server: Address, window: int, prefix: int = 0) -> None:
        super().__init__(server, prefix)
        self.window = window
        self._paused: deque[float] = deque()

    def _due(self, now: float) -> int:
        while self._paused and self._paused[0] <= now:
            self._paused.popleft()
        return self.window - len(self._open) - len(self._paused)

    def _ended(self, now: float, rcode: int) -> None:
        if rcode == NOERROR:
            self._ask(now)
        else:
            self._paused.append(now + ERROR_PAUSE_S)


class OpenLoop(_Client):
    """`rate_qps` questions a second, whatever comes back."""

    def __init__(self, server: Address, rate_qps: float, prefix: int = 0) -> None:
        super().__init__(server, prefix)
        self.rate_qps = rate_qps
        self._asked = 0

    def _due(self, now: float) -> int:
        due = int((now - self.started_at) * self.rate_qps) - self._asked
        self._asked += due
        return due


@dataclass(frozen=True, slots=True)
class Sent:
    """What reached a resolver in a part of the run, and what became of it."""

    questions: int
    refused: int
    answers: int


def read_sent(resolver: Dnsdist) -> Sent:
    """What a resolver has counted since its start."""
    counters = resolver.counters()
    return Sent(counters["queries"], counters["rule-refused"], counters["responses"])


def sent_since(resolver: Dnsdist, before: Sent) -> Sent:
    """What a resolver has counted since an earlier reading."""
    now = read_sent(resolver)
    return Sent(
        now.questions - before.questions,
        now.refused - before.refused,
        now.answers - before.answers,
    )
