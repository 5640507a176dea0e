"""What counts as an answer, and that it reaches the client as the resolver sent it."""

from __future__ import annotations

import dns.flags
import dns.message
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import layout
from tests.engine.driver import Driver, Sent, answers
from tests.rig.wire import (
    FLAG_AA,
    FLAG_QR,
    FLAG_TC,
    NOERROR,
    NXDOMAIN,
    TYPE_NULL,
    TYPE_PRIVATE,
    longest_name,
    opt_wire,
    query_wire,
    question_of,
    record_wire,
    reply_of_size,
    reply_wire,
    with_id,
)
from workers.engine.pending import FIRST, HEDGE, RETRY

# -- a query and its answer ---------------------------------------------------------------------


def test_query_goes_out_unchanged_but_for_its_id() -> None:
    driver = Driver("a")
    wire = query_wire([b"MiXeD\xe9\x00.", b"T"], TYPE_PRIVATE, message_id=7, opt=opt_wire(4096))
    driver.ask(wire)
    (sent,) = driver.sent
    assert (sent.name, sent.kind, sent.at) == ("a", FIRST, driver.now)
    assert sent.wire == with_id(wire, int.from_bytes(sent.wire[:2], "big"))
    assert repr(driver.engines[0]).startswith("<Engine pool pending=1 <Selection auto ready=[a] ")
    assert repr(sent.attempt) == "<Attempt a kind=0 closed=False>"


def test_answer_reaches_the_client_under_its_own_id() -> None:
    driver = Driver("a")
    asked = driver.ask(query_wire("Q.t.example", message_id=0))
    record = record_wire(TYPE_NULL, bytes(range(256)), ttl_s=4_000_000_000)
    said = driver.last.answer([record, record], flags=FLAG_QR | FLAG_AA)
    assert asked.reply == b"\0\0" + said[2:]
    assert driver.engines[0].counters.pending == 0
    assert repr(driver.last.attempt) == "<Attempt a kind=0 closed=True>"
    assert repr(driver.last.attempt.query) == "<Query open=0 answered=True tried=1>"


def test_answer_with_another_case_gets_the_clients_own_question_back() -> None:
    driver = Driver("a")
    asked = driver.ask(query_wire("AbCdEf.T.Example", TYPE_NULL, message_id=0x1234))
    sent = driver.last
    question = question_of(asked.wire)
    said = reply_wire(sent.wire, [record_wire(TYPE_NULL, b"AbC")])
    sent.say(said.replace(question[:-4], question[:-4].lower()))
    assert asked.reply == asked.wire[:2] + said[2:]
    assert question_of(asked.reply) == question


@pytest.mark.parametrize("rcode", [NOERROR, NXDOMAIN, 6, 9, 10])
def test_answer_that_holds_no_data_is_an_answer(rcode: int) -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    driver.last.answer(rcode=rcode)
    driver.advance(1.0)
    assert [wire[3] & 0x0F for wire in asked.replies] == [rcode]
    assert driver.counted("a", layout.COUNTER_ANSWERED) == 1
    assert driver.counted("a", layout.COUNTER_REFUSED) == 0
    assert driver.sent_to("b") == []


def test_answer_with_the_longest_name_passes() -> None:
    driver = Driver("a")
    asked = driver.ask(query_wire(longest_name("t.example", b"\xff"), TYPE_NULL))
    driver.last.answer()
    assert asked.reply[:2] == asked.wire[:2]


def test_answer_of_the_greatest_size_passes_whole_to_a_udp_client() -> None:
    driver = Driver("a")
    asked = driver.ask(query_wire("q.t.example", TYPE_NULL))
    driver.last.say(reply_of_size(driver.last.wire, 65_507))
    assert len(asked.reply) == 65_507
    assert driver.all_dropped == {}


def test_clients_that_all_use_one_id_get_each_their_own_answer() -> None:
    driver = Driver("a", "b", "c")
    asked = [driver.ask(query_wire("same.t.example", message_id=0)) for _ in range(200)]
    for number, sent in enumerate(driver.sent):
        sent.answer([record_wire(TYPE_NULL, number.to_bytes(2, "big"))])
    assert [each.reply[-2:] for each in asked] == [n.to_bytes(2, "big") for n in range(200)]
    assert {each.reply[:2] for each in asked} == {b"\0\0"}


