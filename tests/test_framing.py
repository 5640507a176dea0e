"""Messages on a stream, however it is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.transports.framing import MAX_MESSAGE_BYTES, Deframer, frame

messages = st.lists(st.binary(max_size=300), max_size=12)


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(place % (len(stream) + 1) for place in at)})
    return [stream[a:b] for a, b in pairwise(places)]


@given(messages, st.lists(st.integers(0, 10_000), max_size=40))
def test_deframer_of_any_split_gives_the_same_messages(sent: list[bytes], at: list[int]) -> None:
    stream = b"".join(frame(message) for message in sent)
    deframer = Deframer()
    got = [message for part in cut(stream, at) for message in deframer.feed(part)]
    assert got == sent
    assert deframer.held_bytes == 0


@given(messages, st.binary(max_size=200))
def test_deframer_of_single_bytes_gives_the_same_messages(sent: list[bytes], rest: bytes) -> None:
    stream = b"".join(frame(message) for message in sent) + frame(rest)[:-1]
    deframer = Deframer()
    got = [message for byte in stream for message in deframer.feed(bytes((byte,)))]
    assert got == sent
    assert deframer.held_bytes == len(rest) + 1


@given(st.lists(st.binary(max_size=100), max_size=20))
def test_deframer_of_any_bytes_never_raises_and_holds_one_message_at_most(
    parts: list[bytes],
) -> None:
    deframer = Deframer()
    given_out = 0
    for part in parts:
        given_out += sum(len(message) + 2 for message in deframer.feed(part))
        assert deframer.held_bytes < MAX_MESSAGE_BYTES + 2
    assert given_out + deframer.held_bytes == sum(map(len, parts))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_534, 65_535])
def test_frame_of_every_size_has_it_before_the_message(size: int) -> None:
    message = bytes(size)
    framed = frame(message)
    assert framed == size.to_bytes(2, "big") + message
    assert Deframer().feed(framed) == [message]


def test_frame_of_a_message_that_no_length_can_say_is_refused() -> None:
    with pytest.raises(OverflowError):
        frame(bytes(MAX_MESSAGE_BYTES + 1))


def test_deframer_fed_the_largest_message_byte_by_byte_gives_it() -> None:
    # A client may do this on purpose: work per byte must not grow with what is held.
    framed = frame(bytes(MAX_MESSAGE_BYTES))
    deframer = Deframer()
    got: list[bytes] = []
    for position in range(len(framed)):
        got += deframer.feed(framed[position : position + 1])
    assert got == [bytes(MAX_MESSAGE_BYTES)]
