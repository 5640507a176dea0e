"""The HTTP/2 session without a socket: against the h2 library's server, and frames by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import hpack
import pytest
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from tests.http2_session import (
    DNS,
    HELLO,
    MESSAGE,
    OK,
    TARGET,
    attempt,
    block,
    ended,
    feed,
    frames,
    ready_session,
)
from workers.transports import http2
from workers.transports.http2 import Http2Session
from workers.transports.http2_frames import (
    ACK,
    CANCEL,
    CONNECTION_WINDOW,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    GOAWAY,
    HEADERS,
    MAX_STREAM_ID,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    Http2Error,
    frame,
    settings,
)
from workers.transports.http2_headers import literal
from workers.transports.http_exchange import (
    ANSWERED,
    MALFORMED,
    MAX_BODY_BYTES,
    OVERSIZE,
    REFUSED,
    RESET,
    UNSERVED,
    Target,
)


@pytest.fixture
def ready() -> Http2Session:
    return ready_session()


class Server:
    """The library's server: keeps the requests it heard and answers when it is told to."""

    def __init__(
        self, session: Http2Session, initial: dict[SettingCodes, int] | None = None
    ) -> None:
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.h2.local_settings.update(initial or {})
        self.h2.local_settings.acknowledge()
        self.session = session
        self.requests: dict[int, dict[str, str]] = {}
        self.bodies: dict[int, bytes] = {}
        self.complete: list[int] = []
        self.events: list[h2.events.Event] = []
        self.h2.initiate_connection()
        self.exchange_bytes()

    def exchange_bytes(self) -> None:
        """Carry bytes both ways until nobody has anything to say."""
        while True:
            up = self.session.take()
            for event in self.h2.receive_data(up) if up else ():
                self._on(event)
            down = self.h2.data_to_send()
            if down:
                self.session.receive(down)
            if not up and not down:
                return

    def _on(self, event: h2.events.Event) -> None:
        self.events.append(event)
        if isinstance(event, h2.events.RequestReceived):
            self.requests[event.stream_id] = dict(event.headers)  # type: ignore[arg-type]
            self.bodies[event.stream_id] = b""
        elif isinstance(event, h2.events.DataReceived):
            self.bodies[event.stream_id] += event.data
        elif isinstance(event, h2.events.StreamEnded):
            self.complete.append(event.stream_id)

    def answer(self, stream: int, body: bytes, **more: str) -> None:
        fields = [(":status", "200"), ("content-type", "application/dns-message")]
        fields += [(name.replace("_", "-"), value) for name, value in more.items()]
        self.h2.send_headers(stream, fields)
        while len(body) > 16_384:
            self.h2.send_data(stream, body[:16_384])
            body = body[16_384:]
        self.h2.send_data(stream, body, end_stream=True)

    def open_window(self, size: int, stream: int | None = None) -> None:
        self.h2.increment_flow_control_window(size, stream)
        self.exchange_bytes()


# -- requests -----------------------------------------------------------------------------------


def test_request_by_post_is_what_the_rfc_shows() -> None:
    session = Http2Session(TARGET)
    server = Server(session)
    session.request(attempt(), MESSAGE)
    server.exchange_bytes()
    assert server.complete == [1]
    assert server.requests[1] == {
        ":scheme": "https",
        ":authority": "dns.example",
        ":method": "POST",
        ":path": "/dns-query",
        "accept": "application/dns-message",
        "content-type": "application/dns-message",
        "content-length": "60",
    }
    assert server.bodies[1] == MESSAGE


@pytest.mark.parametrize(
    ("path", "joint"), [(b"/dns-query", "/dns-query?dns="), (b"/q?key=1", "/q?key=1&dns=")]
)
def test_request_by_get_carries_the_message_in_its_path(path: bytes, joint: str) -> None:
    session = Http2Session(Target(b"dns.example", path, get=True))
    server = Server(session)
    session.request(attempt(), b"\xff\xfe\xfd\xfc")
    session.request(attempt(), bytes(300))
    server.exchange_bytes()
    assert server.requests[1] == {
        ":scheme": "https",
        ":authority": "dns.example",
        ":method": "GET",
        ":path": f"{joint}__79_A",
        "accept": "application/dns-message",
    }
    assert server.requests[3][":path"] == joint + "A" * 400
    assert server.complete == [1, 3]