def test_equal_questions_each_reach_a_resolver() -> None:
    driver = Driver("a")
    wire = query_wire("same.t.example", message_id=5)
    driver.ask(wire)
    driver.ask(wire)
    assert len(driver.sent) == 2


# -- what does not count ------------------------------------------------------------------------


def _other_id(sent: Sent) -> bytes:
    reply = reply_wire(sent.wire)
    return with_id(reply, (int.from_bytes(reply[:2], "big") + 1) & 0xFFFF)


def _other_name(sent: Sent) -> bytes:
    return reply_wire(sent.wire[:2] + query_wire("X.t.example", message_id=0)[2:])


def _same_length_name(sent: Sent) -> bytes:
    reply = bytearray(reply_wire(sent.wire))
    reply[13] ^= 0x01
    return bytes(reply)


def _other_type(sent: Sent) -> bytes:
    reply = bytearray(reply_wire(sent.wire))
    reply[len(question_of(sent.wire)) + 12 - 3] ^= 0x20
    return bytes(reply)


def _other_class(sent: Sent) -> bytes:
    reply = bytearray(reply_wire(sent.wire))
    reply[len(question_of(sent.wire)) + 12 - 1] ^= 0x20
    return bytes(reply)


def _cut_in_question(sent: Sent) -> bytes:
    return reply_wire(sent.wire)[:20]


def _without_question(sent: Sent) -> bytes:
    return sent.wire[:2] + FLAG_QR.to_bytes(2, "big") + bytes(8)


def _two_questions(sent: Sent) -> bytes:
    reply = reply_wire(sent.wire)
    return reply[:4] + b"\0\2" + reply[6:] + question_of(sent.wire)


def _no_question_counted(sent: Sent) -> bytes:
    reply = reply_wire(sent.wire)
    return reply[:4] + b"\0\0" + reply[6:]


def _refusal_of_another(sent: Sent) -> bytes:
    return reply_wire(sent.wire[:2] + query_wire("X.t.example", message_id=0)[2:], rcode=5)


def _no_response(sent: Sent) -> bytes:
    return sent.wire


def _header_cut(sent: Sent) -> bytes:
    return reply_wire(sent.wire)[:11]


def _only_id(sent: Sent) -> bytes:
    return sent.wire[:2]


def _nothing(sent: Sent) -> bytes:
    return b""


def _one_byte(sent: Sent) -> bytes:
    return sent.wire[:1]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_other_id, "reply_unmatched"),
        (_other_name, "reply_unmatched"),
        (_same_length_name, "reply_unmatched"),
        (_other_type, "reply_unmatched"),
        (_other_class, "reply_unmatched"),
        (_cut_in_question, "reply_unmatched"),
        (_without_question, "reply_unmatched"),
        (_two_questions, "reply_unmatched"),
        (_no_question_counted, "reply_unmatched"),
        (_refusal_of_another, "reply_unmatched"),
        (_no_response, "reply_malformed"),
        (_header_cut, "reply_malformed"),
        (_only_id, "reply_malformed"),
        (_nothing, "reply_malformed"),
        (_one_byte, "reply_malformed"),
    ],
    ids=lambda value: value.__name__[1:] if callable(value) else "",
)
def test_reply_that_does_not_match_is_counted_and_the_wait_goes_on(
    make: object, reason: str
) -> None:
    assert callable(make)
    driver = Driver("a")
    asked = driver.ask()
    sent = driver.last
    sent.say(make(sent))
    assert driver.all_dropped == {reason: 1}
    assert asked.replies == []
    assert not sent.attempt.closed
    assert driver.counted("a", layout.COUNTER_REFUSED) == 0
    sent.answer()
    assert len(asked.replies) == 1


def test_reply_that_comes_twice_counts_once() -> None:
    driver = Driver("a")
    asked = driver.ask()
    driver.last.answer()
    driver.last.answer()
    assert len(asked.replies) == 1
    assert driver.all_dropped == {"reply_unmatched": 1}


def test_reply_on_another_resolvers_socket_does_not_count() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    driver.ask()
    first, second = driver.sent
    second.say(reply_wire(first.wire))
    assert asked.replies == []
    assert driver.all_dropped == {"reply_unmatched": 1}
    first.answer()
    assert len(asked.replies) == 1


