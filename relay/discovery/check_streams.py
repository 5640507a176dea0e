"""Questions of one check over TCP, DoT or DoH, on a connection of its own.

Owner: the check, which opens a `Conversation` and closes it; the Checker bounds how many there are.
The connections are made and spoken as the workers do it: dialling with `via` and `bind`, TLS, the
HTTP sessions and their words for people are theirs.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from relay.discovery.check_messages import is_reply
from relay.discovery.check_udp import LocalFault, Outcome
from shared.errors import RelayError
from workers.settings import ResolverEntry
from workers.transports.channel import PlainChannel
from workers.transports.dial import DIAL_TIMEOUT_S, Dialler
from workers.transports.doh import DOH_ALPN, flaw_of, target_of
from workers.transports.faults import FLOODS, DialFailed, in_words
from workers.transports.framing import Deframer, frame
from workers.transports.http1 import Http1Session
from workers.transports.http2 import Http2Session
from workers.transports.http_exchange import HttpError, Session
from workers.transports.poller import Poller

if TYPE_CHECKING:
    from workers.pool import Pool

MOST_DIALS: Final = 4
"""Connections of one check: some servers close theirs after every answer."""

DIAL_TIMES: Final = 3
LEAST_DIAL_S: Final = 1.5
"""A connection may take so many times as long as an answer, since TCP and TLS go so many times to
and fro; at least so long, since a first packet that was lost is sent again after a second; and at
most DIAL_TIMEOUT_S, as it may through a proxy, whose own way nobody knows."""

MAX_WAITING_BYTES: Final = 1 << 18
"""What one connection may bring between two answers that are waited for."""


class Broken(RelayError):
    """The resolver could not be asked on a connection. The message is for people.

    `heard` tells whether it said anything, and was not just silent or not there.
    """

    def __init__(self, reason: str, *, heard: bool = True) -> None:
        super().__init__(reason)
        self.heard = heard


class Ground:
    """What the workers' channels need of a pool: a loop, a poller, `flush`, turns."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.poller = Poller(self.loop, self.flush)
        self.handshakes = asyncio.Lock()

    def flush(self) -> None:
        """Nothing is kept back here."""

    def close(self) -> None:
        """Watch no connection any more."""
        self.poller.close()


class Conversation:
    """Questions to one resolver, one connection after another."""

    def __init__(self, ground: Ground, entry: ResolverEntry) -> None:
        self._ground = ground
        self._entry = entry
        alpn = DOH_ALPN if entry.scheme == "https" else ()
        self._dialler = Dialler(cast("Pool", ground), entry, alpn)
        self._link: _Link | None = None
        self._dialling = asyncio.Lock()
        self._dials = 0

    async def ask(self, questions: Sequence[bytes], timeout_s: float) -> Outcome:
        """Send the first question. Raises LocalFault, and Broken where there is no connection.

        Streams lose nothing, so there is no second question; only one that was on a connection as
        it ended is asked again on the next.
        """
        question = questions[0]
        while True:
            link = await self._connected(timeout_s)
            started_at = monotonic()
            waiting = link.ask(question)
            try:
                async with asyncio.timeout(timeout_s):
                    reply = await waiting
            except TimeoutError:
                return Outcome(asked=1)
            except Broken:
                if self._dials >= MOST_DIALS or not link.has_answered:
                    raise
                continue
            finally:
                link.forget(waiting)
            return Outcome(reply, 0, monotonic() - started_at, 1)

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _connected(self, timeout_s: float) -> _Link:
        most_s = max(LEAST_DIAL_S, DIAL_TIMES * timeout_s)
        if self._entry.via:
            most_s = DIAL_TIMEOUT_S
        async with self._dialling:
            if self._link is not None and not self._link.ended:
                return self._link
            self.close()
            self._dials += 1
            try:
                channel = await self._dialler.dial(min(DIAL_TIMEOUT_S, most_s))
            except DialFailed as error:
                if not error.blamed:
                    raise LocalFault(str(error)) from error
                # Whatever ended a handshake, but not a closed port: that says nothing.
                said = isinstance(error.__cause__, ssl.SSLError | ConnectionResetError)
                raise Broken(str(error), heard=said) from error
            if self._entry.scheme == "https":
                self._link = _HttpLink(channel, self._entry)
            else:
                self._link = _FramedLink(channel)
            return self._link