def test_request_by_get_of_a_long_message_is_posted() -> None:
    session = Http2Session(Target(b"dns.example", b"/dns-query", get=True))
    server = Server(session)
    message = bytes(2_000)
    for _ in range(2):
        session.request(attempt(), message)
        server.exchange_bytes()
    assert server.requests[3] == {
        ":scheme": "https",
        ":authority": "dns.example",
        ":method": "POST",
        ":path": "/dns-query",
        "accept": "application/dns-message",
        "content-type": "application/dns-message",
        "content-length": "2000",
    }
    assert server.bodies[3] == message


def test_requests_after_the_first_are_short() -> None:
    session = Http2Session(TARGET)
    server = Server(session)
    session.request(attempt(), MESSAGE)
    server.exchange_bytes()
    session.request(attempt(), MESSAGE)
    assert len(session.take()) < 9 + 9 + len(MESSAGE) + 20


@pytest.mark.parametrize("table_bytes", [0, 64, 200, 4_096, 65_536])
def test_requests_are_understood_whatever_table_the_server_allows(table_bytes: int) -> None:
    session = Http2Session(TARGET)
    session.request(attempt(), MESSAGE)
    server = Server(session)
    session.request(attempt(), MESSAGE)
    server.exchange_bytes()
    server.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: table_bytes})
    server.exchange_bytes()
    for _ in range(5):
        session.request(attempt(), MESSAGE)
        server.exchange_bytes()
    assert len({tuple(each.items()) for each in server.requests.values()}) == 1
    assert len(server.complete) == 7


def test_requests_made_before_the_first_settings_of_a_small_table_are_understood() -> None:
    session = Http2Session(TARGET)
    session.request(attempt(), MESSAGE)
    server = Server(session, {SettingCodes.HEADER_TABLE_SIZE: 0})
    for _ in range(3):
        session.request(attempt(), MESSAGE)
        server.exchange_bytes()
    assert len({tuple(each.items()) for each in server.requests.values()}) == 1


def test_identifiers_that_run_out_close_the_session() -> None:
    session = Http2Session(TARGET)
    session.receive(HELLO)
    session.next_stream = MAX_STREAM_ID - 2
    session.request(attempt(), MESSAGE)
    assert session.room
    session.request(attempt(), MESSAGE)
    assert session.closing
    assert not session.room
    assert [
        stream for kind, _, stream, _ in frames(session.take()[len(PREFACE) :]) if kind == DATA
    ] == [
        MAX_STREAM_ID - 2,
        MAX_STREAM_ID,
    ]


# -- responses ----------------------------------------------------------------------------------


def test_responses_in_any_order_reach_their_requests() -> None:
    session = Http2Session(TARGET)
    attempts = [attempt() for _ in range(50)]
    for number, each in enumerate(attempts):
        session.request(each, bytes([number]) * 20)
    server = Server(session)
    for stream in reversed(server.complete):
        server.answer(stream, server.bodies[stream][::-1] + b"!", cache_control=f"max-age={stream}")
    server.exchange_bytes()
    exchanges = ended(session)
    assert [each.attempt for each in exchanges] == attempts[::-1]
    assert [each.body for each in exchanges] == [
        bytes([number]) * 20 + b"!" for number in range(49, -1, -1)
    ]
    assert {(each.outcome, each.status, each.content_type) for each in exchanges} == {
        (ANSWERED, 200, b"application/dns-message")
    }
    assert session.held == 0


@given(st.data())
def test_responses_cut_anywhere_are_the_same(data: st.DataObject) -> None:
    encoder = hpack.Encoder()
    stream_bytes = (
        HELLO
        + frame(HEADERS, END_HEADERS, 1, encoder.encode((OK, DNS)))
        + frame(PING, 0, 0, b"12345678")
        + frame(HEADERS, 0, 3, (later := encoder.encode((OK, DNS, (b"age", b"12"))))[:2])
        + frame(CONTINUATION, END_HEADERS, 3, later[2:])
        + frame(DATA, PADDED, 1, b"\x03one\0\0\0")
        + frame(DATA, 0, 3, b"three")
        + frame(DATA, END_STREAM, 1, b"more")
        + frame(HEADERS, END_HEADERS | END_STREAM, 3, encoder.encode(((b"trailer", b"x"),)))
    )
    session = Http2Session(TARGET)
    session.request(attempt(), MESSAGE)
    session.request(attempt(), MESSAGE)
    while stream_bytes:
        size = data.draw(st.integers(1, len(stream_bytes)))
        session.receive(stream_bytes[:size])
        stream_bytes = stream_bytes[size:]
    assert [(each.stream, bytes(each.body)) for each in session.ended] == [
        (1, b"onemore"),
        (3, b"three"),
    ]


