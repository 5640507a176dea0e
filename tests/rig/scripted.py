"""A resolver that does what a function says, over UDP and TCP, in a thread of the test's process.

    def answer(asked: Asked) -> Reply:
        return reply_of_size(asked.wire, 1000)

    with ScriptedResolver(answer) as resolver:
        ...
        resolver.wait_for_count(3)
        assert resolver.asked[0].wire == ...

The function returns bytes (sent as they are, to the asker), a `Say` (delayed, from another
socket, to another place, or closing the connection), a list of these, or None for silence. It
runs in the resolver's thread, so that what it keeps needs no lock as long as the test reads it
after `wait_for_count` or `stop`. An exception in it is kept and raised when the resolver is
stopped.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from tests.rig.net import Address, family_of, free_address
from tests.rig.process import RigError
from tests.rig.wire import message_id, question_of, reply_wire

_RECEIVE_BYTES = 65_535
_BUFFER_BYTES = 4 << 20
_BURST = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """One message that came in."""

    wire: bytes
    client: Any
    """Socket address of the asker."""
    transport: Literal["udp", "tcp"]
    at: float
    """time.monotonic() at its arrival."""
    number: int
    """Place among all messages of this resolver, from 0."""

    @property
    def id(self) -> int:
        return message_id(self.wire)

    @property
    def question(self) -> bytes:
        """Bytes of the question section."""
        return question_of(self.wire)


@dataclass(frozen=True, slots=True)
class Say:
    """One message to send, or a connection to close."""

    wire: bytes | None
    after_s: float = 0.0
    spoofed: bool = False
    """UDP: from another port of this host instead of the one asked."""
    to: Any = None
    """UDP: to this socket address instead of the asker's."""
    close: bool = False
    """TCP: close the connection after `wire`."""
    raw: bool = False
    """TCP: send `wire` without the length before it."""


Reply = bytes | Say | Sequence[bytes | Say] | None
Answer = Callable[[Asked], Reply]


def echo(asked: Asked) -> Reply:
    """NOERROR without records, at once."""
    return reply_wire(asked.wire)


@dataclass(slots=True, eq=False)
class _Connection:
    link: socket.socket
    client: Any
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    closing: bool = False


