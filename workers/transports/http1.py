"""HTTP/1.1 for a client that asks small questions, by the h11 library: bytes in, bytes out.

One request is under way at a time: pipelining is not safe with servers that offer nothing newer. So
it takes several connections to keep several questions open. What comes in is bounded: header fields
by h11, the body and the number of interim responses here.
"""

from __future__ import annotations

from contextlib import suppress

import h11

from workers.engine.pending import Attempt
from workers.transports.http_exchange import (
    ANSWERED,
    DNS_MESSAGE,
    MAX_GET_MESSAGE_BYTES,
    MAX_HEADER_BYTES,
    MAX_INTERIM,
    OVERSIZE,
    Exchange,
    HttpError,
    Target,
)


class Http1Session:
    """The client's side of one connection. See the module and `http_exchange.Session`."""

    __slots__ = ("_h11", "_interim", "_out", "_target", "closing", "ended", "exchange", "left")

    def __init__(self, target: Target) -> None:
        self._target = target
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
        self._out: list[bytes] = []
        self._interim = 0
        self.exchange: Exchange | None = None
        self.ended: list[Exchange] = []
        self.left: list[Attempt] = []
        self.closing = False

    def __repr__(self) -> str:
        return f"<Http1Session {self.exchange} closing={self.closing}>"

    @property
    def room(self) -> bool:
        """Whether a request can be made now."""
        return self.exchange is None and not self.closing

    @property
    def held(self) -> int:
        """How many requests are under way, given up or not."""
        return 0 if self.exchange is None else 1

    @property
    def has_output(self) -> bool:
        """Whether `take` has something."""
        return bool(self._out)

    def request(self, attempt: Attempt, message: bytes) -> None:
        """Ask. Only while there is `room`."""
        target = self._target
        headers = [(b"host", target.authority), (b"accept", DNS_MESSAGE)]
        if target.get and len(message) <= MAX_GET_MESSAGE_BYTES:
            request = h11.Request(method=b"GET", target=target.get_path(message), headers=headers)
            message = b""
        else:
            headers += [
                (b"content-type", DNS_MESSAGE),
                (b"content-length", b"%d" % len(message)),
            ]
            request = h11.Request(method=b"POST", target=target.path, headers=headers)
        self.exchange = Exchange(attempt)
        self._interim = 0
        out = self._h11.send(request) or b""
        if message:
            out += self._h11.send(h11.Data(data=message)) or b""
        self._h11.send(h11.EndOfMessage())
        self._out.append(out)

    def receive(self, data: bytes) -> None:
        """Take in bytes of the server. Raises HttpError; `ended` holds what ended before."""
        if self.exchange is None:
            # Some servers say 408 before they close a connection that was idle.
            self.closing = True
            return
        try:
            self._h11.receive_data(data)
            while not self.closing:
                event = self._h11.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    break
                self._take_in(event)
        except h11.RemoteProtocolError as error:
            # The library's words quote the server's bytes, which may be a question thrown back.
            raise HttpError("does not keep to HTTP/1.1") from error

    def receive_end(self) -> None:
        """The server closed in order, which ends a body that has no length (RFC 9112, 6.3)."""
        self.closing = True
        exchange = self.exchange
        if exchange is not None and exchange.status and self._h11.their_state is h11.SEND_BODY:
            with suppress(h11.RemoteProtocolError):  # a body that is too short for its length
                self._h11.receive_data(b"")
                if isinstance(self._h11.next_event(), h11.EndOfMessage):
                    self._end(exchange, ANSWERED)

    def take(self) -> bytes:
        """Return the bytes to be sent, once."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def drop_closed(self) -> None:
        """Nothing to do: the one request is answered, or its connection is of no more use."""

    def ping(self) -> bool:
        """There is no such thing in HTTP/1.1."""
        return False

    def _take_in(self, event: object) -> None:
        exchange = self.exchange
        if exchange is None:
            self.closing = True  # something that nobody asked for
        elif isinstance(event, h11.Response):
            exchange.status = event.status_code
            for name, value in event.headers:
                if name == b"content-type":
                    exchange.content_type = value
        elif isinstance(event, h11.Data):
            if not exchange.add(bytes(event.data)):
                self.closing = True
                self._end(exchange, OVERSIZE)
        elif isinstance(event, h11.EndOfMessage):
            if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
                self._h11.start_next_cycle()
            else:
                self.closing = True
            self._end(exchange, ANSWERED)
        elif isinstance(event, h11.InformationalResponse):
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise HttpError("too many interim responses")
        else:
            self.closing = True

    def _end(self, exchange: Exchange, outcome: int) -> None:
        self.exchange = None
        exchange.outcome = outcome
        self.ended.append(exchange)
