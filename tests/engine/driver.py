"""Plays the clients, the resolvers, the network and the clock around one or several engines.

    driver = Driver("a", "b")                   # two resolvers, in use, 20 ms away
    asked = driver.ask()
    assert driver.sent_to("a")[0].answer()      # by hand ...
    driver.play("b", answers(0.030))            # ... or by a script
    driver.advance(1.0)
    assert asked.replies == [...]

Everything happens at literal times. `advance` goes from one event to the next (a delivery, a due
timer, a tick) as the shell around the engine would, so nothing is ever early or late by chance.
With several workers all engines share one board, and each ticks at its own phase.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shared import layout
from shared.board import Board
from tests.rig.wire import FLAG_QR, REFUSED, query_wire, reply_wire
from workers.engine.engine import TICK_S, Engine
from workers.engine.health import State
from workers.engine.pending import FIRST, Attempt, Query
from workers.engine.resolver import NS, Resolver
from workers.settings import PoolSettings, ResolverEntry

START = 1000.0
"""The clock's first reading: far enough from zero for every window to have a past."""


class Client:
    """A client's socket: keeps what it is told, with the time."""

    def __init__(self, driver: Driver, is_stream: bool) -> None:
        self.is_stream = is_stream
        self.told: list[tuple[float, bytes]] = []
        self._driver = driver

    def reply(self, query: Query) -> None:
        self.told.append((self._driver.now, query.reply))


@dataclass(slots=True)
class Ask:
    """One message of a client, and what came back for it."""

    wire: bytes
    client: Client
    at: float

    @property
    def replies(self) -> list[bytes]:
        return [wire for _, wire in self.client.told]

    @property
    def reply(self) -> bytes:
        (only,) = self.replies
        return only

    @property
    def reply_times(self) -> list[float]:
        """Seconds from the question to each reply."""
        return [round(at - self.at, 6) for at, _ in self.client.told]


@dataclass(slots=True)
class Sent:
    """One attempt as it left: `wire` is what the resolver sees."""

    driver: Driver
    worker: int
    at: float
    attempt: Attempt
    wire: bytes
    table: dict[bytes, Attempt]

    @property
    def name(self) -> str:
        return self.attempt.resolver.name

    @property
    def kind(self) -> int:
        return self.attempt.kind

    def say(self, wire: bytes) -> None:
        """Deliver a message on the socket by which this attempt left."""
        self.driver.deliver(self.worker, self.table, wire)

    def answer(self, records: Iterable[bytes] = (), **how: Any) -> bytes:
        """Answer properly; return the message as the resolver sent it."""
        wire = reply_wire(self.wire, tuple(records), **how)
        self.say(wire)
        return wire

    def refuse(self, rcode: int = REFUSED) -> None:
        self.answer(rcode=rcode)

    def break_off(self) -> None:
        """The network says that the resolver's port is closed."""
        engine = self.driver.engines[self.worker]
        engine.failed(self.driver.now, self.attempt)
        self.driver.flush(self.worker)

    def stay(self) -> None:
        """This machine could not send it at all."""
        engine = self.driver.engines[self.worker]
        engine.unsent(self.driver.now, self.attempt)
        self.driver.flush(self.worker)


Script = Callable[[Sent], None]


def answers(delay_s: float, rcode: int = 0) -> Script:
    """Answer everything after `delay_s`."""

    def script(sent: Sent) -> None:
        sent.driver.later(delay_s, lambda: sent.answer(rcode=rcode))

    return script


def refuses(delay_s: float = 0.010, rcode: int = REFUSED) -> Script:
    return answers(delay_s, rcode)


def is_closed(delay_s: float = 0.001) -> Script:
    """The port is closed: every attempt ends in a network error."""

    def script(sent: Sent) -> None:
        sent.driver.later(delay_s, sent.break_off)

    return script


def is_silent(sent: Sent) -> None:
    """Never answer."""


def loses(share: float, delay_s: float, seed: int = 7) -> Script:
    """Answer after `delay_s`, but for a random share."""
    dice = random.Random(seed)

    def script(sent: Sent) -> None:
        if dice.random() >= share:
            sent.driver.later(delay_s, sent.answer)

    return script


def in_turn(*scripts: Script) -> Script:
    """Follow one script after another, and the last one for ever."""
    left = list(scripts)

    def script(sent: Sent) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(sent)

    return script