class ScriptedResolver:
    """See the module; `keep` bounds how many messages `asked` holds (the count goes on)."""

    def __init__(
        self,
        answer: Answer = echo,
        *,
        address: Address | None = None,
        host: str = "127.0.0.1",
        keep: int = 100_000,
    ) -> None:
        self.answer = answer
        self.address = address or free_address(host)
        self.keep = keep
        self.asked: list[Asked] = []
        self.count = 0
        self.accepted = 0
        """TCP connections accepted."""
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- used by the test ------------------------------------------------------------------

    def start(self) -> None:
        """Open the ports and answer. After a `stop` this opens the same ports again."""
        assert self._thread is None, "started already"
        family = family_of(self.address.host)
        self._udp = _udp_socket(family, self.address)
        self._elsewhere = _udp_socket(family, Address(self.address.host, 0))
        self._listener = socket.create_server(self.address, family=family, backlog=256)
        self._listener.setblocking(False)
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._udp, selectors.EVENT_READ, self._read_udp)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._connections: set[_Connection] = set()
        self._later: list[tuple[float, int, Say, Asked, _Connection | None]] = []
        self._order = itertools.count()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="scripted-resolver", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the ports (the next packet gets an ICMP refusal); raise what `answer` raised."""
        if self._thread is None:
            return
        self._stopping = True
        self._wake_out.send(b"x")
        self._thread.join(10.0)
        self._thread = None
        for connection in self._connections:
            connection.link.close()
        for each in (self._udp, self._elsewhere, self._listener, self._wake_in, self._wake_out):
            each.close()
        self._selector.close()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def close_connections(self) -> None:
        """Close every TCP connection from this side, as a server does with idle ones."""
        # Only marked here: the thread owns the sockets.
        for connection in list(self._connections):
            connection.closing = True
        self._wake_out.send(b"x")

    def wait_for_count(self, count: int, timeout_s: float = 10.0) -> list[Asked]:
        """Wait until `count` messages have come in all; return what was kept."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: self.count >= count, timeout_s)
        if not arrived:
            raise RigError(f"{self.address}: {self.count} of {count} questions in {timeout_s:g} s")
        return self.asked

    def forget(self) -> None:
        """Start the record and the counts afresh."""
        with self._changed:
            self.asked = []
            self.count = 0
            self.accepted = 0

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:
            self._failure = error
            with self._changed:
                self._changed.notify_all()

    def _turn(self) -> None:
        timeout_s = max(0.0, self._later[0][0] - time.monotonic()) if self._later else None
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._wake_in:
                self._wake_in.recv(4096)
            elif isinstance(key.data, _Connection):
                self._serve(key.data, events)
            else:
                key.data()
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            _, _, say, asked, connection = heapq.heappop(self._later)
            self._say(say, asked, connection)
        for connection in [each for each in self._connections if each.closing]:
            self._flush(connection)

    def _read_udp(self) -> None:
        for _ in range(_BURST):
            try:
                wire, client = self._udp.recvfrom(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error about an earlier answer
            self._take(wire, client, None)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            link, client = self._listener.accept()
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(link, client)
            self._connections.add(connection)
            self.accepted += 1
            self._selector.register(link, selectors.EVENT_READ, connection)

    def _serve(self, connection: _Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(connection)
        if not events & selectors.EVENT_READ or connection not in self._connections:
            return
        try:
            data = connection.link.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        connection.incoming += data
        while len(connection.incoming) >= 2:
            end = 2 + int.from_bytes(connection.incoming[:2], "big")
            if len(connection.incoming) < end:
                return
            wire = bytes(connection.incoming[2:end])
            del connection.incoming[:end]
            self._take(wire, connection.client, connection)

    def _take(self, wire: bytes, client: Any, connection: _Connection | None) -> None:
        transport: Literal["udp", "tcp"] = "tcp" if connection else "udp"
        asked = Asked(wire, client, transport, time.monotonic(), self.count)
        reply = self.answer(asked)
        with self._changed:
            if len(self.asked) < self.keep:
                self.asked.append(asked)
            self.count += 1
            self._changed.notify_all()
        if reply is None:
            return
        for item in (reply,) if isinstance(reply, (bytes, Say)) else reply:
            say = Say(item) if isinstance(item, bytes) else item
            if say.after_s > 0:
                entry = (asked.at + say.after_s, next(self._order), say, asked, connection)
                heapq.heappush(self._later, entry)
            else:
                self._say(say, asked, connection)

    def _say(self, say: Say, asked: Asked, connection: _Connection | None) -> None:
        if connection is None:
            if say.wire is not None:
                source = self._elsewhere if say.spoofed else self._udp
                with contextlib.suppress(OSError):  # the asker may be gone
                    source.sendto(say.wire, say.to or asked.client)
            return
        if connection not in self._connections:
            return
        if say.wire is not None:
            prefix = b"" if say.raw else len(say.wire).to_bytes(2, "big")
            connection.outgoing += prefix + say.wire
        connection.closing |= say.close
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        if connection.outgoing:
            try:
                sent = connection.link.send(connection.outgoing)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._drop(connection)
                return
            del connection.outgoing[:sent]
        if connection.outgoing:
            events = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(connection.link, events, connection)
        elif connection.closing:
            self._drop(connection)
        else:
            self._selector.modify(connection.link, selectors.EVENT_READ, connection)

    def _drop(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.link)
        connection.link.close()


def _udp_socket(family: socket.AddressFamily, address: Address) -> socket.socket:
    udp = socket.socket(family, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    udp.setblocking(False)
    udp.bind(address)
    return udp