def test_reply_after_the_query_was_given_up_is_counted_as_unmatched() -> None:
    driver = Driver("a", deadline_s=1.0)
    asked = driver.ask()
    sent = driver.sent[0]
    driver.advance(1.1)
    assert len(asked.replies) == 1
    sent.answer()
    assert len(asked.replies) == 1
    assert driver.all_dropped == {"reply_unmatched": 1}


@given(st.binary(max_size=200), st.booleans())
def test_reply_of_any_bytes_never_raises_and_never_passes(tail: bytes, right_id: bool) -> None:
    driver = Driver("a")
    asked = driver.ask()
    sent = driver.last
    sent.say((sent.wire[:2] if right_id else b"") + tail)
    driver.advance(0.02)
    for reply in asked.replies:  # whatever was let through carries the question
        assert reply[:2] == asked.wire[:2]
        assert reply[12 : len(asked.wire)].lower() == asked.wire[12:].lower()
    assert sum(driver.all_dropped.values()) + driver.counted("a", layout.COUNTER_REFUSED) == 1


@given(st.integers(0, 60), st.integers(1, 255))
def test_reply_with_one_byte_changed_is_passed_only_with_id_and_question_intact(
    place: int, flip: int
) -> None:
    driver = Driver("a")
    asked = driver.ask()
    sent = driver.last
    reply = bytearray(reply_wire(sent.wire, [record_wire(TYPE_NULL, bytes(40))]))
    reply[place] ^= flip
    sent.say(bytes(reply))
    driver.advance(0.02)
    assert driver.counted("a", layout.COUNTER_ANSWERED) == len(
        [each for each in asked.replies if each[3] & 0x0F not in (1, 2, 4, 5)]
    )
    for each in asked.replies:
        assert each[:2] == asked.wire[:2]
        assert question_of(each) == question_of(asked.wire)


# -- more than one answer -----------------------------------------------------------------------


def test_late_answer_after_the_hedges_is_delivered_too() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    driver.advance(0.1)
    first, hedge = driver.sent
    assert (hedge.name, hedge.kind) == ("b", HEDGE)
    hedge.answer([record_wire(TYPE_NULL, b"hedge")])
    driver.advance(1.5)
    first.answer([record_wire(TYPE_NULL, b"first")])
    assert [reply[-5:] for reply in asked.replies] == [b"hedge", b"first"]
    driver.advance(0.02)
    assert driver.board.pool_total(0, layout.POOL_ANSWERS) == 2
    assert driver.board.pool_total(0, layout.POOL_ANSWERED) == 1
    assert driver.counted("a", layout.COUNTER_LATE) == 1
    assert driver.engines[0].counters.pending == 0


def test_late_answer_on_a_stream_client_is_counted_and_not_sent_twice() -> None:
    driver = Driver("a", "b")
    asked = driver.ask(stream=True)
    driver.advance(0.1)
    first, hedge = driver.sent
    hedge.answer()
    first.answer()
    driver.advance(0.02)
    assert len(asked.replies) == 1
    assert driver.counted("a", layout.COUNTER_LATE) == 1


def test_late_refusal_after_an_answer_is_kept_from_the_client() -> None:
    driver = Driver("a", "b", "c")
    asked = driver.ask()
    driver.advance(0.05)
    driver.sent[1].answer()
    driver.sent[0].refuse()
    driver.advance(3.0)
    assert len(asked.replies) == 1
    assert len(driver.sent) == 2


# -- truncation ---------------------------------------------------------------------------------


def test_truncated_answer_to_a_udp_client_is_passed() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    said = driver.last.answer(flags=FLAG_QR | FLAG_TC)
    assert asked.reply == asked.wire[:2] + said[2:]
    driver.advance(1.0)
    assert len(driver.sent) == 1


def test_truncated_answer_to_a_stream_client_is_fetched_again_over_a_stream() -> None:
    driver = Driver("a", "b")
    asked = driver.ask(stream=True)
    driver.last.answer(flags=FLAG_QR | FLAG_TC)
    assert asked.replies == []
    first, again = driver.sent
    assert (first.attempt.over_stream, again.attempt.over_stream) == (False, True)
    assert (again.name, again.kind) == ("a", RETRY)
    assert again.wire[2:] == asked.wire[2:]
    again.say(reply_of_size(again.wire, 60_000))
    assert len(asked.reply) == 60_000


