"""The HTTP/1.1 session without a socket: requests as bytes, responses by hand and by h11."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.transports.http1 import Http1Session
from workers.transports.http_exchange import (
    ANSWERED,
    MAX_BODY_BYTES,
    MAX_INTERIM,
    OVERSIZE,
    HttpError,
    Target,
)

TARGET = Target(b"dns.example:8443", b"/dns-query")
MESSAGE = bytes(range(60))


def attempt() -> Any:
    return SimpleNamespace(closed=False)


@pytest.fixture
def asked() -> Http1Session:
    """A session with a request under way."""
    session = Http1Session(TARGET)
    session.request(attempt(), MESSAGE)
    session.take()
    return session


def response(body: bytes, *lines: str, status: str = "200 OK") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


def test_request_by_post_is_understood_by_a_server() -> None:
    session = Http1Session(TARGET)
    server = h11.Connection(h11.SERVER)
    session.request(attempt(), MESSAGE)
    assert not session.room
    server.receive_data(session.take())
    request = server.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target) == (b"POST", b"/dns-query")
    assert dict(request.headers) == {
        b"host": b"dns.example:8443",
        b"accept": b"application/dns-message",
        b"content-type": b"application/dns-message",
        b"content-length": b"60",
    }
    body = server.next_event()
    assert isinstance(body, h11.Data)
    assert body.data == MESSAGE
    assert isinstance(server.next_event(), h11.EndOfMessage)


def test_request_by_get_has_no_body() -> None:
    session = Http1Session(Target(b"dns.example", b"/dns-query", get=True))
    session.request(attempt(), b"\xff\xfe\xfd\xfc")
    lines = session.take().split(b"\r\n")
    assert lines[0] == b"GET /dns-query?dns=__79_A HTTP/1.1"
    assert b"host: dns.example" in lines
    assert not any(b"ontent" in line for line in lines)
    assert lines[-2:] == [b"", b""]


def test_request_by_get_of_a_long_message_is_posted() -> None:
    session = Http1Session(Target(b"dns.example", b"/dns-query", get=True))
    session.request(attempt(), bytes(2_000))
    assert session.take().startswith(b"POST /dns-query HTTP/1.1\r\n")


def test_requests_follow_each_other_on_one_connection() -> None:
    session = Http1Session(TARGET)
    for number in range(5):
        assert session.room
        session.request(attempt(), MESSAGE)
        session.receive(response(b"%d" % number, "Content-Type: application/dns-message"))
        exchange = session.ended.pop()
        assert (exchange.outcome, exchange.status) == (ANSWERED, 200)
        assert (exchange.body, exchange.content_type) == (
            b"%d" % number,
            b"application/dns-message",
        )
    assert not session.closing


@given(st.data())
def test_response_cut_anywhere_is_the_same(data: st.DataObject) -> None:
    session = Http1Session(TARGET)
    session.request(attempt(), MESSAGE)
    said = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\none\r\n4;x=y\r\nmore\r\n0\r\nTrailer: x\r\n\r\n"
    )
    while said:
        size = data.draw(st.integers(1, len(said)))
        session.receive(said[:size])
        said = said[size:]
    assert [bytes(each.body) for each in session.ended] == [b"onemore"]
    assert session.room


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_response_without_a_body_is_complete(asked: Http1Session, status: str) -> None:
    asked.receive(f"HTTP/1.1 {status}\r\n\r\n".encode())
    assert asked.ended[0].body == b""


def test_response_that_ends_the_connection_lets_no_request_follow(asked: Http1Session) -> None:
    asked.receive(response(b"body", "Connection: close"))
    assert asked.ended[0].outcome == ANSWERED
    assert asked.closing
    assert not asked.room


def test_response_nobody_asked_for_closes_the_connection() -> None:
    session = Http1Session(TARGET)
    session.receive(response(b"", status="408 Request Timeout"))
    assert session.closing
    assert session.ended == []


def test_response_too_many_is_never_taken_for_the_next(asked: Http1Session) -> None:
    asked.receive(response(b"due") + response(b"forged"))
    assert [each.body for each in asked.ended] == [b"due"]
    if asked.room:
        asked.ended.clear()
        asked.request(attempt(), MESSAGE)
        asked.receive(response(b"due too"))
        assert [each.body for each in asked.ended] != [b"forged"]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size_bytes", [MAX_BODY_BYTES, MAX_BODY_BYTES + 1])
def test_response_of_the_longest_message_is_taken_and_not_a_byte_more(
    asked: Http1Session, size_bytes: int, chunked: bool
) -> None:
    body = bytes(size_bytes)
    said = response(body)
    if chunked:
        said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        said += b"%x\r\n%s\r\n0\r\n\r\n" % (size_bytes, body)
    for start in range(0, len(said), 10_000):
        asked.receive(said[start : start + 10_000])
    (exchange,) = asked.ended
    if size_bytes == MAX_BODY_BYTES:
        assert (exchange.outcome, exchange.body) == (ANSWERED, body)
    else:
        assert exchange.outcome == OVERSIZE
        assert asked.closing


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_INTERIM + 1),
    ],
)
def test_session_with_a_server_that_breaks_the_rules_says_so(
    asked: Http1Session, said: bytes
) -> None:
    with pytest.raises(HttpError, match=r"does not keep to HTTP/1\.1|too many interim responses"):
        asked.receive(said)


@given(st.lists(st.one_of(st.binary(max_size=80), st.just(response(b"x")))))
def test_session_fed_anything_raises_only_its_own_error(pieces: list[bytes]) -> None:
    session = Http1Session(TARGET)
    session.request(attempt(), MESSAGE)
    try:
        for piece in pieces:
            session.receive(piece)
    except HttpError:
        pass
    assert len(session.ended) + session.held == 1


# -- bodies that the end of the connection ends -------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/dns-message\r\n"


@pytest.mark.parametrize(
    "head", [HEAD + b"\r\n", HEAD + b"Connection: close\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"]
)
@given(pieces=st.lists(st.binary(min_size=1, max_size=20), max_size=5))
def test_body_without_a_length_ends_with_the_connection(head: bytes, pieces: list[bytes]) -> None:
    session = Http1Session(TARGET)
    session.request(attempt(), MESSAGE)
    session.receive(head)
    for piece in pieces:
        session.receive(piece)
    assert session.ended == []
    session.receive_end()
    (exchange,) = session.ended
    assert (exchange.outcome, bytes(exchange.body)) == (ANSWERED, b"".join(pieces))
    assert session.closing
    assert not session.room


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nConte",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        HEAD + b"Content-Length: 5\r\n\r\nfour",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n",
    ],
)
def test_response_cut_off_by_the_end_of_the_connection_is_none(
    asked: Http1Session, said: bytes
) -> None:
    if said:
        asked.receive(said)
    asked.receive_end()
    assert asked.ended == []
    assert asked.closing


def test_body_without_a_length_is_bounded(asked: Http1Session) -> None:
    asked.receive(HEAD + b"\r\n" + bytes(MAX_BODY_BYTES + 1))
    (exchange,) = asked.ended
    assert exchange.outcome == OVERSIZE
    asked.receive_end()
    assert len(asked.ended) == 1
