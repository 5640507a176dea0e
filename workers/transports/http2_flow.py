"""How much may go each way on an HTTP/2 connection: its windows (RFC 9113, 5.2).

Owner: `http2.Http2Session`, which tells what comes and what is done with. A body that the server's
windows do not let go waits here.

All bodies of the server that are not complete fit together into the window of the connection, which
is opened again only for those that are. Each stream's own window is larger than the longest body,
so it never needs to be opened again.
"""

from __future__ import annotations

from collections import deque

from workers.transports.http2_frames import (
    CONNECTION_WINDOW,
    DATA,
    DEFAULT_WINDOW,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    MAX_FRAME_BYTES,
    MAX_WINDOW,
    Http2Error,
    frame,
    window_update,
)
from workers.transports.http_exchange import Exchange


class FlowControl:
    """The windows of one connection, in bytes. Frames to be sent are added to `out`."""

    __slots__ = ("_out", "_receive_window", "_stream_window", "_to_open", "_window", "blocked")

    def __init__(self, out: list[bytes]) -> None:
        self._out = out
        self._window = DEFAULT_WINDOW
        self._stream_window = DEFAULT_WINDOW
        self._receive_window = CONNECTION_WINDOW
        self._to_open = 0
        self.blocked: deque[Exchange] = deque()
        """Requests whose bodies the server does not let go yet."""

    # -- sending ----------------------------------------------------------------------------

    def send(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        """Send the header of a new request, and of its body what the windows let go."""
        size = len(body)
        if size > self._window or size > self._stream_window or size > MAX_FRAME_BYTES:
            self._out.append(head)
            exchange.unsent = body
            exchange.window = self._stream_window
            self.blocked.append(exchange)
            self.unblock()
            return
        self._window -= size
        self._out.append(head + frame(DATA, END_STREAM, exchange.stream, body))

    def unblock(self) -> None:
        """Send of the bodies that are waiting what the windows let go."""
        blocked = self.blocked
        for _ in range(len(blocked)):
            exchange = blocked.popleft()
            stream = exchange.stream
            while exchange.unsent:
                size = min(len(exchange.unsent), MAX_FRAME_BYTES, self._window, exchange.window)
                if size <= 0:
                    blocked.append(exchange)
                    break
                piece, exchange.unsent = exchange.unsent[:size], exchange.unsent[size:]
                self._window -= size
                exchange.window -= size
                self._out.append(frame(DATA, 0 if exchange.unsent else END_STREAM, stream, piece))

    def open(self, more: int) -> None:
        """Heed that the server opens the window of the connection. Raises Http2Error."""
        self._window += more
        if self._window > MAX_WINDOW:
            raise Http2Error("a window is too large", FLOW_CONTROL_ERROR)

    def resize_streams(self, size: int) -> None:
        """Heed the window that the server gives every stream. Raises Http2Error."""
        if size > MAX_WINDOW:
            raise Http2Error("a window is too large", FLOW_CONTROL_ERROR)
        for exchange in self.blocked:
            exchange.window += size - self._stream_window
        self._stream_window = size

    # -- receiving --------------------------------------------------------------------------

    def received(self, size: int) -> None:
        """Take note of data, padding and all. Raises Http2Error where it exceeds the window."""
        self._receive_window -= size
        if self._receive_window < 0:
            raise Http2Error("more data than allowed", FLOW_CONTROL_ERROR)

    def credit(self, size: int) -> None:
        """Let the server send as much again, once it is worth a frame."""
        self._to_open += size
        if self._to_open >= CONNECTION_WINDOW // 4:
            self._out.append(window_update(0, self._to_open))
            self._receive_window += self._to_open
            self._to_open = 0

    def forget(self, exchange: Exchange) -> None:
        """Be done with a request: what was not sent never is, and the room of its body is free."""
        if exchange.unsent:
            self.blocked.remove(exchange)
        self.credit(len(exchange.body))
