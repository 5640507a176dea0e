"""A worker process: attaches the board, builds the pools that the supervisor describes, runs them.

It is started by exec with descriptors handed over, and it ends when told to drain, or at once when
its supervisor is gone: the channel then reads end of file, and the kernel kills a worker that is
too stuck to notice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import random
import signal
import socket
import sys
from time import monotonic
from typing import Any, Final

import setproctitle
import uvloop

from shared import layout
from shared.board import Board
from shared.errors import RelayError
from workers import logs
from workers.channel import Channel
from workers.engine.engine import Engine
from workers.engine.resolver import NS
from workers.pool import Pool
from workers.settings import PoolSettings, ResolverEntry
from workers.transports.tcp_frontend import TcpFrontend
from workers.transports.udp_frontend import udp_frontend

log = logging.getLogger(__name__)

EXIT_DRAINED: Final = 0
EXIT_DIED: Final = 1
EXIT_BOOT_FAILED: Final = 3
"""The worker never came up: the supervisor does not start it for ever."""

HEARTBEAT_S: Final = 0.1
PR_SET_PDEATHSIG: Final = 1


class Worker:
    """All pools of one worker process, and its talk with the supervisor."""

    def __init__(self, board: Board, index: int, channel: Channel) -> None:
        self._board = board
        self._index = index
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._pools: dict[int, Pool] = {}
        self._draining: asyncio.Task[None] | None = None
        self._words = board.at.worker(index)

    async def run(self) -> int:
        """Serve until the supervisor says otherwise or is gone; return the exit status."""
        setup = await self._channel.receive()
        if setup is None:
            return EXIT_DIED
        await self._set_up(setup)
        self._beat()
        self._channel.send({"op": "ready"})
        async for message in self._channel:
            match message["op"]:
                case "roster":
                    self._set_roster(message)
                case "drain":
                    if self._draining is None:
                        self._draining = self._loop.create_task(self._drain(message["deadline_s"]))
                case other:
                    log.warning("unknown message from the supervisor: %s", other)
            if self._draining is not None and self._draining.done():
                break
        if self._draining is None:
            return EXIT_DIED  # nobody is left to report to, and nothing may outlive the supervisor
        await self._draining
        return EXIT_DRAINED

    async def _set_up(self, setup: dict[str, Any]) -> None:
        logs.setup(setup["log_level"], setup["log_format"], f"worker {self._index}")
        names = []
        for described in setup["pools"]:
            settings = PoolSettings.from_json(described["settings"])
            names.append(settings.name)
            engine = Engine(
                self._board, self._index, described["index"], settings, random.SystemRandom().random
            )
            pool = Pool(self._loop, engine, self._report_fault)
            self._pools[described["index"]] = pool
        setproctitle.setproctitle(f"relay: worker {self._index} [{' '.join(names)}]")
        # Rosters come before the listeners: a query that waits in a socket finds its resolvers.
        for _ in setup["pools"]:
            message = await self._channel.receive()
            if message is None or message["op"] != "roster":
                raise RelayError("the supervisor sent no roster")
            self._set_roster(message)
        for described in setup["pools"]:
            pool = self._pools[described["index"]]
            pool.start()
            for fd in described["udp_fds"]:
                pool.frontends.append(udp_frontend(pool, socket.socket(fileno=fd)))
            for fd in described["tcp_fds"]:
                pool.frontends.append(await TcpFrontend.start(pool, socket.socket(fileno=fd)))

    def _set_roster(self, message: dict[str, Any]) -> None:
        entries = [ResolverEntry.from_json(fields) for fields in message["resolvers"]]
        self._pools[message["pool"]].set_roster(entries)

    async def _drain(self, deadline_s: float) -> None:
        """Take no more queries, wait for the open ones, say that it is done."""
        for pool in self._pools.values():
            for frontend in pool.frontends:
                frontend.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                for pool in self._pools.values():
                    await pool.idle()
                for pool in self._pools.values():
                    for frontend in pool.frontends:
                        await frontend.emptied()
        for pool in self._pools.values():
            pool.close()
        self._channel.send({"op": "drained"})
        await self._channel.flush()
        self._channel.close()

    def _report_fault(self, slot: int, reason: str) -> None:
        self._channel.send({"op": "fault", "slot": slot, "reason": reason})

    def _beat(self) -> None:
        self._board.words[self._words + layout.WORKER_HEARTBEAT_AT] = int(monotonic() * NS)
        self._loop.call_later(HEARTBEAT_S, self._beat)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent thread ends (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


async def serve(board: Board, index: int, channel_fd: int) -> int:
    """Run a worker on the current loop; return its exit status."""
    sock = socket.socket(fileno=channel_fd)
    sock.setblocking(False)
    return await Worker(board, index, await Channel.open(sock)).run()


def main(arguments: list[str]) -> int:
    """Parse what the supervisor passes and run; return the exit status."""
    parser = argparse.ArgumentParser(prog="workers", description="A worker of `relay serve`.")
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--board-fd", type=int, required=True)
    parser.add_argument("--channel-fd", type=int, required=True)
    options = parser.parse_args(arguments)
    parent = os.getppid()
    die_with_parent()
    if os.getppid() != parent:
        return EXIT_DIED
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_IGN)  # the supervisor gets them too, and decides
    try:
        board = Board.attach(options.board_fd)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            # What lives now lives on: keep the collector from walking it again and again.
            gc.collect()
            gc.freeze()
            return runner.run(serve(board, options.index, options.channel_fd))
    except (RelayError, OSError) as error:
        print(f"worker {options.index}: {error}", file=sys.stderr)
        return EXIT_BOOT_FAILED
