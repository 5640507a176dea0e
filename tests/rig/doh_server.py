"""A DoH server that does what a function says: HTTP/2 by the h2 library, HTTP/1.1 by h11.

    def serve(asked: HttpAsked) -> None:
        asked.link.answer(asked, reply_wire(asked.wire))

    async with DohServer(authority.issue(), serve) as server:
        ... server.address, server.links, server.heard

It runs on the loop of the test. `serve` is called for every request; what it does with the link is
all that the client hears: an answer, an error, a reset, a GOAWAY, raw bytes, or nothing. HTTP/2 is
offered unless `alpn` says otherwise.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import h2.config
import h2.connection
import h2.events
import h2.settings
import h11

from tests.rig.certs import Certificate
from tests.rig.net import Address
from tests.rig.wire import reply_wire

DNS_TYPE = "application/dns-message"

SettingCodes = h2.settings.SettingCodes


@dataclass(frozen=True, slots=True)
class HttpAsked:
    """One request."""

    link: HttpLink
    stream: int
    """0 for HTTP/1.1."""
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def wire(self) -> bytes:
        """The DNS message in it."""
        if self.method == "POST":
            return self.body
        text = self.path.partition("dns=")[2]
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


Serve = Callable[[HttpAsked], object]


def serve_plainly(asked: HttpAsked) -> None:
    """NOERROR without records."""
    asked.link.answer(asked, reply_wire(asked.wire))


def serve_nothing(asked: HttpAsked) -> None:
    """Silence."""


def serve_status(status: int, body: bytes = b"", kind: str = "text/html", **headers: str) -> Serve:
    """The same response to everything; underscores in the names of `headers` become dashes."""

    def serve(asked: HttpAsked) -> None:
        asked.link.answer(asked, body, status=status, kind=kind, **headers)

    return serve


class HttpLink(asyncio.Protocol):
    """One connection of a client."""

    transport: asyncio.Transport

    def __init__(self, server: DohServer) -> None:
        self.server = server
        self.heard: list[HttpAsked] = []
        self.ended = False
        self.deaf = False
        """From now on everything that comes is thrown away."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.links.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True

    def data_received(self, data: bytes) -> None:
        if not self.deaf:
            self.take_in(data)

    def take_in(self, data: bytes) -> None:
        raise NotImplementedError

    def asked(self, *fields: Any) -> None:
        request = HttpAsked(self, *fields)
        self.heard.append(request)
        self.server.heard.append(request)
        self.server.serve(request)

    def answer(
        self,
        asked: HttpAsked,
        body: bytes,
        *,
        status: int = 200,
        kind: str = DNS_TYPE,
        **headers: str,
    ) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.transport.close()


def _headers(status: int, kind: str, body: bytes, more: dict[str, str]) -> list[tuple[str, str]]:
    headers = [("content-type", kind)] if kind else []
    headers.append(("content-length", str(len(body))))
    return headers + [(name.replace("_", "-"), value) for name, value in more.items()]


