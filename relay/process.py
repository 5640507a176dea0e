"""The supervisor process: `relay serve` and `relay run`.

Owner: the supervisor. This is the shell around the pure machine in `relay.supervisor`: it binds the
sockets, makes the board, starts and reaps workers, hears signals, and does what the machine says.
Signal handlers and callbacks only turn what happened into an event of the machine.

Invariant: everything that happens reaches the machine through `_happened`, which carries out its
actions in order and sets the one timer for its next tick.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson
import setproctitle
import uvloop

from relay import __version__
from relay.command import Command
from relay.config import Config
from relay.config_changes import restart_needed
from relay.control.control_socket import ControlSocket, open_control
from relay.control.status import ill_health, pool_counts, resolvers_status, worker_status
from relay.discovery.service import Discovery
from relay.endpoints import ListenAddress, ip_of
from relay.fleet import Fleet
from relay.listeners import Listeners
from relay.notify import Notifier
from relay.printable import counted
from relay.resolver_address import ResolverAddress
from relay.roster import Roster, slots_for
from relay.state_log import LOOK_S, StateLog
from relay.state_path import default_control_path
from relay.supervisor import (
    Action,
    Announce,
    Drain,
    Finish,
    HandOver,
    Kill,
    Phase,
    Report,
    Start,
    State,
    Steer,
    Stopping,
    Supervisor,
)
from shared.board import Board
from shared.errors import RelayError
from shared.own_question import OwnQuestion
from workers import logs

EXIT_FAILURE: Final = 1
STDOUT_FILENO: Final = 1

LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

log = logging.getLogger(__name__)

Reload = Callable[[], Config]
"""Reads the configuration again. Raises RelayError where it is wrong."""


class Relay:
    """A running relay. `run` ends when it was told to stop, or cannot go on."""

    def __init__(
        self,
        config: Config,
        *,
        on_ready: Callable[[Relay], None],
        reload: Reload | None = None,
    ) -> None:
        self.config = config
        self._on_ready = on_ready
        self._reload = reload
        self._machine = Supervisor(config.workers)
        self._listeners = Listeners(config.workers, config.steering)
        self._notifier = Notifier()
        self._started_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._queue: deque[Action] = deque()
        self._carrying_out = False
        self._announcing: asyncio.Task[None] | None = None
        self._board: Board
        self._roster: Roster
        self._fleet: Fleet
        self._own = OwnQuestion.new()
        self._discovery: Discovery
        self._control: ControlSocket
        self._loop: asyncio.AbstractEventLoop
        self._finished: asyncio.Future[int]

    # -- from outside ---------------------------------------------------------------------------

    async def run(self) -> int:
        """Run until the end and return the exit status. Raises RelayError where it cannot start."""
        self._loop = asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        pools = self.config.pools
        setproctitle.setproctitle(f"relay: supervisor [{' '.join(pool.name for pool in pools)}]")
        with contextlib.ExitStack() as stack:
            stack.callback(self._notifier.close)
            self._listeners.bind(pool.listen for pool in pools)
            stack.callback(self._listeners.close)
            self._warn_if_reachable()
            self._control = open_control(
                self.config.control,
                is_default=self.config.control.path == default_control_path(),
            )
            stack.callback(self._control.close)
            slots = slots_for(sum(len(pool.resolvers) for pool in pools))
            self._board = Board.create(self.config.workers, len(pools), slots)
            stack.callback(self._board.close)
            listens = [each.address for each in self._listeners.pools]
            self._discovery = Discovery(
                self.config, listens, self._own, self._look_up, self._send_roster
            )
            self._roster = Roster(self._board, listens, self._discovery.sizes)
            self._fleet = Fleet(
                self.config,
                self._board,
                self._listeners,
                self._roster,
                self._own,
                ready=self._ready,
                exited=self._exited,
            )
            for index, pool in enumerate(pools):
                self._roster.set_resolvers(index, pool.resolvers, time.monotonic())
                if not pool.resolvers:
                    log.error("pool %s has no resolver: it cannot answer", pool.name)
            return await self._run_workers()

    def drain(self) -> None:
        """Stop: answer what is open, then end. The second call ends at once."""
        now = time.monotonic()
        deadline_s = max(pool.settings.deadline_s for pool in self.config.pools)
        actions = self._machine.drain(now, deadline_s)
        if not actions:
            log.warning("told again to stop: no more waiting")
        self._happened(actions or self._machine.stop(now))

    def stop(self) -> None:
        """End at once."""
        self._happened(self._machine.stop(time.monotonic()))

    def fail(self, reason: str) -> None:
        """End at once with status 1."""
        self._happened(self._machine.fail(time.monotonic(), reason))

    def reload(self) -> None:
        """Read the configuration again and take over the resolvers of every pool.

        Whatever is wrong with it, or takes more than that, is reported and changes nothing.
        """
        if self._reload is None:
            log.warning("not reloaded: there is no configuration to read again")
            return
        self._notifier.reloading()
        try:
            joined, left = self._take_over(self._reload())
        except RelayError as error:
            log.error("not reloaded, nothing changes: %s", error)
        else:
            log.info("reloaded: %s joined, %d left", counted(joined, "resolver"), left)
        self._notifier.ready(self._summary())

    def listen_address(self, pool: int) -> ListenAddress:
        """Return where a pool really listens."""
        return self._listeners.pools[pool].address

    def ready_line(self) -> bytes:
        """Return what a program that started the relay waits for, as a line."""
        pools = [
            {"name": pool.name, "listen": str(self.listen_address(index))}
            for index, pool in enumerate(self.config.pools)
        ]
        line = {
            "event": "ready",
            "pid": os.getpid(),
            "pools": pools,
            "control": self._control.shown,
        }
        return orjson.dumps(line) + b"\n"

    def status(self) -> dict[str, Any]:
        """Return what `GET /status` shows."""
        pools = []
        for index, pool in enumerate(self.config.pools):
            pools.append(
                {
                    "name": pool.name,
                    "tunnel": pool.tunnel,
                    "listen": str(self.listen_address(index)),
                    **pool_counts(self._board, index),
                    "resolvers": resolvers_status(
                        self._board,
                        self._roster.pools[index],
                        self._fleet.faults,
                        self._discovery.faults(index),
                    ),
                    "discovery": self._discovery.status(index),
                }
            )
        workers = [
            worker_status(worker, self._fleet.pid(worker.index)) for worker in self._machine.workers
        ]
        return {
            "pid": os.getpid(),
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._started_at, 3),
            "workers": workers,
            "pools": pools,
        }

    def health(self) -> str:
        """Return why the relay should get no queries, an empty string where it may."""
        names = [pool.name for pool in self.config.pools]
        members = dict(zip(names, self._roster.pools, strict=True))
        return ill_health(self._board, self._machine.workers, members)

    # -- the workers ----------------------------------------------------------------------------

    async def _run_workers(self) -> int:
        background: list[asyncio.Task[None]] = []
        runner = None
        try:
            self._happened(self._machine.start(time.monotonic()))
            watching = self._roster.watch_names(self._send_roster, self._look_up)
            background.append(self._loop.create_task(watching))
            if self._notifier.watchdog_s:
                background.append(self._loop.create_task(self._notifier.feed_watchdog()))
            # Slow to import, and the workers are on their way meanwhile.
            self._discovery.start(self._board, self._roster)
            from relay.control.app import make_app, serve_app

            self._look_at_states(StateLog(self._board))
            runner = await serve_app(make_app(self.status, self.health), self._control.sock)
            return await self._finished
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._next_look is not None:
                self._next_look.cancel()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._discovery.stop()
            if runner is not None:
                await runner.cleanup()
            self._fleet.close()

    async def _look_up(self, pool: int, address: ResolverAddress, in_vain: int) -> list[str]:
        """Resolve the name that a resolver of a pool needs."""
        # Slow to import, and of no use where every resolver is written with its address.
        from relay.bootstrap import Bootstrap

        listens = [sockets.address for sockets in self._listeners.pools]
        return await Bootstrap(self.config.pools[pool].bootstrap, listens).look_up(address, in_vain)

    def _look_at_states(self, states: StateLog) -> None:
        """Log what became of the resolvers, see to their names, and look again in a second."""
        faulty = {slot for slot, said in self._fleet.faults.items() if said}
        self._roster.look_after(faulty, time.monotonic())
        names = (pool.name for pool in self.config.pools)
        for level, text in states.look(list(zip(names, self._roster.pools, strict=True))):
            log.log(level, "%s", text)
        self._next_look = self._loop.call_later(LOOK_S, self._look_at_states, states)

    async def _announce(self) -> None:
        """Say that the relay is ready, once its pools have somebody to ask."""
        await self._discovery.first_pass()
        if self._machine.phase is Phase.SERVING:
            self._notifier.ready(self._summary())
            self._on_ready(self)

    def _happened(self, actions: Iterable[Action]) -> None:
        """Do what the machine says, and what it says about that."""
        self._queue.extend(actions)
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self._queue:
                self._carry_out(self._queue.popleft())
        finally:
            self._carrying_out = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = self._machine.wake_at()
        if wake_at is not None:
            self._timer = self._loop.call_later(max(0.0, wake_at - time.monotonic()), self._tick)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Start(index):
                self._fleet.start(index)
            case Kill(index):
                self._fleet.kill(index)
            case Drain(index, deadline_s):
                self._fleet.drain(index, deadline_s)
            case Steer(workers):
                self._listeners.steer(workers)
            case HandOver(workers):
                self._roster.hand_over(workers)
            case Announce():
                self._announcing = self._loop.create_task(self._announce())
            case Stopping():
                log.info("stopping")
                self._notifier.stopping("stopping")
            case Finish(status):
                if not self._finished.done():
                    self._finished.set_result(status)
            case Report(level, text):
                log.log(LEVELS[level], "%s", text)
                if self._machine.phase is Phase.SERVING:
                    self._notifier.status(self._summary())

    def _tick(self) -> None:
        self._happened(self._machine.tick(time.monotonic(), self._fleet.beats()))

    def _ready(self, index: int) -> None:
        self._happened(self._machine.ready(time.monotonic(), index))

    def _exited(self, index: int, status: int | str) -> None:
        self._happened(self._machine.exited(time.monotonic(), index, status))

    def _send_roster(self, pool: int) -> None:
        self._fleet.send_roster(pool)

    # -- the rest -------------------------------------------------------------------------------

    def _take_over(self, config: Config) -> tuple[int, int]:
        """Let the pools have the resolvers of another configuration of the same pools.

        Return how many joined, and how many left.
        """
        if changed := restart_needed(self.config, config):
            raise RelayError(f"more changed than resolvers, which takes a restart: {changed}")
        before, after = _named(self.config), _named(config)
        self.config = config
        self._discovery.reconfigure(config)
        for index, pool in enumerate(config.pools):
            if self._roster.set_resolvers(index, pool.resolvers, time.monotonic()):
                self._send_roster(index)
        return len(after - before), len(before - after)

    def _warn_if_reachable(self) -> None:
        for pool, sockets in zip(self.config.pools, self._listeners.pools, strict=True):
            ip = ip_of(sockets.address.host)
            if ip is not None and not ip.is_loopback:
                log.warning(
                    "pool %s listens on %s, as configured: other machines may reach it",
                    pool.name,
                    sockets.address,
                )

    def _summary(self) -> str:
        workers = self._machine.workers
        ready = sum(worker.state is State.READY for worker in workers)
        return f"{ready} of {len(workers)} workers ready"


def serve(config: Config, reload: Reload | None = None) -> int:
    """Run the pools until stopped; return the exit status.

    Raises RelayError where the relay cannot start. `reload` is called on SIGHUP.
    """

    def on_ready(relay: Relay) -> None:
        log.info("serving: %s", ", ".join(map(str, _listens(relay))))
        # Whoever started the relay may have closed its standard output.
        with contextlib.suppress(OSError):
            if select.select([], [STDOUT_FILENO], [], 0)[1]:
                os.write(STDOUT_FILENO, relay.ready_line())

    async def main() -> int:
        relay = Relay(config, on_ready=on_ready, reload=reload)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, relay.drain)
        loop.add_signal_handler(signal.SIGINT, relay.drain)
        loop.add_signal_handler(signal.SIGHUP, relay.reload)
        return await relay.run()

    _prepare(config)
    return uvloop.run(main())


def run(config: Config, argv: list[str]) -> int:
    """Run the pools, and a command that uses the first; return the command's exit status.

    127 where there is no such command and 126 where it cannot be executed, as in a shell; 1 where
    the relay failed. Raises RelayError where the relay cannot start.
    """

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def main() -> int:
        command = Command(argv, limits)
        relay = Relay(config, on_ready=lambda _: command.start())
        return await command.attend(relay)

    _prepare(config)
    return uvloop.run(main())


def _named(config: Config) -> set[tuple[int, ResolverAddress]]:
    """Return the resolvers that a configuration names, each with its pool."""
    return {
        (index, address)
        for index, pool in enumerate(config.pools)
        for address in pool.resolvers
        if not address.is_auto
    }


def _listens(relay: Relay) -> list[ListenAddress]:
    return [relay.listen_address(index) for index in range(len(relay.config.pools))]


def _prepare(config: Config) -> None:
    for number in (0, 1, 2):
        # Where a standard stream was closed, a socket would take its number, and what it is told.
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)
    logs.setup(config.log_level, config.log_format, "supervisor")
    # Whoever started the relay may have had them blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
