"""What clients may send: questions are taken, all else is answered or dropped, and counted."""

from __future__ import annotations

import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import layout
from tests.engine.driver import Driver
from tests.rig.wire import (
    FORMERR,
    NOTIMP,
    SERVFAIL,
    opt_wire,
    query_wire,
    question_wire,
    reply_wire,
)


def message(flags: int = 0x0100, qdcount: int = 1, body: bytes | None = None) -> bytes:
    question = question_wire("q.t.example", 16) if body is None else body
    return b"\xab\xcd" + flags.to_bytes(2, "big") + qdcount.to_bytes(2, "big") + bytes(6) + question


LONG_NAME = (b"\x3f" + b"x" * 63) * 3 + b"\x3e" + b"y" * 62 + b"\0"

BAD = {
    "no_question": (message(qdcount=0, body=b""), FORMERR),
    "question_not_counted": (message(qdcount=0), FORMERR),
    "two_questions": (message(qdcount=2), FORMERR),
    "many_questions": (message(qdcount=0xFFFF), FORMERR),
    "pointer": (message(body=b"\xc0\x0c\x00\x10\x00\x01"), FORMERR),
    "pointer_loop": (message(body=b"\x01a\xc0\x0c\x00\x10\x00\x01"), FORMERR),
    "label_of_64": (message(body=b"\x40" + b"x" * 64 + b"\0\0\x10\0\1"), FORMERR),
    "name_of_256": (message(body=LONG_NAME + b"\0\x10\0\1"), FORMERR),
    "name_without_end": (message(body=b"\x03abc"), FORMERR),
    "no_class": (message(body=b"\x01a\0\0\x10"), FORMERR),
    "header_alone": (message(body=b""), FORMERR),
    "iquery": (message(flags=1 << 11), NOTIMP),
    "status": (message(flags=2 << 11), NOTIMP),
    "notify": (message(flags=4 << 11), NOTIMP),
    "update": (message(flags=5 << 11, body=question_wire("t.example", 6)), NOTIMP),
    "opcode_15": (message(flags=15 << 11), NOTIMP),
    "opcode_without_question": (message(flags=2 << 11, qdcount=0, body=b""), NOTIMP),
    "opcode_undecodable": (message(flags=2 << 11, body=b"\xc0\x0c"), NOTIMP),
}

DROPPED = {
    "empty": (b"", "client_short"),
    "one_byte": (b"\0", "client_short"),
    "eleven_bytes": (message()[:11], "client_short"),
    "response": (message(flags=0x8180), "client_response"),
    "response_of_a_kind": (message(flags=0x8000 | 5 << 11, qdcount=0), "client_response"),
    "our_own_error": (message(flags=0x8181, body=b"", qdcount=0), "client_response"),
}


@pytest.mark.parametrize(("wire", "rcode"), BAD.values(), ids=BAD)
def test_input_that_is_no_query_is_answered_and_counted(wire: bytes, rcode: int) -> None:
    driver = Driver("a")
    asked = driver.ask(wire)
    reply = dns.message.from_wire(asked.reply)
    assert reply.id == 0xABCD
    assert reply.rcode() == rcode
    assert asked.reply[2] & 0x80
    assert asked.reply[2] & 0x78 == wire[2] & 0x78
    assert driver.all_dropped == {"client_notimp" if rcode == NOTIMP else "client_formerr": 1}
    driver.advance(6.0)
    assert len(asked.replies) == 1
    assert driver.sent == []
    assert driver.board.pool_total(0, layout.POOL_QUERIES) == 0
    assert driver.engines[0].counters.pending == 0


@pytest.mark.parametrize(("wire", "reason"), DROPPED.values(), ids=DROPPED)
def test_input_that_deserves_no_answer_is_dropped_and_counted(wire: bytes, reason: str) -> None:
    driver = Driver("a")
    asked = driver.ask(wire)
    driver.advance(6.0)
    assert asked.replies == []
    assert driver.sent == []
    assert driver.all_dropped == {reason: 1}
    assert driver.engines[0].counters.pending == 0


@pytest.mark.parametrize("flags", [0x0000, 0x0100, 0x0110, 0x0130, 0x0780, 0x070F])
def test_input_with_any_flags_of_a_query_is_passed_as_it_is(flags: int) -> None:
    driver = Driver("a")
    wire = message(flags=flags)
    driver.ask(wire)
    assert driver.last.wire[2:] == wire[2:]
    assert driver.all_dropped == {}


@pytest.mark.parametrize("trailing", [b"\0", b"trailing bytes", opt_wire(4096), opt_wire(512)[:-3]])
def test_input_with_more_behind_its_question_is_passed_as_it_is(trailing: bytes) -> None:
    driver = Driver("a")
    wire = message() + trailing
    driver.ask(wire)
    assert driver.last.wire[2:] == wire[2:]


@given(st.binary(max_size=300))
def test_input_of_any_bytes_is_taken_answered_or_dropped(wire: bytes) -> None:
    driver = Driver("a")
    asked = driver.ask(wire)
    outcomes = len(driver.sent) + len(asked.replies)
    if not outcomes:
        assert set(driver.all_dropped) <= {"client_short", "client_response"}
        outcomes = sum(driver.all_dropped.values())
    assert outcomes == 1


@given(st.integers(0, 60), st.integers(0, 255))
def test_input_with_one_byte_changed_does_not_disturb_the_next(place: int, value: int) -> None:
    driver = Driver("a")
    wire = bytearray(query_wire("abcdef.t.example", opt=opt_wire(1232)))
    wire[place % len(wire)] = value
    driver.ask(bytes(wire))
    asked = driver.ask()
    driver.last.answer()
    assert len(asked.replies) == 1


def test_input_beyond_max_pending_fails_at_once_and_is_counted() -> None:
    driver = Driver("a", max_pending=3)
    held = [driver.ask() for _ in range(3)]
    refused = driver.ask()
    assert refused.reply[3] & 0x0F == SERVFAIL
    assert driver.all_dropped == {"client_overload": 1}
    assert len(driver.sent) == 3
    driver.sent[0].answer()
    driver.ask()
    assert len(driver.sent) == 4
    assert [len(each.replies) for each in held] == [1, 0, 0]
    assert driver.engines[0].counters.pending == 3


def test_input_beyond_max_pending_of_a_silent_profile_is_only_counted() -> None:
    driver = Driver("a", max_pending=1, silent_failure=True)
    driver.ask()
    assert driver.ask().replies == []
    assert driver.all_dropped == {"client_overload": 1}


def test_input_without_any_resolver_fails_at_once() -> None:
    driver = Driver()
    asked = driver.ask()
    assert asked.reply[3] & 0x0F == SERVFAIL
    assert driver.engines[0].counters.pending == 0
    driver.advance(0.02)
    assert driver.board.pool_total(0, layout.POOL_FAILURES) == 1


def test_input_that_is_a_resolvers_reply_is_never_an_answer_to_anything() -> None:
    driver = Driver("a")
    asked = driver.ask()
    driver.ask(reply_wire(driver.last.wire))
    assert asked.replies == []
    assert driver.all_dropped == {"client_response": 1}
