"""A real pool on a real loop, with scripted peers beside it on loopback sockets, in one process.

    @on_loop
    async def test_something() -> None:
        async with UdpPeer() as peer, Shell(peer.udp) as shell:
            asked = shell.ask()
            assert await asked.reply() == ...

The pool, its engine, board, transports and frontends are the product's own; only the resolvers and
the clients are played here. Nothing sleeps blindly: `until` waits for a condition, with an end.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import Any, ParamSpec, Self, cast

import uvloop

from shared import layout
from shared.board import Board
from tests.rig.wire import query_wire, reply_wire
from workers.engine.engine import Engine
from workers.engine.pending import Query
from workers.engine.resolver import Resolver
from workers.pool import Pool
from workers.settings import PoolSettings, ResolverEntry
from workers.transports.stream_resolver import StreamTransport
from workers.transports.tcp_frontend import TcpFrontend
from workers.transports.udp_frontend import udp_frontend

P = ParamSpec("P")

HOST = f"127.{random.SystemRandom().randrange(16, 250)}.{os.getpid() % 250 + 1}.1"
"""A loopback address of this run's own: no other test's port is ever in the way."""

LIMIT_S = 8.0
"""How long anything may take that is waited for."""


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on the loop that workers use."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), 30.0))

    return run


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until a condition holds."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + limit_s
    while not condition():
        if loop.time() > give_up_at:
            raise AssertionError("waited in vain")
        await asyncio.sleep(0.002)


async def settle(turns: int = 5) -> None:
    """Let everything that is ready happen: for asserting that something did not."""
    for _ in range(turns):
        await asyncio.sleep(0.01)


def closed_port(host: str = HOST, kind: socket.SocketKind = socket.SOCK_DGRAM) -> int:
    """Return a port on which nobody listens."""
    with socket.socket(family_of(host), kind) as sock:
        sock.bind((host, 0))
        return cast(int, sock.getsockname()[1])


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


# -- the pool -----------------------------------------------------------------------------------


Place = tuple[str, str, int] | ResolverEntry
"""A resolver of a roster, in short or with everything that can be said of it."""


class Asked:
    """A client of the pool that asks one question, without a frontend between."""

    def __init__(self, wire: bytes, is_stream: bool) -> None:
        self.wire = wire
        self.is_stream = is_stream
        self.replies: list[bytes] = []

    def reply_to(self, query: Query) -> None:
        self.replies.append(query.reply)

    async def reply(self) -> bytes:
        """Wait for the first reply."""
        await asyncio.sleep(0)  # a failure at once must not keep the pool from its work
        await until(lambda: self.replies)
        return self.replies[0]

    async def rcode(self) -> int:
        return (await self.reply())[3] & 0x0F


class _Client:
    def __init__(self, asked: Asked) -> None:
        self.is_stream = asked.is_stream
        self.reply = asked.reply_to


class Shell:
    """A pool with its engine and board. Resolvers are (scheme, host, port) or whole entries.

    `settings` are fields of PoolSettings; by default no query waits for room.
    """

    def __init__(self, *places: Place, **settings: Any) -> None:
        self.settings = PoolSettings(**{"name": "pool", "token_wait_s": 0.0, **settings})
        self.faults: list[tuple[int, str]] = []
        self._places = places
        self._sockets: list[socket.socket] = []

    async def __aenter__(self) -> Self:
        self.board = Board.create(1, 1, 16)
        words, at = self.board.words, self.board.at
        for slot in range(at.slots):
            words[at.resolver(slot) + layout.RESOLVER_KEEPER] = 0
        self.engine = Engine(self.board, 0, 0, self.settings, random.Random(1).random)
        self.pool = Pool(
            asyncio.get_running_loop(), self.engine, lambda *fault: self.faults.append(fault)
        )
        self.set_roster(*self._places)
        self.pool.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.pool.close()
        await settle(1)
        for sock in self._sockets:
            sock.close()
        self.board.close()

    def set_roster(self, *places: Place) -> None:
        self.pool.set_roster(
            [
                replace(place, slot=slot)
                if isinstance(place, ResolverEntry)
                else ResolverEntry(slot, *place, name=f"{place[0]}://{place[1]}:{place[2]}")
                for slot, place in enumerate(places)
            ]
        )

    def ask(self, wire: bytes | None = None, *, stream: bool = False) -> Asked:
        """Ask as a frontend would."""
        asked = Asked(wire or query_wire("Q.t.example"), stream)
        attempt = self.engine.query(monotonic(), _Client(asked), None, asked.wire)
        if attempt is not None:
            attempt.resolver.transport.send(attempt)
        self.pool.flush()
        return asked

    async def udp(self, host: str = HOST, family: int | None = None) -> tuple[Any, ...]:
        """Listen for UDP clients; return the address."""
        sock = socket.socket(family or family_of(host), socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.bind((host, 0))
        self._sockets.append(sock)
        self.pool.frontends.append(udp_frontend(self.pool, sock))
        return cast(tuple[Any, ...], sock.getsockname())

    async def tcp(self, host: str = HOST) -> tuple[str, int]:
        """Listen for TCP clients; return the address."""
        sock = socket.create_server((host, 0), family=family_of(host), backlog=64)
        sock.setblocking(False)
        self._sockets.append(sock)
        self.pool.frontends.append(await TcpFrontend.start(self.pool, sock))
        name = sock.getsockname()
        return name[0], name[1]

    def resolver(self, number: int = 0) -> Resolver:
        return self.engine.resolvers[number]

    def stream(self, number: int = 0) -> StreamTransport:
        """The transport of a resolver over streams."""
        made = self.resolver(number).transport
        assert isinstance(made, StreamTransport)
        return made

    def blames(self, number: int = 0) -> tuple[int, int]:
        """Losses and errors of a resolver."""
        resolver = self.resolver(number)
        return resolver.lost, resolver.errors

    def dropped(self, reason: str) -> int:
        return self.engine.counters.dropped[layout.DROP_REASONS.index(reason)]

    @property
    def reasons(self) -> list[str]:
        """What was reported to keep resolvers from being used, in order; "" is an end."""
        return [reason for _, reason in self.faults]


# -- peers --------------------------------------------------------------------------------------

Answer = Callable[[bytes], bytes | None]


def plainly(wire: bytes) -> bytes:
    """NOERROR and no record."""
    return reply_wire(wire)


def never(wire: bytes) -> None:
    """Silence."""


class UdpPeer(asyncio.DatagramProtocol):
    """A resolver, or a client where `answer` is `never`: keeps what it hears and from whom."""

    def __init__(self, answer: Answer = plainly, host: str = HOST, port: int = 0) -> None:
        self.answer = answer
        self.heard: list[tuple[bytes, Any]] = []
        self._bind = (host, port)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        sock = socket.socket(family_of(self._bind[0]), socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        sock.bind(self._bind)
        self._sock = sock
        self.transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=sock)
        self.address: Any = self.transport.get_extra_info("sockname")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.transport.close()
        await settle(1)

    @property
    def udp(self) -> tuple[str, str, int]:
        """The place of this resolver in a roster."""
        return "udp", self.address[0], self.address[1]

    @property
    def wires(self) -> list[bytes]:
        return [wire for wire, _ in self.heard]

    @property
    def sources(self) -> list[Any]:
        return [source for _, source in self.heard]

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.heard.append((data, addr))
        reply = self.answer(data)
        if reply is not None:
            self.transport.sendto(reply, addr)

    def say(self, wire: bytes, to: Any = None) -> None:
        """Send something to the last one heard, or to another."""
        self._sock.sendto(wire, to or self.sources[-1])  # asyncio swallows an empty datagram

    async def wait(self, count: int) -> list[bytes]:
        """Wait until so many messages were heard."""
        await until(lambda: len(self.heard) >= count)
        return self.wires


class Link(asyncio.Protocol):
    """One connection of a TcpPeer."""

    def __init__(self, peer: TcpPeer) -> None:
        self._peer = peer
        self._held = b""
        self.transport: asyncio.Transport
        self.ended = False
        self.heard: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._peer.links.append(self)
        if self._peer.greets is not None:
            self._peer.greets(self)

    def data_received(self, data: bytes) -> None:
        self._held += data
        while len(self._held) >= 2:
            end = 2 + int.from_bytes(self._held[:2], "big")
            if len(self._held) < end:
                return
            wire, self._held = self._held[2:end], self._held[end:]
            self.heard.append(wire)
            self._peer.heard.append(wire)
            self._peer.serve(self, wire)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True

    def say(self, wire: bytes) -> None:
        self.transport.write(len(wire).to_bytes(2, "big") + wire)

    def close(self) -> None:
        self.transport.close()


Serve = Callable[[Link, bytes], object]


def serve_plainly(link: Link, wire: bytes) -> None:
    link.say(reply_wire(wire))


def serve_nothing(link: Link, wire: bytes) -> None:
    """Silence."""


class TcpPeer:
    """A resolver over TCP, or DoT with `tls`; `serve` gets every message with its connection."""

    def __init__(
        self,
        serve: Serve = serve_plainly,
        host: str = HOST,
        port: int = 0,
        greets: Callable[[Link], object] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.serve = serve
        self.greets = greets
        self.links: list[Link] = []
        self.heard: list[bytes] = []
        self._bind = (host, port)
        self._tls = tls

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Link(self), *self._bind, reuse_address=True, backlog=64, ssl=self._tls
        )
        self.address = self._server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for link in self.links:
            link.transport.abort()
        await settle(1)

    @property
    def tcp(self) -> tuple[str, str, int]:
        return "tcp", self.address[0], self.address[1]

    async def wait(self, count: int) -> list[bytes]:
        await until(lambda: len(self.heard) >= count)
        return self.heard


class TcpClient:
    """A client of a TCP frontend."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()
        await settle(1)

    def send(self, *wires: bytes) -> None:
        self.writer.write(b"".join(len(wire).to_bytes(2, "big") + wire for wire in wires))

    async def receive(self) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            size = int.from_bytes(await self.reader.readexactly(2), "big")
            return await self.reader.readexactly(size)

    async def at_end(self) -> bool:
        """Wait for the end of the stream; False where something else comes."""
        async with asyncio.timeout(LIMIT_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def ask(self, wire: bytes) -> bytes:
        self.send(wire)
        return await self.receive()


async def all_of(*waiting: Awaitable[Any]) -> list[Any]:
    async with asyncio.timeout(LIMIT_S):
        return list(await asyncio.gather(*waiting))