def test_response_with_interim_ones_before_it_is_the_last(ready: Http2Session) -> None:
    encoder = hpack.Encoder()
    for _ in range(3):
        ready.receive(frame(HEADERS, END_HEADERS, 1, encoder.encode(((b":status", b"103"),))))
    ready.receive(
        frame(HEADERS, END_HEADERS | END_STREAM, 1, encoder.encode(((b":status", b"404"),)))
    )
    (exchange,) = ready.ended
    assert (exchange.outcome, exchange.status, exchange.body) == (ANSWERED, 404, b"")


def test_response_with_padding_and_priority_is_understood(ready: Http2Session) -> None:
    payload = b"\x02" + bytes(5) + block() + b"\0\0"
    ready.receive(frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, payload))
    ready.receive(frame(DATA, END_STREAM | PADDED, 1, b"\x05body" + bytes(5)))
    (exchange,) = ready.ended
    assert (exchange.status, exchange.body) == (200, b"body")


@pytest.mark.parametrize("piece_bytes", [16_384, 1_000])
def test_response_of_the_longest_message_is_taken_and_not_a_byte_more(piece_bytes: int) -> None:
    for size_bytes, outcome in ((MAX_BODY_BYTES, ANSWERED), (MAX_BODY_BYTES + 1, OVERSIZE)):
        session = Http2Session(TARGET)
        session.request(attempt(), MESSAGE)
        session.receive(HELLO + frame(HEADERS, END_HEADERS, 1, block()))
        body = bytes(size_bytes)
        while body:
            piece, body = body[:piece_bytes], body[piece_bytes:]
            session.receive(frame(DATA, 0 if body else END_STREAM, 1, piece))
        (exchange,) = session.ended
        assert exchange.outcome == outcome
        if outcome == ANSWERED:
            assert exchange.body == bytes(size_bytes)
        else:
            assert (RST_STREAM, 0, 1, CANCEL.to_bytes(4)) in frames(session.take()[len(PREFACE) :])


@pytest.mark.parametrize(
    "fields",
    [
        ((b"content-type", b"text/html"),),
        ((b":status", b"20"),),
        ((b":status", b"abc"),),
        ((b":status", b"-20"),),
        ((b":status", b""),),
    ],
)
def test_response_without_a_status_is_malformed(
    ready: Http2Session, fields: tuple[tuple[bytes, bytes], ...]
) -> None:
    ready.receive(frame(HEADERS, END_HEADERS, 1, block(*fields)))
    (exchange,) = ready.ended
    assert exchange.outcome == MALFORMED
    assert frames(ready.take())[-1] == (RST_STREAM, 0, 1, PROTOCOL_ERROR.to_bytes(4))


def test_response_beginning_with_its_body_is_malformed(ready: Http2Session) -> None:
    ready.receive(frame(DATA, END_STREAM, 1, b"body"))
    assert ready.ended[0].outcome == MALFORMED


def test_response_before_the_request_is_out_ends_it() -> None:
    session = Http2Session(TARGET)
    server = Server(session, {SettingCodes.INITIAL_WINDOW_SIZE: 10})
    session.request(attempt(), MESSAGE)
    server.exchange_bytes()
    assert server.bodies[1] == MESSAGE[:10]
    server.answer(1, b"enough")
    server.exchange_bytes()
    assert session.ended[0].body == b"enough"
    assert any(isinstance(event, h2.events.StreamReset) for event in server.events)


# -- what the server refuses --------------------------------------------------------------------


def test_stream_refused_is_told_from_one_that_failed() -> None:
    session = Http2Session(TARGET)
    for _ in range(2):
        session.request(attempt(), MESSAGE)
    server = Server(session)
    server.h2.reset_stream(1, REFUSED_STREAM)
    server.h2.reset_stream(3, 2)
    server.exchange_bytes()
    assert [(each.stream, each.outcome, each.error) for each in session.ended] == [
        (1, REFUSED, "refused stream"),
        (3, RESET, "internal error"),
    ]
    assert session.held == 0


def test_goaway_hands_back_the_streams_above_and_lets_the_others_finish(
    ready: Http2Session,
) -> None:
    encoder = hpack.Encoder()
    for _ in range(3):
        ready.request(attempt(), MESSAGE)
    ready.receive(frame(GOAWAY, 0, 0, (MAX_STREAM_ID).to_bytes(4) + bytes(4)))
    assert ready.closing
    assert not ready.room
    assert ready.ended == []
    ready.receive(frame(GOAWAY, 0, 0, (3).to_bytes(4) + bytes(4) + b"maintenance"))
    assert [(each.stream, each.outcome) for each in ended(ready)] == [(5, UNSERVED), (7, UNSERVED)]
    for stream in (3, 1):
        ready.receive(frame(HEADERS, END_HEADERS, stream, encoder.encode((OK, DNS))))
        ready.receive(frame(DATA, END_STREAM, stream, b"late"))
    assert [(each.stream, each.outcome) for each in ended(ready)] == [(3, ANSWERED), (1, ANSWERED)]