class Http2Link(HttpLink):
    """HTTP/2; `h2` is the library's connection."""

    def __init__(self, server: DohServer) -> None:
        super().__init__(server)
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.h2.local_settings = h2.settings.Settings(
            client=False, initial_values={SettingCodes.ENABLE_PUSH: 0, **server.settings}
        )
        self.resets: list[tuple[int, int]] = []
        """Streams that the client reset, with the error codes."""
        self.pings = 0
        self.goaway: int | None = None
        """The error code with which the client says good-bye."""
        self._open: dict[int, tuple[dict[str, str], bytearray]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.h2.initiate_connection()
        self.flush()

    def take_in(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            self._on(event)
        self.flush()

    def _on(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                headers = cast(dict[str, str], dict(event.headers))
                self._open[event.stream_id] = headers, bytearray()
            case h2.events.DataReceived():
                self._open[event.stream_id][1].extend(event.data)
                if self.server.reads:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                headers, body = self._open.pop(event.stream_id)
                self.asked(
                    event.stream_id, headers[":method"], headers[":path"], headers, bytes(body)
                )
            case h2.events.StreamReset():
                self._open.pop(event.stream_id, None)
                self.resets.append((event.stream_id, int(event.error_code)))
            case h2.events.PingReceived():
                self.pings += 1
            case h2.events.ConnectionTerminated():
                self.goaway = int(event.error_code or 0)

    def answer(
        self,
        asked: HttpAsked,
        body: bytes,
        *,
        status: int = 200,
        kind: str = DNS_TYPE,
        **headers: str,
    ) -> None:
        stream = asked.stream
        fields = [(":status", str(status)), *_headers(status, kind, body, headers)]
        self.h2.send_headers(stream, fields, end_stream=not body)
        for start in range(0, len(body), 16_384):
            piece = body[start : start + 16_384]
            self.h2.send_data(stream, piece, end_stream=start + 16_384 >= len(body))
        self.flush()

    def reset(self, asked: HttpAsked, code: int) -> None:
        self.h2.reset_stream(asked.stream, code)
        self.flush()

    def say_goaway(self, last_stream: int, code: int = 0) -> None:
        """Say GOAWAY by hand: the library would take nothing more after it."""
        payload = last_stream.to_bytes(4, "big") + code.to_bytes(4, "big")
        self.raw(len(payload).to_bytes(3, "big") + b"\x07\x00\x00\x00\x00\x00" + payload)

    def say_settings(self, settings: dict[SettingCodes, int]) -> None:
        self.h2.update_settings(settings)
        self.flush()

    def raw(self, data: bytes) -> None:
        """Send bytes that the library knows nothing of."""
        self.transport.write(data)

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            self.transport.write(data)


class Http1Link(HttpLink):
    """HTTP/1.1."""

    def __init__(self, server: DohServer) -> None:
        super().__init__(server)
        self._h11 = h11.Connection(h11.SERVER)
        self._request: h11.Request | None = None
        self._body = b""

    def take_in(self, data: bytes) -> None:
        self._h11.receive_data(data)
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Request):
                self._request, self._body = event, b""
            elif isinstance(event, h11.Data):
                self._body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert self._request is not None
                headers = {name.decode(): value.decode() for name, value in self._request.headers}
                self.asked(
                    0,
                    self._request.method.decode(),
                    self._request.target.decode(),
                    headers,
                    self._body,
                )
            else:
                return

    def answer(
        self,
        asked: HttpAsked,
        body: bytes,
        *,
        status: int = 200,
        kind: str = DNS_TYPE,
        **headers: str,
    ) -> None:
        fields = _headers(status, kind, body, headers)
        if "transfer_encoding" in headers:
            fields = [field for field in fields if field[0] != "content-length"]
        out = self._h11.send(h11.Response(status_code=status, headers=fields)) or b""
        for start in range(0, len(body), 1_000):
            out += self._h11.send(h11.Data(data=body[start : start + 1_000])) or b""
        out += self._h11.send(h11.EndOfMessage()) or b""
        if self._h11.our_state is h11.DONE:
            self._h11.start_next_cycle()
        self.raw(out)
        if self._h11.our_state is h11.MUST_CLOSE:
            self.close()

    def raw(self, data: bytes) -> None:
        self.transport.write(data)


class DohServer:
    """See the module. `settings` are announced on every HTTP/2 connection."""

    def __init__(
        self,
        certificate: Certificate,
        serve: Serve = serve_plainly,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        alpn: Sequence[str] = ("h2",),
        settings: dict[SettingCodes, int] | None = None,
    ) -> None:
        self.serve = serve
        self.settings = dict(settings or {})
        self.reads = True
        """Whether the windows of HTTP/2 are opened again for what was read."""
        self.links: list[HttpLink] = []
        self.heard: list[HttpAsked] = []
        self._certificate = certificate
        self._alpn = tuple(alpn)
        self._bind = (host, port)

    async def __aenter__(self) -> Self:
        kind = Http2Link if "h2" in self._alpn else Http1Link
        self._server = await asyncio.get_running_loop().create_server(
            lambda: kind(self),
            *self._bind,
            ssl=self._certificate.context(*self._alpn),
            reuse_address=True,
            backlog=64,
        )
        self.address = Address(*self._server.sockets[0].getsockname()[:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for link in self.links:
            link.transport.abort()
        await asyncio.sleep(0.01)

    @property
    def link(self) -> Http2Link:
        """The newest connection, of HTTP/2."""
        link = self.links[-1]
        assert isinstance(link, Http2Link)
        return link