class Driver:
    """See the module. `settings` are fields of PoolSettings; by default no query waits for room.

    Resolvers start in `state`, known to be `latency_s` away, as if another keeper had left them.
    Names that start with `tcp:` are stream resolvers. Resolver k is kept by worker k modulo
    `workers`, as the supervisor deals them out. `limits` are the longest name and the largest
    reply of resolvers that have such; 0 for none.
    """

    def __init__(
        self,
        *names: str,
        workers: int = 1,
        state: State = State.IN_USE,
        latency_s: float = 0.020,
        deviation_s: float = 0.005,
        spare_slots: int = 4,
        phase_s: float = 0.005,
        start: float = START,
        limits: Mapping[str, tuple[int, int]] | None = None,
        **settings: Any,
    ) -> None:
        self.now = start
        self.workers = workers
        self.settings = PoolSettings(**{"name": "pool", "token_wait_s": 0.0, **settings})
        self.board = Board.create(workers, 1, len(names) + spare_slots)
        self.limits = dict(limits or {})
        self._free_slots = iter(range(self.board.at.slots))
        self.entries = [self._new_entry(name) for name in names]
        for each in self.entries:
            if state is not State.FRESH:
                self.know(each.slot, state, latency_s, deviation_s)
        self.engines = [self._new_engine(worker) for worker in range(workers)]
        self.tables: list[dict[tuple[int, bool], dict[bytes, Attempt]]] = [
            {} for _ in range(workers)
        ]
        self.sent: list[Sent] = []
        self._scripts: dict[str, Script] = {}
        self._events: list[tuple[float, int, Callable[[], Any]]] = []
        self._order = itertools.count()
        self._ids = itertools.count(0x4000)
        self._questions = itertools.count()
        self._tick_at = [start + phase_s * worker for worker in range(workers)]
        for worker in range(workers):
            self._give_roster(worker)
        self.advance(TICK_S)

    # -- the board as the supervisor and an earlier keeper left it ------------------------------

    def keep(self, slot: int, worker: int) -> None:
        """Make `worker` the keeper of a slot."""
        words = self.board.words
        words[self.board.at.resolver(slot) + layout.RESOLVER_KEEPER] = worker
        words[layout.HEADER_KEEPERS_EPOCH] += 1

    def know(self, slot: int, state: State, latency_s: float, deviation_s: float) -> None:
        """Write what is known of a resolver before any engine runs."""
        words = self.board.words
        base = self.board.at.resolver(slot)
        words[base + layout.RESOLVER_STATE] = state
        words[base + layout.RESOLVER_LATENCY] = int(latency_s * NS)
        words[base + layout.RESOLVER_COST] = int(latency_s * NS)
        words[base + layout.RESOLVER_SRTT] = int(latency_s * NS)
        words[base + layout.RESOLVER_RTTVAR] = int(deviation_s * NS)

    def word(self, name: str, offset: int) -> int:
        """Return a RESOLVER_ word."""
        return self.board.words[self.board.at.resolver(self.slot(name)) + offset]

    def counted(self, name: str, counter: int) -> int:
        """Return a COUNTER_ word over all workers, as published at the last tick."""
        return self.board.counter_total(self.slot(name), counter)

    def dropped(self, reason: str) -> int:
        """Return how many messages all engines dropped for this reason."""
        position = layout.DROP_REASONS.index(reason)
        return sum(engine.counters.dropped[position] for engine in self.engines)

    @property
    def all_dropped(self) -> dict[str, int]:
        """Drops of all engines by reason, those that happened only."""
        counts = {reason: self.dropped(reason) for reason in layout.DROP_REASONS}
        return {reason: count for reason, count in counts.items() if count}

    def state(self, name: str) -> State:
        """Return the state that stands on the board."""
        return State(self.word(name, layout.RESOLVER_STATE))

    @property
    def states(self) -> dict[str, State]:
        return {each.name: self.state(each.name) for each in self.entries}

    def slot(self, name: str) -> int:
        return next(each.slot for each in self.entries if each.name == name)

    # -- rosters and workers --------------------------------------------------------------------

    def resolver(self, name: str, worker: int = 0) -> Resolver:
        """Return a resolver as a worker sees it."""
        return next(each for each in self.engines[worker].resolvers if each.name == name)

    def set_roster(self, *names: str) -> tuple[list[str], list[str]]:
        """Give all workers a new roster; return who joined and who left, by worker 0."""
        known = {each.name: each for each in self.entries}
        self.entries = [known.get(name) or self._new_entry(name) for name in names]
        changes = [self._give_roster(worker) for worker in range(self.workers)]
        joined, left = changes[0]
        return [each.name for each in joined], [each.name for each in left]

    def restart(self, worker: int) -> None:
        """Let a successor with empty hands take a worker's place. What was open there is gone."""
        self.tables[worker] = {}
        self.engines[worker] = self._new_engine(worker)
        self._give_roster(worker)

    def _new_engine(self, worker: int) -> Engine:
        return Engine(self.board, worker, 0, self.settings, random.Random(worker).random)

    def _give_roster(self, worker: int) -> tuple[list[Resolver], list[Resolver]]:
        return self.engines[worker].set_roster(self.now, self.entries)

    def _new_entry(self, name: str) -> ResolverEntry:
        longest_name, largest_reply = self.limits.get(name, (0, 0))
        new = replace(
            entry(next(self._free_slots), name),
            longest_name=longest_name,
            largest_reply=largest_reply,
        )
        self.keep(new.slot, new.slot % self.workers)
        return new

    # -- clients --------------------------------------------------------------------------------

    def ask(
        self,
        wire: bytes | None = None,
        *,
        worker: int = 0,
        stream: bool = False,
        client: Client | None = None,
    ) -> Ask:
        """A client sends a message, a proper question of its own unless `wire` is given."""
        number = next(self._questions)
        if wire is None:
            wire = query_wire(f"Q{number}.t.example", message_id=number & 0xFFFF)
        asked = Ask(wire, client or Client(self, stream), self.now)
        engine = self.engines[worker]
        attempt = engine.query(self.now, asked.client, None, wire)
        if attempt is not None:
            self._send(worker, attempt)
        self.flush(worker)
        return asked

    def traffic(self, rate_qps: float, seconds: float) -> list[Ask]:
        """Ask evenly, the workers in turn, and let the time pass."""
        asked: list[Ask] = []
        began = self.now
        for number in range(int(rate_qps * seconds)):
            worker = number % self.workers
            self.at(began + number / rate_qps, lambda w=worker: asked.append(self.ask(worker=w)))
        self.until(began + seconds)
        return asked

    # -- resolvers and the network --------------------------------------------------------------

    def play(self, name: str, script: Script) -> None:
        """Let a resolver follow a script from now on; without one it is played by hand."""
        self._scripts[name] = script

    def sent_to(self, name: str, kind: int | None = None) -> list[Sent]:
        """Return what was sent to a resolver, in order."""
        return [s for s in self.sent if s.name == name and kind in (None, s.kind)]

    def shares(self, kind: int = FIRST) -> Counter[str]:
        """Return how many sendings of one kind each resolver got."""
        return Counter(sent.name for sent in self.sent if sent.kind == kind)

    @property
    def last(self) -> Sent:
        return self.sent[-1]

    def deliver(self, worker: int, table: dict[bytes, Attempt], wire: bytes) -> None:
        query = self.engines[worker].answer(self.now, table, wire)
        if query is not None and query.client is not None:
            query.client.reply(query)
        self.flush(worker)

    def flush(self, worker: int) -> None:
        """Send what the engine wants sent, as the shell does."""
        outbox = self.engines[worker].outbox
        while outbox:
            item = outbox.popleft()
            if isinstance(item, Attempt):
                self._send(worker, item)
            elif item.client is not None:
                item.client.reply(item)

    def _send(self, worker: int, attempt: Attempt) -> None:
        key = (attempt.resolver.slot, attempt.over_stream)
        table = self.tables[worker].setdefault(key, {})
        attempt.id = (next(self._ids) & 0xFFFF).to_bytes(2, "big")
        attempt.table = table
        table[attempt.id] = attempt
        wire = attempt.id + attempt.query.wire[2:]
        sent = Sent(self, worker, self.now, attempt, wire, table)
        self.sent.append(sent)
        script = self._scripts.get(sent.name)
        if script is not None:
            script(sent)

    # -- time -----------------------------------------------------------------------------------

    def later(self, delay_s: float, action: Callable[[], Any]) -> None:
        self.at(self.now + delay_s, action)

    def at(self, time: float, action: Callable[[], Any]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def advance(self, seconds: float) -> None:
        """Let time pass, event by event."""
        self.until(self.now + seconds)

    def until(self, time: float) -> None:
        while True:
            next_at = min(self._tick_at)
            if self._events:
                next_at = min(next_at, self._events[0][0])
            next_at = min(next_at, *(engine.wake_at for engine in self.engines))
            if next_at > time:
                break
            self.now = max(self.now, next_at)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            for worker, engine in enumerate(self.engines):
                if engine.wake_at <= self.now:
                    engine.wake(self.now)
                if self._tick_at[worker] <= self.now:
                    engine.tick(self.now)
                    self._tick_at[worker] += TICK_S
                self.flush(worker)
        self.now = time


def entry(slot: int, name: str) -> ResolverEntry:
    """A roster entry for a resolver called `name`, `tcp:` or `weightN:` before it."""
    scheme = name.rpartition(":")[0]
    weight = int(scheme.removeprefix("weight")) if scheme.startswith("weight") else 1
    return ResolverEntry(
        slot, "tcp" if scheme == "tcp" else "udp", f"192.0.2.{slot}", 53, name, weight
    )


def header_only(sent: Sent, rcode: int) -> bytes:
    """An error of twelve bytes, as some servers send it: the question is left out."""
    return sent.wire[:2] + (FLAG_QR | rcode).to_bytes(2, "big") + bytes(8)
