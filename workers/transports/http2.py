"""HTTP/2 for a client that asks small questions (RFC 9113): bytes in, bytes out, no socket.

Header compression is the hpack library's; the frames are handled here, since the general library
h2 takes 73 µs for a request and its response, its checks switched off, where this takes 16.

A request is a HEADERS frame (`http2_headers`) and, unless it is a GET, one DATA frame.

What comes in is bounded. A frame is at most `MAX_FRAME_BYTES`, a header block `MAX_HEADER_BYTES`
(`http2_response_headers`), a body `MAX_BODY_BYTES`, and all bodies together the window of the
connection (`http2_flow`). Interim responses are at most `MAX_INTERIM` to a request. Frames that
bring no response forward are counted from one response to the next, `MAX_IDLE_FRAMES` at most.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from workers.engine.pending import Attempt
from workers.transports.http2_flow import FlowControl
from workers.transports.http2_frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_BYTES,
    MAX_FRAME_SIZE,
    MAX_STREAM_ID,
    MAX_WINDOW,
    NO_ERROR,
    PADDED,
    PING,
    PING_DATA,
    PREFACE,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    WORD,
    Http2Error,
    error_name,
    frame,
    unpadded,
)
from workers.transports.http2_headers import RequestHeaders
from workers.transports.http2_response_headers import Fields, ResponseHeaders, read_fields
from workers.transports.http_exchange import (
    ANSWERED,
    MALFORMED,
    MAX_INTERIM,
    OVERSIZE,
    REFUSED,
    RESET,
    UNSERVED,
    Exchange,
    Target,
)

MAX_SETTINGS: Final = 64
"""Settings in one frame; the protocol knows less than ten."""

MAX_IDLE_FRAMES: Final = 10_000
"""Frames between two responses that bring none forward. A server may send two updates of windows
for each of a thousand requests that it has not answered."""

FIELD_WEIGHT: Final = 2
"""A header field that brings no response forward counts as so many of them, as it takes longer."""

MAX_STREAMS: Final = 1_000
"""Requests under way on one connection, however many more the server allows."""

REQUESTS_AT_FIRST: Final = 100
"""... and taken until its settings are known,"""

STREAMS_AT_FIRST: Final = 10
"""of which so many are sent at once: a server may well end a connection that exceeds its bound."""

MAX_BLOCKED: Final = 100
"""Requests under way whose bodies the server does not let go yet."""


class Http2Session:
    """The client's side of one connection. See the module and `http_exchange.Session`."""

    __slots__ = (
        "_early",
        "_flow",
        "_greeted",
        "_headers",
        "_held",
        "_idle_frames",
        "_max_streams",
        "_out",
        "_responses",
        "_sent_early",
        "closing",
        "ended",
        "exchanges",
        "left",
        "next_stream",
        "pongs",
    )

    def __init__(self, target: Target) -> None:
        self._headers = RequestHeaders(target)
        self._responses = ResponseHeaders()
        self._out: list[bytes] = [PREFACE]
        self._flow = FlowControl(self._out)
        self._held = b""
        self._greeted = False
        self._idle_frames = 0
        self._max_streams = REQUESTS_AT_FIRST
        self._early: deque[tuple[Attempt, bytes]] = deque()
        self._sent_early = 0
        self.exchanges: dict[int, Exchange] = {}
        self.ended: list[Exchange] = []
        self.left: list[Attempt] = []
        self.closing = False
        self.next_stream = 1
        self.pongs = 0
        """How many of our pings were answered."""

    def __repr__(self) -> str:
        return f"<Http2Session {len(self.exchanges)} of {self._max_streams} streams>"

    @property
    def room(self) -> bool:
        """Whether a request can be made now."""
        return (
            len(self.exchanges) + len(self._early) < self._max_streams
            and not self.closing
            and len(self._flow.blocked) < MAX_BLOCKED
        )

    @property
    def held(self) -> int:
        """How many requests are under way, given up or not."""
        return len(self.exchanges) + len(self._early)

    @property
    def has_output(self) -> bool:
        """Whether `take` has something."""
        return bool(self._out)

    # -- sending ----------------------------------------------------------------------------

    def request(self, attempt: Attempt, message: bytes) -> None:
        """Ask. Only while there is `room`."""
        if not self._greeted and len(self.exchanges) >= STREAMS_AT_FIRST:
            attempt.waits = True
            self._early.append((attempt, message))
        else:
            self._open(attempt, message)

    def _open(self, attempt: Attempt, message: bytes) -> None:
        stream = self.next_stream
        self.next_stream = stream + 2
        if stream + 2 > MAX_STREAM_ID:
            self.closing = True
        exchange = Exchange(attempt, stream)
        if not self._greeted:
            exchange.early = message
        self.exchanges[stream] = exchange
        block, complete = self._headers.block(message)
        if complete:
            self._out.append(frame(HEADERS, END_HEADERS | END_STREAM, stream, block))
            return
        self._flow.send(exchange, frame(HEADERS, END_HEADERS, stream, block), message)

    def ping(self) -> bool:
        """Ask for a sign of life; `pongs` counts the answers."""
        self._out.append(frame(PING, 0, 0, PING_DATA))
        return True

    def drop_closed(self) -> None:
        """Give up the requests whose attempts are closed."""
        for exchange in [each for each in self.exchanges.values() if each.attempt.closed]:
            self._give_up(exchange, CANCEL)
        self._early = deque(each for each in self._early if not each[0].closed)

    def take(self) -> bytes:
        """Return the bytes to be sent, once."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def _give_up(self, exchange: Exchange, code: int) -> None:
        """End a request that needs no more of the server."""
        self._out.append(frame(RST_STREAM, 0, exchange.stream, WORD.pack(code)))
        self._forget(exchange)

    def _forget(self, exchange: Exchange) -> None:
        """Take a request out of the books."""
        del self.exchanges[exchange.stream]
        self._flow.forget(exchange)

    # -- receiving --------------------------------------------------------------------------

    def receive_end(self) -> None:
        """Nothing to do: in HTTP/2 every response says where it ends."""

    def receive(self, data: bytes) -> None:
        """Take in bytes of the server. Raises Http2Error; `ended` holds what ended before."""
        try:
            self._receive(data)
        except Http2Error as error:
            self.closing = True
            self._out.append(frame(GOAWAY, 0, 0, bytes(4) + WORD.pack(error.code)))
            raise

    def _receive(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
            self._held = b""
        position = 0
        size = len(data)
        unpack = HEAD.unpack_from
        while size - position >= HEAD_BYTES:
            high, low, kind, flags, stream = unpack(data, position)
            length = high << 8 | low
            if length > MAX_FRAME_BYTES:
                raise self._not_http2(data) or Http2Error("a frame is too long", FRAME_SIZE_ERROR)
            start = position + HEAD_BYTES
            end = start + length
            if end > size:
                break
            position = end
            stream &= MAX_STREAM_ID
            payload = data[start:end]
            unfinished = self._responses.stream
            if unfinished is not None and (kind != CONTINUATION or stream != unfinished):
                raise Http2Error("header fields are interrupted")
            if not self._greeted:
                if kind != SETTINGS or flags & ACK:
                    raise self._not_http2(data) or Http2Error("it does not begin with settings")
                self._greeted = True
                self._max_streams = MAX_STREAMS
                self._sent_early = len(self.exchanges)
            if kind == DATA:
                self._on_data(stream, flags, payload)
            elif kind == HEADERS:
                self._on_headers(stream, flags, payload)
            else:
                self._on_control(kind, stream, flags, payload)
        self._held = data[position:]
        if self._early:
            self._open_early()

    def _open_early(self) -> None:
        """Send what came before the settings, as far as they allow it; hand it back at the end."""
        early = self._early
        while early and self.closing:
            exchange = Exchange(early.popleft()[0])
            exchange.outcome = UNSERVED
            self.ended.append(exchange)
        while early and self._greeted and len(self.exchanges) < self._max_streams:
            attempt, message = early.popleft()
            if not attempt.closed:  # else it went elsewhere meanwhile, and not twice
                self.left.append(attempt)
                self._open(attempt, message)

    def _not_http2(self, data: bytes) -> Http2Error | None:
        if not self._greeted and data.startswith(b"HTTP/1"):
            return Http2Error("it answers in HTTP/1")
        return None

    def _on_data(self, stream: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self._flow.received(size)
        exchange = self._find(stream)
        if exchange is None:
            self._count_idle()
            self._flow.credit(size)
            return
        if flags & PADDED:
            payload = unpadded(payload)
            self._flow.credit(size - len(payload))
        if not exchange.status:
            self._end_badly(exchange, MALFORMED, "a body before its header")
        elif not exchange.add(payload):
            self._flow.credit(len(payload))
            self._end_badly(exchange, OVERSIZE, "")
        elif flags & END_STREAM:
            self._complete(exchange)
        elif not payload:
            self._count_idle()

    def _on_headers(self, stream: int, flags: int, payload: bytes) -> None:
        fields = self._responses.begin(stream, flags, payload)
        if fields is not None:
            self._on_fields(stream, flags, fields)

    def _on_continuation(self, stream: int, flags: int, payload: bytes) -> None:
        fields = self._responses.go_on(flags, payload)
        if fields is not None:
            self._on_fields(stream, self._responses.flags, fields)

    def _on_fields(self, stream: int, flags: int, fields: Fields) -> None:
        """Take in complete header fields: of a response, an interim response or trailers."""
        exchange = self._find(stream)
        if exchange is None:
            self._count_idle(1 + FIELD_WEIGHT * len(fields))
            return
        if exchange.status:  # trailers
            if flags & END_STREAM:
                self._complete(exchange)
            else:
                self._end_badly(exchange, MALFORMED, "two headers")
            return
        status, content_type, length = read_fields(fields)
        if len(status) != 3 or not status.isdigit():
            self._end_badly(exchange, MALFORMED, "no status")
        elif status < b"200":
            self._count_idle(1 + FIELD_WEIGHT * len(fields))
            exchange.interim += 1
            if flags & END_STREAM:
                self._end_badly(exchange, MALFORMED, "an interim response only")
            elif exchange.interim > MAX_INTERIM:
                self._end_badly(exchange, MALFORMED, "too many interim responses")
        else:
            exchange.status = int(status)
            exchange.content_type = content_type
            exchange.length = length
            if flags & END_STREAM:
                self._complete(exchange)

    def _on_control(self, kind: int, stream: int, flags: int, payload: bytes) -> None:
        """Take in a frame that is not of a response. Kinds that are not known are passed over."""
        if kind == CONTINUATION:
            self._on_continuation(stream, flags, payload)
            return
        self._count_idle()
        if kind == SETTINGS:
            self._on_settings(stream, flags, payload)
        elif kind == WINDOW_UPDATE:
            self._on_window_update(stream, payload)
        elif kind == PING:
            if stream or len(payload) != 8:
                raise Http2Error("a ping has the wrong form", FRAME_SIZE_ERROR)
            if flags & ACK:
                self.pongs += 1
            else:
                self._out.append(frame(PING, ACK, 0, payload))
        elif kind == RST_STREAM:
            self._on_reset(stream, payload)
        elif kind == GOAWAY:
            self._on_goaway(stream, payload)
        elif kind == PUSH_PROMISE:
            raise Http2Error("it pushes although told not to")

    def _on_settings(self, stream: int, flags: int, payload: bytes) -> None:
        if stream or len(payload) % 6 or (flags & ACK and payload):
            raise Http2Error("settings have the wrong form", FRAME_SIZE_ERROR)
        if flags & ACK:
            return
        if len(payload) > MAX_SETTINGS * SETTING.size:
            raise Http2Error("too many settings", ENHANCE_YOUR_CALM)
        for setting, value in SETTING.iter_unpack(payload):
            if setting == HEADER_TABLE_SIZE:
                self._headers.resize(value)
            elif setting == MAX_CONCURRENT_STREAMS:
                self._max_streams = min(value, MAX_STREAMS)
            elif setting == INITIAL_WINDOW_SIZE:
                self._flow.resize_streams(value)
            elif setting == MAX_FRAME_SIZE and not MAX_FRAME_BYTES <= value < 1 << 24:
                raise Http2Error("its longest frame is out of range")
        self._out.append(frame(SETTINGS, ACK, 0, b""))
        self._flow.unblock()

    def _on_window_update(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error("a window update has the wrong form", FRAME_SIZE_ERROR)
        more = int.from_bytes(payload) & MAX_WINDOW
        if not more:
            raise Http2Error("a window opens by nothing")
        if not stream:
            self._flow.open(more)
        else:
            exchange = self._find(stream)
            if exchange is None or not exchange.unsent:
                return
            exchange.window += more
            if exchange.window > MAX_WINDOW:
                self._end_badly(exchange, MALFORMED, "a window that is too large")
        self._flow.unblock()

    def _on_reset(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error("a reset has the wrong form", FRAME_SIZE_ERROR)
        exchange = self._find(stream)
        if exchange is None:
            return
        code = int.from_bytes(payload)
        self._forget(exchange)
        if code == REFUSED_STREAM and exchange.early and self._sent_early > self._max_streams:
            # It was one too many before the bound was known, and has its turn within it.
            exchange.attempt.waits = True
            self._early.append((exchange.attempt, exchange.early))
            return
        exchange.outcome = REFUSED if code == REFUSED_STREAM else RESET
        exchange.error = error_name(code)
        self.ended.append(exchange)

    def _on_goaway(self, stream: int, payload: bytes) -> None:
        if stream or len(payload) < 8:
            raise Http2Error("a goaway has the wrong form", FRAME_SIZE_ERROR)
        last = int.from_bytes(payload[:4]) & MAX_STREAM_ID
        self.closing = True
        for exchange in [each for each in self.exchanges.values() if each.stream > last]:
            self._forget(exchange)
            exchange.outcome = UNSERVED
            self.ended.append(exchange)

    def _find(self, stream: int) -> Exchange | None:
        """Return the exchange of a stream, None when it is over."""
        exchange = self.exchanges.get(stream)
        if exchange is None and (stream >= self.next_stream or not stream & 1):
            raise Http2Error("it speaks on a stream that nobody opened")
        return exchange

    def _complete(self, exchange: Exchange) -> None:
        if exchange.unsent:
            self._give_up(exchange, NO_ERROR)  # it needs no more of the request
        else:
            self._forget(exchange)
        self._idle_frames = 0
        exchange.outcome = ANSWERED
        self.ended.append(exchange)

    def _end_badly(self, exchange: Exchange, outcome: int, error: str) -> None:
        self._give_up(exchange, PROTOCOL_ERROR if outcome == MALFORMED else CANCEL)
        exchange.outcome = outcome
        exchange.error = error
        self.ended.append(exchange)

    def _count_idle(self, frames: int = 1) -> None:
        self._idle_frames += frames
        if self._idle_frames > MAX_IDLE_FRAMES:
            raise Http2Error("too many frames that say nothing", ENHANCE_YOUR_CALM)