def test_streams_at_once_are_as_many_as_the_server_allows(ready: Http2Session) -> None:
    ready.receive(settings({SettingCodes.MAX_CONCURRENT_STREAMS: 2}))
    assert ready.room
    ready.request(attempt(), MESSAGE)
    assert not ready.room
    ready.receive(frame(RST_STREAM, 0, 1, REFUSED_STREAM.to_bytes(4)))
    assert ready.room
    ready.receive(settings({SettingCodes.MAX_CONCURRENT_STREAMS: 0}))
    assert not ready.room


def test_streams_before_the_settings_are_few_and_the_rest_follows_as_they_allow() -> None:
    session = Http2Session(TARGET)
    attempts = [attempt() for _ in range(http2.REQUESTS_AT_FIRST)]
    for each in attempts:
        assert session.room
        session.request(each, MESSAGE)
    assert not session.room
    assert session.held == http2.REQUESTS_AT_FIRST
    server = Server(session, {SettingCodes.MAX_CONCURRENT_STREAMS: 12})
    assert len(server.complete) == 12
    assert not session.room
    for each in attempts[20:]:
        each.closed = True
    session.drop_closed()
    answered: list[Any] = []
    while server.complete:
        server.answer(server.complete.pop(0), b"reply")
        server.exchange_bytes()
        answered += [each.attempt for each in ended(session)]
    assert answered == attempts[:20]


def test_streams_not_opened_before_the_settings_are_spared_those_given_up_meanwhile() -> None:
    session = Http2Session(TARGET)
    attempts = [attempt() for _ in range(http2.STREAMS_AT_FIRST + 3)]
    for each in attempts:
        session.request(each, MESSAGE)
    attempts[-2].closed = True
    session.receive(HELLO)
    assert [each.attempt for each in session.exchanges.values()] == attempts[:-2] + attempts[-1:]
    assert session.left == [attempts[-3], attempts[-1]]


def test_streams_not_opened_before_a_goaway_are_handed_back() -> None:
    session = Http2Session(TARGET)
    for _ in range(http2.STREAMS_AT_FIRST + 2):
        session.request(attempt(), MESSAGE)
    session.receive(HELLO + frame(GOAWAY, 0, 0, MAX_STREAM_ID.to_bytes(4) + bytes(4)))
    assert [each.outcome for each in session.ended] == [UNSERVED] * 2
    assert session.held == http2.STREAMS_AT_FIRST


def test_streams_at_once_are_bounded_whatever_the_server_allows() -> None:
    session = Http2Session(TARGET)
    session.receive(settings({SettingCodes.MAX_CONCURRENT_STREAMS: 2**32 - 1}))
    while session.room:
        session.request(attempt(), MESSAGE)
    assert session.held == http2.MAX_STREAMS


def test_requests_given_up_are_cancelled_and_late_answers_to_them_passed_over(
    ready: Http2Session,
) -> None:
    given_up = attempt(closed=True)
    ready.request(given_up, MESSAGE)
    ready.take()
    ready.drop_closed()
    assert ready.held == 1
    assert frames(ready.take()) == [(RST_STREAM, 0, 3, CANCEL.to_bytes(4))]
    encoder = hpack.Encoder()
    ready.receive(frame(HEADERS, END_HEADERS, 3, encoder.encode((OK, DNS, (b"x-a", b"1")))))
    ready.receive(frame(DATA, END_STREAM, 3, b"late"))
    ready.receive(frame(HEADERS, END_HEADERS, 1, encoder.encode((OK, DNS, (b"x-a", b"1")))))
    ready.receive(frame(DATA, END_STREAM, 1, b"due"))
    assert [(each.stream, each.body) for each in ready.ended] == [(1, b"due")]


# -- flow control -------------------------------------------------------------------------------