class _Link:
    """One connection. `open` are the questions on it by what its protocol knows them by."""

    def __init__(self, channel: PlainChannel) -> None:
        self.channel = channel
        self.ended = False
        self.has_answered = False
        self.why = ""
        self.open: dict[object, tuple[bytes, asyncio.Future[bytes]]] = {}
        self._unasked_bytes = 0
        self._connected_at = monotonic()
        self.idle_since = self._connected_at
        channel.start(self, self._lost)

    @property
    def silent_since(self) -> float:
        """Since when it may owe an answer; 0 while it owes none."""
        return self._connected_at if self.open else 0.0

    def at_end(self) -> None:
        """The server said that this was all."""

    def ask(self, question: bytes) -> asyncio.Future[bytes]:
        """Send a question; return its reply to come, which fails with Broken."""
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.ended:
            waiting.set_exception(Broken(self.why))
        else:
            self.send(question, waiting)
        return waiting

    def send(self, question: bytes, waiting: asyncio.Future[bytes]) -> None:
        raise NotImplementedError

    def forget(self, waiting: asyncio.Future[bytes]) -> None:
        """Wait for a reply no more."""
        for key in [key for key, (_, each) in self.open.items() if each is waiting]:
            del self.open[key]

    def close(self) -> None:
        """Close at once."""
        self._end("the connection was closed")

    def data_received(self, data: bytes) -> None:
        """Take in bytes of the server."""
        self._unasked_bytes += len(data)
        self.take_in(data)
        if self._unasked_bytes > MAX_WAITING_BYTES:
            self._end(FLOODS)

    def take_in(self, data: bytes) -> None:
        raise NotImplementedError

    def answered(self, key: object, reply: bytes) -> None:
        """A reply came to a question."""
        asked, waiting = self.open.get(key, (b"", None))
        if waiting is not None and not waiting.done() and is_reply(asked, reply):
            del self.open[key]
            self.has_answered = True
            self.idle_since = monotonic()
            self._unasked_bytes = 0
            waiting.set_result(reply)

    def _lost(self, _: object, error: OSError | None) -> None:
        self._end(in_words(error))

    def _end(self, why: str) -> None:
        if self.ended:
            return
        self.ended = True
        self.why = why
        self.channel.close()
        for _, waiting in list(self.open.values()):
            if not waiting.done():
                waiting.set_exception(Broken(why))
                waiting.exception()  # it may be that nobody waits any more
        self.open.clear()


class _FramedLink(_Link):
    def __init__(self, channel: PlainChannel) -> None:
        self._deframer = Deframer()
        super().__init__(channel)

    def send(self, question: bytes, waiting: asyncio.Future[bytes]) -> None:
        drawn = os.urandom(2)
        while drawn in self.open:
            drawn = os.urandom(2)
        self.open[drawn] = (question, waiting)
        self.channel.write(frame(drawn + question[2:]))

    def take_in(self, data: bytes) -> None:
        for message in self._deframer.feed(data):
            self.answered(message[:2], message)


class _HttpLink(_Link):
    def __init__(self, channel: PlainChannel, entry: ResolverEntry) -> None:
        target = target_of(entry)
        self._is_http2 = channel.alpn == "h2"
        self._session: Session = Http2Session(target) if self._is_http2 else Http1Session(target)
        self._kept: list[tuple[bytes, asyncio.Future[bytes]]] = []
        super().__init__(channel)

    def send(self, question: bytes, waiting: asyncio.Future[bytes]) -> None:
        self._kept.append((question, waiting))
        self._write()

    def forget(self, waiting: asyncio.Future[bytes]) -> None:
        self._kept = [each for each in self._kept if each[1] is not waiting]
        for key, (_, each) in self.open.items():
            if each is waiting:
                cast(Any, key).closed = True
        super().forget(waiting)
        if not self.ended and self._session.held > len(self.open):
            if self._is_http2:
                self._session.drop_closed()
                self._write()
            else:
                # HTTP/1.1 cannot give up one request.
                self._end("no answer")

    def take_in(self, data: bytes) -> None:
        session = self._session
        why = ""
        try:
            session.receive(data)
        except HttpError as error:
            why = str(error)
        self._serve(why)

    def at_end(self) -> None:
        """The server said that this was all: that ends some responses of HTTP/1.1."""
        self._session.receive_end()
        self._serve("")

    def _serve(self, why: str) -> None:
        session = self._session
        for exchange in session.ended:
            attempt = cast(Any, exchange.attempt)
            asked, waiting = self.open.get(attempt, (b"", None))
            flaw = flaw_of(exchange)
            if waiting is None or waiting.done():
                continue
            if flaw:
                del self.open[attempt]
                waiting.set_exception(Broken(flaw))
            elif not is_reply(asked, bytes(exchange.body)):
                del self.open[attempt]
                waiting.set_exception(Broken("answered something else than was asked"))
            else:
                self.answered(attempt, bytes(exchange.body))
        session.ended.clear()
        if why:
            self._end(why)
        elif session.closing and not self.open:
            self._end("closed the connection")
        else:
            self._write()

    def _end(self, why: str) -> None:
        for _, waiting in self._kept:
            if not waiting.done():
                waiting.set_exception(Broken(why))
                waiting.exception()
        self._kept.clear()
        super()._end(why)

    def _write(self) -> None:
        session = self._session
        while self._kept and session.room:
            question, waiting = self._kept.pop(0)
            attempt = _Attempt()
            self.open[attempt] = (question, waiting)
            session.request(cast(Any, attempt), question)
        data = session.take()
        if data:
            self.channel.write(data)


class _Attempt:
    """What a session knows of a question: whether it is still waited for."""

    __slots__ = ("closed",)

    def __init__(self) -> None:
        self.closed = False
