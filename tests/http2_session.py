"""What the tests of the HTTP/2 session share: requests, and the server's side by hand."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import hpack

from workers.transports.http2 import Http2Session
from workers.transports.http2_frames import SETTINGS, frame
from workers.transports.http_exchange import Exchange, Target

TARGET = Target(b"dns.example", b"/dns-query")
MESSAGE = bytes(range(60))
DNS = (b"content-type", b"application/dns-message")
OK = (b":status", b"200")
HELLO = frame(SETTINGS, 0, 0, b"")


def attempt(closed: bool = False) -> Any:
    """What a session knows of an attempt."""
    return SimpleNamespace(closed=closed)


def block(*fields: tuple[bytes, bytes]) -> bytes:
    """A header block that does not depend on what came before, as only the first one may."""
    return hpack.Encoder().encode(fields or (OK, DNS))


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Cut what a session sends into kind, flags, stream and payload."""
    cut = []
    while data:
        end = 9 + int.from_bytes(data[:3])
        cut.append((data[3], data[4], int.from_bytes(data[5:9]), data[9:end]))
        data = data[end:]
    return cut


def ended(session: Http2Session) -> list[Exchange]:
    exchanges = list(session.ended)
    session.ended.clear()
    return exchanges


def ready_session() -> Http2Session:
    """A session whose server has said its settings, with one request under way on stream 1."""
    session = Http2Session(TARGET)
    session.request(attempt(), MESSAGE)
    session.receive(HELLO)
    session.take()
    return session


def feed(session: Http2Session, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        session.receive(piece)
