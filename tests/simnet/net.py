"""A simulated network in virtual time around the very engines and the board that workers run.

    with Net(seed=1, workers=4) as net:
        net.resolver(limit_qps=20)
        net.resolver(limit_qps=30)
        net.closed_loop(300)
        net.run(20)
        assert net.rate(5, 20) >= 47

Everything is drawn from one random generator, so that a run is a function of the scenario and
the seed. A failure inside the `with` names both. Virtual time starts at `START_AT`; scenarios and
measures count seconds from there (`now_s`).

One heap holds what is to come, as (time, order, function, argument); functions are called with
the time and the argument. What takes no time, a datagram on the loopback, waits in `soon`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from math import ceil, inf
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from relay.profiles import pool_settings
from shared import layout
from shared.board import Board
from tests.simnet.clients import Client, ClosedLoop, DnsttClient, IodineClient, OpenLoop
from tests.simnet.resolver import SimResolver
from tests.simnet.series import BIN_S, Series
from tests.simnet.server import Server
from tests.simnet.shell import Shell, Transport
from workers.engine.engine import TICK_S, Engine
from workers.engine.health import State

START_AT: Final = 1_000_000.0
"""The monotonic clock of a machine that has been up for some days."""

SPARE_SLOTS: Final = 16
"""Room on the board for resolvers that join while the simulation runs."""

Steering = Literal["random", "flow"]
Address = tuple[str, int]
Handler = Callable[..., None]
"""Called with the time and the argument that its event carries."""

AnyClient = TypeVar("AnyClient", bound=Client)


class Net:
    """The simulated network: resolvers, their server, the relay's workers and its clients.

    `settings` are fields of `PoolSettings` laid over the profile of `tunnel`. With `record` every
    sending and every reply is kept in `trace`.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        workers: int = 1,
        tunnel: str = "generic",
        steering: Steering = "random",
        record: bool = False,
        **settings: Any,
    ) -> None:
        self.seed = SystemRandom().getrandbits(32) if seed is None else seed
        self.workers = workers
        self.tunnel = tunnel
        self.random = Random(self.seed)
        self.settings = pool_settings("sim", tunnel, settings)
        self.now = START_AT
        self.bin = -1
        self.heap: list[tuple[float, int, Handler, Any]] = []
        self.soon: deque[tuple[Handler, Any]] = deque()
        self.order = count().__next__
        self.trace: list[tuple[Any, ...]] | None = [] if record else None
        self.is_connected = True
        self.fault = 0
        self.frozen_until = 0.0
        self.keeps_packets = False
        self.ports: dict[Address, tuple[Client, int]] = {}
        self.undelivered = 0
        self.resolvers: list[SimResolver] = []
        self.clients: list[Client] = []
        self.shells: list[Shell] = []
        self.moves: list[tuple[float, int, State]] = []
        """Every change of a resolver's state as (seconds, slot, state), to the bin."""
        self._steering = steering
        self._series: list[Series] = []
        self._board: Board | None = None
        self._close_board: Callable[[], object] = _nothing_to_close
        self.server = Server(self)
        self._begin_bin(self.now, 0)

    def __repr__(self) -> str:
        return f"<Net seed={self.seed} workers={self.workers} {self.tunnel} at {self.now_s:.3f} s>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"{self!r}; Net(seed={self.seed}) replays it\n{self.table()}")
        self.close()

    def close(self) -> None:
        """Give the board back. The measures stay."""
        self._close_board()

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return self.now - START_AT

    @property
    def board(self) -> Board:
        """The board that all engines share. It is made at the first run."""
        assert self._board is not None, "no board before the first run"
        return self._board

    # -- what there is -------------------------------------------------------------------------

    def resolver(self, **behaviour: Any) -> SimResolver:
        """Add a resolver; see `SimResolver` for what it may do. It may join while all runs."""
        made = SimResolver(self, len(self.resolvers), **behaviour)
        self.resolvers.append(made)
        if self._board is not None:
            self._hand_out_roster()
        return made

    def closed_loop(self, window: int, *, label: bytes = b"", **options: Any) -> ClosedLoop:
        """Add a client with `window` questions in flight; further options: `Client`."""
        return self._add(ClosedLoop(self, label or self._label(), window, **options))

    def open_loop(self, rate_qps: float, *, label: bytes = b"", **options: Any) -> OpenLoop:
        """Add a client that asks at a rate; options: `OpenLoop`, `Client`."""
        return self._add(OpenLoop(self, label or self._label(), rate_qps, **options))

    def dnstt(self, *, label: bytes = b"", **options: Any) -> DnsttClient:
        """Add a download through a dnstt-like tunnel; options: `DnsttClient`, `Client`."""
        return self._add(DnsttClient(self, label or self._label(), **options))

    def iodine(self, *, label: bytes = b"", **options: Any) -> IodineClient:
        """Add a download through an iodine-like tunnel; options: `IodineClient`, `Client`."""
        return self._add(IodineClient(self, label or self._label(), **options))

    def _label(self) -> bytes:
        return b"c%d" % len(self.clients)

    def _add(self, client: AnyClient) -> AnyClient:
        self.clients.append(client)
        heappush(self.heap, (self.now, self.order(), client.start, None))
        return client

    # -- what happens --------------------------------------------------------------------------

    def at(self, at_s: float, action: Callable[..., object], *arguments: Any) -> None:
        """Do `action(*arguments)` when `at_s` seconds have passed since the start."""
        heappush(self.heap, (START_AT + at_s, self.order(), _call, (action, arguments)))

    def cut(self) -> None:
        """Nothing goes through any more, in either direction, and no error tells."""
        self.is_connected = False

    def mend(self) -> None:
        """All goes through again."""
        self.is_connected = True

    def set_fault(self, number: int, resolvers: Iterable[SimResolver] = ()) -> None:
        """From now on sockets of this machine meet this errno, 0 for none.

        ENOBUFS and its kind spoil single packets; EMFILE closes the sockets and lets none be
        opened; anything else, such as ENETUNREACH, closes them at every packet.
        """
        slots = {resolver.slot for resolver in resolvers}
        if not slots:
            self.fault = number
        for transport in self._transports():
            if not slots or transport.node.slot in slots:
                transport.set_fault(number)
        for shell in self.shells:
            shell.flush()

    def suspend(self, duration_s: float, *, keeps_packets: bool = False) -> None:
        """Stop the machine of the relay and its clients: their clock jumps by `duration_s`.

        The network goes on. What arrives in the meantime is lost (a suspended machine) or, with
        `keeps_packets`, waits in the socket (a stopped process). Timers ring first afterwards, as
        in the event loop.
        """
        self.frozen_until = until = self.now + duration_s
        self.keeps_packets = keeps_packets
        self.heap[:] = [
            (until if at < until and _is_machine(function) else at, number, function, argument)
            for at, number, function, argument in self.heap
        ]
        heapify(self.heap)

    def run(self, seconds: float) -> None:
        """Let `seconds` pass."""
        if self._board is None:
            self._start()
        end = self.now + seconds
        heap = self.heap
        soon = self.soon
        while True:
            while soon:
                function, argument = soon.popleft()
                function(self.now, argument)
            if not heap or heap[0][0] > end:
                break
            at, _, function, argument = heappop(heap)
            self.now = at
            function(at, argument)
        self.now = end

    # -- the machine ---------------------------------------------------------------------------

    def open_port(self, client: Client) -> Address:
        """Give a client a socket of its own: a free port, as the kernel draws them."""
        random = self.random.random
        address = ("127.0.0.1", 32_768 + int(random() * 28_232))
        while address in self.ports:
            address = ("127.0.0.1", 32_768 + int(random() * 28_232))
        self.ports[address] = (client, int(random() * self.workers))
        return address

    def close_port(self, address: Address) -> None:
        """Close a client's socket; what still comes for it is lost."""
        del self.ports[address]

    def offer(self, address: Address, wire: bytes, stream: bool) -> None:
        """Send a message of a client to the relay: to one of its workers."""
        workers = self.workers
        if workers == 1:
            index = 0
        elif self._steering == "random" and not stream:
            index = int(self.random.random() * workers)
        else:
            index = self.ports[address][1]
        shell = self.shells[index]
        self.soon.append((shell.receive_stream if stream else shell.receive, (address, wire)))

    def series(self) -> Series:
        """Make a count that goes on with time."""
        made = Series((0,) * (self.bin + 1))
        self._series.append(made)
        return made

    def _start(self) -> None:
        board = Board.create(self.workers, 1, len(self.resolvers) + SPARE_SLOTS)
        self._board = board
        self._close_board = weakref.finalize(self, board.close)
        for worker in range(self.workers):
            board.words[board.at.worker(worker) + layout.WORKER_LIVING] = 1
            engine = Engine(board, worker, 0, self.settings, self.random.random)
            shell = Shell(self, engine)
            self.shells.append(shell)
            at = self.now + self.random.random() * TICK_S
            heappush(self.heap, (at, self.order(), shell.start, None))
        self._hand_out_roster()

    def _hand_out_roster(self) -> None:
        """Do what the supervisor does: name the keepers, then send every worker the roster."""
        board = self.board
        for resolver in self.resolvers:
            keeper = board.at.resolver(resolver.slot) + layout.RESOLVER_KEEPER
            board.words[keeper] = resolver.slot % self.workers
        board.words[layout.HEADER_KEEPERS_EPOCH] += 1
        for shell in self.shells:
            shell.set_roster([resolver.entry() for resolver in self.resolvers])

    def _transports(self) -> list[Transport]:
        return [transport for shell in self.shells for transport in shell.transports.values()]

    def _begin_bin(self, now: float, number: int) -> None:
        self.bin = number
        for series in self._series:
            series.append(0)
        at = START_AT + (number + 1) * BIN_S
        heappush(self.heap, (at, self.order(), self._begin_bin, number + 1))
        board = self._board
        if board is None:
            return
        words = board.words
        for resolver in self.resolvers:
            base = board.at.resolver(resolver.slot)
            state = State(words[base + layout.RESOLVER_STATE])
            resolver.ceilings.append(words[base + layout.RESOLVER_CEILING])
            if state is not resolver.state:
                resolver.state = state
                self.moves.append((round(now - START_AT, 1), resolver.slot, state))

    # -- what came of it -----------------------------------------------------------------------

    def rate(self, from_s: float, to_s: float) -> float:
        """Questions of all clients that got their answer, per second of the window."""
        return sum(client.answered.rate(from_s, to_s) for client in self.clients)

    def deliveries(self, from_s: float, to_s: float) -> float:
        """Answers that reached clients for each question answered: 2 where copies double all."""
        answered = sum(client.answered.total(from_s, to_s) for client in self.clients)
        delivered = sum(client.delivered.total(from_s, to_s) for client in self.clients)
        return delivered / answered if answered else 0.0

    def failures(self, from_s: float = 0.0, to_s: float | None = None) -> int:
        """Errors and silences that clients met."""
        return sum(
            client.errors.total(from_s, to_s) + client.silent.total(from_s, to_s)
            for client in self.clients
        )

    def sends_per_query(self, from_s: float = 0.0, to_s: float | None = None) -> float:
        """What resolvers were sent for each question of a client, probes and copies included."""
        asked = sum(client.asked.total(from_s, to_s) for client in self.clients)
        sent = sum(resolver.sent.total(from_s, to_s) for resolver in self.resolvers)
        return sent / asked if asked else inf

    def shares(self, from_s: float, to_s: float) -> list[float]:
        """The share of all sendings that each resolver had in a window."""
        sent = [resolver.sent.total(from_s, to_s) for resolver in self.resolvers]
        return [value / (sum(sent) or 1) for value in sent]

    def efficiency(self, from_s: float, to_s: float) -> float:
        """What clients got answered, of what the limits of all resolvers let through."""
        allowed = sum(resolver.allowed(from_s, to_s) for resolver in self.resolvers)
        return self.rate(from_s, to_s) * (to_s - from_s) / allowed

    def goodput(self, from_s: float, to_s: float) -> float:
        """Bytes per second that downloads got in order."""
        return sum(client.good_bytes.rate(from_s, to_s) for client in self.clients)

    def when_rate(self, least: float, from_s: float, over_s: float = 1.0) -> float:
        """Seconds from `from_s` until a window of `over_s` answers at least so many per second."""
        steps = round(from_s / BIN_S)
        last = self.bin - ceil(over_s / BIN_S)
        for step in range(steps, last + 1):
            if self.rate(step * BIN_S, step * BIN_S + over_s) >= least:
                return step * BIN_S - from_s
        return inf

    def states_of(self, resolver: SimResolver) -> list[tuple[float, State]]:
        """Every state of a resolver with the time at which it was entered."""
        return [(at_s, state) for at_s, slot, state in self.moves if slot == resolver.slot]

    def pool_count(self, counter: int) -> int:
        """A POOL_ word of the board over all workers, as of the last tick."""
        return self.board.pool_total(0, counter)

    def fingerprint(self) -> tuple[Any, ...]:
        """What two runs have in common only if they were the same."""
        return (
            self.now,
            self.random.getstate(),
            self.order(),
            tuple(tuple(series) for series in self._series),
            tuple(self.moves),
            tuple(self.board.words),
        )

    def table(self) -> str:
        """Resolvers and clients in a few lines, for people."""
        return "\n".join(f"  {item!r}" for item in [*self.resolvers, *self.clients, *self.shells])


def _call(_now: float, what: tuple[Callable[..., object], tuple[Any, ...]]) -> None:
    action, arguments = what
    action(*arguments)


def _nothing_to_close() -> None:
    """The board is not made yet."""


def _is_machine(function: Handler) -> bool:
    """Whether an event is a timer of the relay's machine; packets and the far side are not."""
    return isinstance(getattr(function, "__self__", None), (Shell, Client, Transport))