def test_request_larger_than_a_window_goes_as_it_opens() -> None:
    session = Http2Session(TARGET)
    server = Server(session)
    message = bytes(range(256)) * 250
    session.request(attempt(), message)
    session.request(attempt(), message)
    server.exchange_bytes()
    assert server.bodies[1] == message
    assert server.bodies[3] == message[: 65_535 - 64_000]
    server.open_window(10_000)
    assert len(server.bodies[3]) == 65_535 - 64_000 + 10_000
    session.request(attempt(), b"last")
    server.open_window(10_000)
    server.open_window(60_000)
    assert server.bodies == {1: message, 3: message, 5: b"last"}
    assert sorted(server.complete) == [1, 3, 5]


def test_request_into_streams_without_a_window_goes_as_each_opens() -> None:
    session = Http2Session(TARGET)
    server = Server(session, {SettingCodes.INITIAL_WINDOW_SIZE: 0})
    session.request(attempt(), MESSAGE)
    session.request(attempt(), MESSAGE)
    server.exchange_bytes()
    assert server.complete == []
    server.open_window(59, 3)
    assert server.bodies == {1: b"", 3: MESSAGE[:59]}
    server.open_window(100, 3)
    assert server.complete == [3]
    server.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 30})
    server.exchange_bytes()
    assert server.bodies[1] == MESSAGE[:30]
    server.open_window(30, 1)
    assert server.complete == [3, 1]


def test_request_into_a_window_that_shrinks_below_nothing_waits() -> None:
    session = Http2Session(TARGET)
    server = Server(session, {SettingCodes.INITIAL_WINDOW_SIZE: 40})
    session.request(attempt(), MESSAGE)
    server.exchange_bytes()
    server.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    server.exchange_bytes()
    server.open_window(40, 1)
    assert server.bodies[1] == MESSAGE[:40]
    server.open_window(20, 1)
    assert server.bodies[1] == MESSAGE


def test_requests_whose_bodies_may_not_go_are_bounded() -> None:
    session = Http2Session(TARGET)
    session.receive(settings({SettingCodes.INITIAL_WINDOW_SIZE: 0}))
    attempts = []
    while session.room:
        attempts.append(attempt())
        session.request(attempts[-1], MESSAGE)
    assert session.held == http2.MAX_BLOCKED
    attempts[7].closed = True
    session.drop_closed()
    assert session.room
    session.request(attempt(), MESSAGE)
    session.receive(frame(RST_STREAM, 0, 1, REFUSED_STREAM.to_bytes(4)))
    assert session.room
    session.take()
    session.receive(settings({SettingCodes.INITIAL_WINDOW_SIZE: 100}))
    assert len([stream for kind, _, stream, _ in frames(session.take()) if kind == DATA]) == 99


def test_bodies_of_any_number_find_the_window_open() -> None:
    session = Http2Session(TARGET)
    server = Server(session)
    taken = 0
    for _ in range(150):
        session.request(attempt(), MESSAGE)
        server.exchange_bytes()
        server.answer(server.complete[-1], bytes(60_000))
        server.exchange_bytes()
        taken += len(ended(session)[0].body)
    assert taken == 9_000_000 > 2 * CONNECTION_WINDOW


def test_bodies_that_are_not_completed_are_bounded_by_the_window() -> None:
    session = Http2Session(TARGET)
    session.receive(HELLO)
    encoder = hpack.Encoder()

    def fill() -> Iterator[bytes]:
        for stream in range(1, 2 * 300, 2):
            yield frame(HEADERS, END_HEADERS, stream, encoder.encode((OK, DNS)))
            for _ in range(3):
                yield frame(DATA, 0, stream, bytes(16_384))

    for _ in range(300):
        session.request(attempt(), MESSAGE)
    with pytest.raises(Http2Error, match="more data than allowed") as broken:
        feed(session, fill())
    assert broken.value.code == FLOW_CONTROL_ERROR
    assert sum(len(each.body) for each in session.exchanges.values()) <= CONNECTION_WINDOW


# -- signs of life ------------------------------------------------------------------------------


def test_ping_of_either_side_is_answered(ready: Http2Session) -> None:
    ready.receive(frame(PING, 0, 0, b"abcdefgh"))
    assert frames(ready.take()) == [(PING, ACK, 0, b"abcdefgh")]
    assert ready.ping()
    ((kind, flags, stream, data),) = frames(ready.take())
    assert (kind, flags, stream) == (PING, 0, 0)
    ready.receive(frame(PING, ACK, 0, data))
    assert not ready.has_output


def test_literal_of_any_length_is_read_back_by_the_library() -> None:
    for size in (0, 1, 126, 127, 128, 254, 255, 5_000):
        (field,) = hpack.Decoder().decode(literal(b"\x04", b"x" * size), raw=True)
        assert tuple(field) == (b":path", b"x" * size)