def test_truncated_answer_fetched_in_vain_goes_elsewhere() -> None:
    driver = Driver("a", "b")
    asked = driver.ask(stream=True)
    driver.last.answer(flags=FLAG_QR | FLAG_TC)
    driver.last.break_off()
    assert driver.last.name == "b"
    driver.last.answer()
    assert len(asked.replies) == 1


def test_truncated_answer_over_a_stream_is_passed() -> None:
    driver = Driver("tcp:a")
    asked = driver.ask(stream=True)
    driver.last.answer(flags=FLAG_QR | FLAG_TC)
    assert asked.reply[2] & 0x02


@pytest.mark.parametrize(
    ("advertised", "size", "is_cut"),
    [
        (None, 512, False),
        (None, 513, True),
        (0, 512, False),
        (100, 513, True),
        (1232, 1232, False),
        (1232, 1233, True),
        (4096, 4096, False),
        (65_535, 65_507, False),
        (65_535, 65_508, True),  # no UDP datagram holds it
    ],
)
def test_stream_fetched_reply_is_cut_to_what_a_generic_client_advertised(
    advertised: int | None, size: int, is_cut: bool
) -> None:
    driver = Driver("tcp:a")
    opt = b"" if advertised is None else opt_wire(advertised)
    asked = driver.ask(query_wire("Q.t.example", TYPE_NULL, message_id=9, opt=opt))
    driver.last.say(reply_of_size(driver.last.wire, size))
    assert bool(asked.reply[2] & 0x02) == is_cut
    if is_cut:
        parsed = dns.message.from_wire(asked.reply)
        assert parsed.id == 9
        assert parsed.flags & dns.flags.TC
        assert parsed.question == dns.message.from_wire(asked.wire).question
        assert parsed.answer == []
        assert driver.all_dropped == {"reply_oversize": 1}
    else:
        assert len(asked.reply) == size
        assert driver.all_dropped == {}


def test_stream_fetched_reply_for_a_tunnel_is_not_cut_to_the_advertised_size() -> None:
    driver = Driver("tcp:a", cut_to_client_size=False)
    asked = driver.ask(query_wire("q.t.example", TYPE_NULL))
    driver.last.say(reply_of_size(driver.last.wire, 4_749))
    assert len(asked.reply) == 4_749


def test_stream_fetched_reply_too_large_for_any_datagram_is_cut_for_a_tunnel_too() -> None:
    driver = Driver("tcp:a", cut_to_client_size=False)
    asked = driver.ask(query_wire("q.t.example", TYPE_NULL, opt=opt_wire(65_535)))
    driver.last.say(reply_of_size(driver.last.wire, 65_508))
    assert asked.reply[2] & 0x02
    assert len(asked.reply) < 512


def test_stream_fetched_reply_for_a_stream_client_is_whole() -> None:
    driver = Driver("tcp:a")
    asked = driver.ask(stream=True)
    driver.last.say(reply_of_size(driver.last.wire, 65_535))
    assert len(asked.reply) == 65_535


def test_udp_fetched_reply_larger_than_advertised_is_not_cut() -> None:
    driver = Driver("a")
    asked = driver.ask(query_wire("q.t.example", TYPE_NULL, opt=opt_wire(512)))
    driver.last.say(reply_of_size(driver.last.wire, 4_749))
    assert len(asked.reply) == 4_749


# -- several workers ----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_traffic_over_any_number_of_workers_is_answered_once_each(workers: int) -> None:
    driver = Driver("a", "b", workers=workers)
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.025))
    asked = driver.traffic(rate_qps=200, seconds=3.0)
    driver.advance(0.2)
    assert {len(each.replies) for each in asked} == {1}
    assert driver.board.pool_total(0, layout.POOL_QUERIES) == 600
    assert driver.board.pool_total(0, layout.POOL_ANSWERED) == 600
    assert driver.board.pool_total(0, layout.POOL_FAILURES) == 0
    assert [engine.counters.pending for engine in driver.engines] == [0] * workers
