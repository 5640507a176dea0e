"""The HTTP/2 session without a socket, and servers that break the rules or wear it down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http2_session import (
    HELLO,
    MESSAGE,
    TARGET,
    attempt,
    block,
    feed,
    frames,
    ready_session,
)
from workers.transports import http2
from workers.transports.http2 import Http2Session
from workers.transports.http2_frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    MAX_STREAM_ID,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Error,
    frame,
    settings,
    window_update,
)
from workers.transports.http2_response_headers import MAX_FIELDS
from workers.transports.http_exchange import MALFORMED, MAX_INTERIM


@pytest.fixture
def ready() -> Http2Session:
    return ready_session()


# -- hostile servers ----------------------------------------------------------------------------

DEEP = b"\x40\x01a\x01b" * 4_000
"""A header block of thousands of fields."""

BOMB = b"\x40\x01a\x7f\x81\x1f" + b"b" * 4_096 + b"\xbe" * 5_000
"""A field of four kilobytes, and five thousand references to it."""


@pytest.mark.parametrize(
    ("what", "said", "code"),
    [
        ("a frame is too long", b"\x00\x40\x01" + bytes(5) + b"\x01", FRAME_SIZE_ERROR),
        ("settings have the wrong form", frame(SETTINGS, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
        ("settings have the wrong form", frame(SETTINGS, ACK, 0, bytes(6)), FRAME_SIZE_ERROR),
        ("settings have the wrong form", frame(SETTINGS, 0, 1, b""), FRAME_SIZE_ERROR),
        ("too many settings", settings(dict.fromkeys(range(100), 0)), ENHANCE_YOUR_CALM),
        ("a window is too large", settings({4: 2**31}), FLOW_CONTROL_ERROR),
        ("its longest frame is out of range", settings({5: 16_383}), PROTOCOL_ERROR),
        ("its longest frame is out of range", settings({5: 2**24}), PROTOCOL_ERROR),
        ("a window opens by nothing", window_update(0, 0), PROTOCOL_ERROR),
        ("a window is too large", window_update(0, 2**31 - 1), FLOW_CONTROL_ERROR),
        ("a window update has the wrong form", frame(WINDOW_UPDATE, 0, 0, b""), FRAME_SIZE_ERROR),
        ("a ping has the wrong form", frame(PING, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
        ("a reset has the wrong form", frame(RST_STREAM, 0, 1, bytes(3)), FRAME_SIZE_ERROR),
        ("a goaway has the wrong form", frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
        ("it pushes although told not to", frame(PUSH_PROMISE, 4, 1, bytes(8)), PROTOCOL_ERROR),
        ("on a stream that nobody opened", frame(RST_STREAM, 0, 3, bytes(4)), PROTOCOL_ERROR),
        ("on a stream that nobody opened", frame(DATA, 0, 2, b"x"), PROTOCOL_ERROR),
        ("on a stream that nobody opened", frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
        ("on a stream that nobody opened", frame(HEADERS, 4, 5, block()), PROTOCOL_ERROR),
        ("more padding than frame", frame(DATA, PADDED, 1, b"\x05abcd"), PROTOCOL_ERROR),
        ("more padding than frame", frame(HEADERS, 4 | PADDED, 1, b""), PROTOCOL_ERROR),
        ("a frame is too short", frame(HEADERS, 4 | PRIORITY, 1, bytes(4)), FRAME_SIZE_ERROR),
        ("header fields without a beginning", frame(CONTINUATION, 4, 1, b""), PROTOCOL_ERROR),
        (
            "header fields are interrupted",
            frame(HEADERS, 0, 1, block()) + frame(PING, 0, 0, bytes(8)),
            PROTOCOL_ERROR,
        ),
        (
            "header fields are interrupted",
            frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 4, 3, b""),
            PROTOCOL_ERROR,
        ),
        ("header fields cannot be decoded", frame(HEADERS, 4, 1, b"\xff\xff"), COMPRESSION_ERROR),
        ("header fields cannot be decoded", frame(HEADERS, 4, 1, b"\x40\x05a"), COMPRESSION_ERROR),
        ("header fields cannot be decoded", frame(HEADERS, 4, 1, b"\x40"), COMPRESSION_ERROR),
        ("header fields cannot be decoded", frame(HEADERS, 4, 1, b"\xfe"), COMPRESSION_ERROR),
        ("header fields cannot be decoded", frame(HEADERS, 4, 1, b"\x80"), COMPRESSION_ERROR),
        (
            "header fields cannot be decoded",
            frame(HEADERS, 4, 1, b"\x3f\xff\xff\x7f"),
            COMPRESSION_ERROR,
        ),
        ("header fields cannot be decoded", frame(HEADERS, 4, 1, BOMB), COMPRESSION_ERROR),
        ("header fields cannot be decoded", frame(HEADERS, 4, 1, DEEP[:16_380]), COMPRESSION_ERROR),
        (
            "too many header fields",
            frame(HEADERS, 4, 1, b"\x88" * (MAX_FIELDS + 1)),
            ENHANCE_YOUR_CALM,
        ),
        (
            "header fields are too long",
            frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"") * 9,
            ENHANCE_YOUR_CALM,
        ),
        (
            "header fields are too long",
            frame(HEADERS, 0, 1, bytes(16_384)) + frame(CONTINUATION, 0, 1, b"x"),
            ENHANCE_YOUR_CALM,
        ),
    ],
)
def test_session_with_a_server_that_breaks_the_rules_says_so(
    ready: Http2Session, what: str, said: bytes, code: int
) -> None:
    with pytest.raises(Http2Error, match=what) as broken:
        ready.receive(said)
    assert broken.value.code == code
    assert not ready.room
    assert frames(ready.take())[-1] == (GOAWAY, 0, 0, bytes(4) + code.to_bytes(4))


@pytest.mark.parametrize(
    "said",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(PING, ACK, 0, bytes(8)),
        frame(SETTINGS, 0, 0, b""),
        frame(WINDOW_UPDATE, 0, 1, (1).to_bytes(4)),
        frame(RST_STREAM, 0, 1, bytes(4)),
        frame(2, 0, 1, bytes(5)),
        frame(0x77, 0, 1, b"who knows"),
        frame(DATA, 0, 3, b""),
        frame(HEADERS, END_HEADERS, 5, block((b":status", b"100"))),
        frame(GOAWAY, 0, 0, MAX_STREAM_ID.to_bytes(4) + bytes(4)),
    ],
    ids=[
        "ping",
        "pong",
        "settings",
        "window",
        "reset",
        "priority",
        "unknown",
        "data",
        "1xx",
        "bye",
    ],
)
def test_session_flooded_with_frames_that_say_nothing_is_ended(
    ready: Http2Session, said: bytes
) -> None:
    ready.request(attempt(), MESSAGE)
    ready.request(attempt(), MESSAGE)
    ready.receive(frame(HEADERS, END_HEADERS, 3, block()))
    with pytest.raises(Http2Error, match="too many frames that say nothing"):
        feed(ready, [said] * (http2.MAX_IDLE_FRAMES + 5))


MANY = b"\x88" * (MAX_FIELDS - 1)
"""As many fields as there may be, with one more, at one byte each."""


@pytest.mark.parametrize(("stream", "status"), [(1, b"200"), (3, b"103")])
def test_session_flooded_with_header_fields_is_ended_by_their_number(
    ready: Http2Session, stream: int, status: bytes
) -> None:
    for _ in range(20):
        ready.request(attempt(), MESSAGE)
    ready.receive(frame(RST_STREAM, 0, 1, bytes(4)))
    said = MANY + block((b":status", status))  # the last status is the one that counts
    most = http2.MAX_IDLE_FRAMES // (MAX_FIELDS * http2.FIELD_WEIGHT)
    flood = [
        frame(
            HEADERS, END_HEADERS, stream + (2 * (number // MAX_INTERIM) if stream > 1 else 0), said
        )
        for number in range(most + 1)
    ]
    with pytest.raises(Http2Error, match="too many frames that say nothing"):
        feed(ready, flood)


def test_request_with_too_many_interim_responses_fails_alone(ready: Http2Session) -> None:
    ready.request(attempt(), MESSAGE)
    interim = frame(HEADERS, END_HEADERS, 1, block((b":status", b"103")))
    feed(ready, [interim] * MAX_INTERIM)
    assert not ready.ended
    ready.receive(interim)
    assert [(each.stream, each.outcome, each.error) for each in ready.ended] == [
        (1, MALFORMED, "too many interim responses")
    ]
    assert list(ready.exchanges) == [3]
    assert ready.room


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it answers in HTTP/1"),
        (frame(PING, 0, 0, bytes(8)), "it does not begin with settings"),
        (frame(SETTINGS, ACK, 0, b""), "it does not begin with settings"),
    ],
)
def test_session_with_a_server_of_another_protocol_says_so(said: bytes, what: str) -> None:
    session = Http2Session(TARGET)
    with pytest.raises(Http2Error, match=what):
        session.receive(said)


def test_session_keeps_what_ended_before_the_rules_were_broken(ready: Http2Session) -> None:
    good = frame(HEADERS, END_HEADERS, 1, block()) + frame(DATA, END_STREAM, 1, b"good")
    with pytest.raises(Http2Error):
        ready.receive(good + frame(PUSH_PROMISE, 4, 1, bytes(8)))
    assert ready.ended[0].body == b"good"


@given(st.lists(st.binary(max_size=200)))
def test_session_fed_anything_raises_only_its_own_error(pieces: list[bytes]) -> None:
    session = Http2Session(TARGET)
    session.request(attempt(), MESSAGE)
    session.receive(HELLO)
    try:
        for piece in pieces:
            session.receive(piece)
    except Http2Error:
        pass


@given(
    st.lists(
        st.tuples(
            st.integers(0, 11),
            st.sampled_from((0, 1, 4, 5, 8, 9, 0x0D, 0x20, 0x2C, 0xFF)),
            st.integers(0, 9),
            st.one_of(
                st.binary(max_size=40),
                st.just(block()),
                st.just(bytes(4)),
                st.just(bytes(6)),
                st.just(bytes(8)),
            ),
        ),
        max_size=30,
    )
)
def test_session_fed_any_frames_ends_every_request_once(
    said: list[tuple[int, int, int, bytes]],
) -> None:
    session = Http2Session(TARGET)
    attempts = [attempt() for _ in range(4)]
    for each in attempts:
        session.request(each, MESSAGE)
    session.receive(HELLO)
    try:
        for fields in said:
            session.receive(frame(*fields))
    except Http2Error:
        pass
    over = [each.attempt for each in session.ended]
    under_way = [each.attempt for each in session.exchanges.values()]
    assert sorted(map(id, over + under_way)) == sorted(map(id, attempts))
