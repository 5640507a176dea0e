"""Refusals, losses and network errors: where the query goes next, and what its client hears."""

from __future__ import annotations

import itertools

import pytest

from shared import layout
from tests.engine.driver import (
    Driver,
    answers,
    header_only,
    in_turn,
    is_closed,
    is_silent,
    refuses,
)
from tests.rig.wire import FORMERR, NOTIMP, REFUSED, SERVFAIL
from workers.engine.health import State
from workers.engine.pending import RETRY

SLOT_S = 0.0041
"""How late a timer may be."""

# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rcode", [REFUSED, SERVFAIL])
def test_refusal_goes_to_another_resolver_at_once_and_unseen(rcode: int) -> None:
    driver = Driver("a", "b", "c")
    asked = driver.ask()
    driver.last.refuse(rcode)
    assert [sent.name for sent in driver.sent] == ["a", "b"]
    assert (driver.last.kind, driver.last.at) == (RETRY, driver.now)
    assert driver.last.wire[2:] == asked.wire[2:]
    driver.last.refuse(rcode)
    assert driver.last.name == "c"
    assert asked.replies == []
    said = driver.last.answer()
    assert asked.reply == asked.wire[:2] + said[2:]
    driver.advance(0.02)
    assert driver.counted("a", layout.COUNTER_REFUSED) == 1
    assert driver.board.pool_total(0, layout.POOL_RETRIES) == 2
    assert driver.word("a", layout.RESOLVER_REFUSED_AT) > 0
    assert driver.word("c", layout.RESOLVER_REFUSED_AT) == 0


@pytest.mark.parametrize("rcode", [REFUSED, SERVFAIL])
def test_refusal_by_all_gives_exactly_one_servfail(rcode: int) -> None:
    driver = Driver("a", "b", "c")
    asked = driver.ask()
    for _ in range(3):
        driver.last.refuse(rcode)
    assert asked.reply[3] & 0x0F == SERVFAIL
    assert asked.reply[:2] == asked.wire[:2]
    driver.advance(6.0)
    assert len(asked.replies) == 1
    assert len(driver.sent) == 3
    assert driver.board.pool_total(0, layout.POOL_FAILURES) == 1
    assert driver.engines[0].counters.pending == 0


@pytest.mark.parametrize("is_at_limit", [False, True])
def test_servfail_by_all_is_no_limit_though_one_of_them_was_at_one(is_at_limit: bool) -> None:
    driver = Driver("a", "b", "c", token_wait_s=0.3)
    for name in "abc":
        driver.play(name, answers(0.010))
    driver.play("a", in_turn(refuses(), answers(0.010)))
    driver.ask()
    driver.advance(0.1 if is_at_limit else 10.0)
    assert (driver.word("a", layout.RESOLVER_CEILING) > 0) is is_at_limit
    for name in "abc":
        driver.play(name, refuses(rcode=SERVFAIL))
    driver.sent.clear()
    asked = driver.traffic(rate_qps=2, seconds=3.0)
    assert {each.reply[3] & 0x0F for each in asked} == {SERVFAIL}
    assert len(driver.sent) == 3 * len(asked)
    assert [driver.counted(name, layout.COUNTER_LIMITED) for name in "abc"] == [1, 0, 0]


def test_refusal_by_all_in_a_silent_profile_is_silence() -> None:
    driver = Driver("a", "b", silent_failure=True)
    asked = driver.ask()
    driver.last.refuse()
    driver.last.refuse()
    driver.advance(6.0)
    assert asked.replies == []
    assert driver.board.pool_total(0, layout.POOL_FAILURES) == 1
    assert driver.engines[0].counters.pending == 0


def test_refusal_by_all_in_a_silent_profile_tells_a_stream_client_that_it_is_over() -> None:
    driver = Driver("a", silent_failure=True)
    asked = driver.ask(stream=True)
    driver.last.refuse()
    assert asked.replies == [b""]


def test_refusal_by_the_only_resolver_is_not_sent_in_circles() -> None:
    driver = Driver("a")
    asked = driver.ask()
    driver.last.refuse()
    assert len(driver.sent) == 1
    assert asked.reply[3] & 0x0F == SERVFAIL


@pytest.mark.parametrize("rcode", [REFUSED, SERVFAIL])
def test_refusal_of_a_bare_header_counts(rcode: int) -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    driver.last.say(header_only(driver.last, rcode))
    assert driver.last.name == "b"
    driver.last.say(header_only(driver.last, rcode))
    assert asked.reply[3] & 0x0F == SERVFAIL
    driver.advance(0.02)
    assert driver.counted("a", layout.COUNTER_REFUSED) == 1
    assert driver.all_dropped == {}


def test_refusal_is_held_back_while_another_attempt_is_open() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    driver.advance(0.05)  # b gets it as a hedge
    first, hedge = driver.sent
    hedge.refuse()
    assert asked.replies == []
    driver.advance(1.0)
    assert asked.replies == []
    first.answer()
    assert asked.reply[3] & 0x0F == 0


def test_refusal_of_many_queries_at_once_loses_none() -> None:
    driver = Driver("a", "b")
    driver.play("a", refuses(0.005))
    driver.play("b", answers(0.020))
    asked = driver.traffic(rate_qps=500, seconds=2.0)
    driver.advance(0.5)
    assert {len(each.replies) for each in asked} == {1}
    assert {each.reply[3] & 0x0F for each in asked} == {0}


# -- errors that are no refusal -----------------------------------------------------------------


@pytest.mark.parametrize("rcode", [FORMERR, NOTIMP])
def test_error_about_the_question_is_tried_elsewhere(rcode: int) -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    driver.last.refuse(rcode)
    assert driver.last.name == "b"
    assert asked.replies == []
    driver.last.answer()
    assert asked.reply[3] & 0x0F == 0


@pytest.mark.parametrize("rcode", [FORMERR, NOTIMP])
def test_error_about_the_question_from_all_is_passed_on(rcode: int) -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    driver.last.refuse(rcode)
    said = driver.last.answer(rcode=rcode)
    assert asked.reply == asked.wire[:2] + said[2:]


@pytest.mark.parametrize("rcode", [FORMERR, NOTIMP])
def test_error_about_the_question_as_a_bare_header_is_passed_on(rcode: int) -> None:
    driver = Driver("a")
    asked = driver.ask()
    driver.last.say(header_only(driver.last, rcode))
    assert asked.reply[:2] == asked.wire[:2]
    assert asked.reply[3] & 0x0F == rcode


def test_error_about_the_question_outlives_a_later_bare_one() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    driver.last.refuse(FORMERR)
    driver.last.say(header_only(driver.last, FORMERR))
    assert asked.reply[3] & 0x0F == FORMERR


def test_error_about_the_question_does_not_count_as_refusal_of_the_rate() -> None:
    driver = Driver("a", "b")
    driver.ask()
    driver.last.refuse(FORMERR)
    assert driver.word("a", layout.RESOLVER_REFUSED_AT) == 0


# -- losses -------------------------------------------------------------------------------------


def test_loss_is_sent_elsewhere_after_per_attempt() -> None:
    driver = Driver("a", "b", hedge_only_losing=True)
    driver.play("a", is_silent)
    driver.play("b", answers(0.020))
    asked = driver.ask()
    driver.advance(1.9)
    assert len(driver.sent) == 1
    driver.advance(0.2)
    assert [sent.name for sent in driver.sent] == ["a", "b"]
    assert driver.last.kind == RETRY
    assert asked.reply_times == [pytest.approx(2.020, abs=SLOT_S)]
    assert driver.counted("a", layout.COUNTER_LOST) == 1
    assert driver.counted("b", layout.COUNTER_LOST) == 0


def test_loss_by_the_only_resolver_is_sent_again_until_the_deadline() -> None:
    driver = Driver("a")
    asked = driver.ask()
    began = driver.now
    driver.advance(6.0)
    times = [sent.at - began for sent in driver.sent]
    assert 3 <= len(times) <= 8  # again, but not in a volley
    assert 3.5 < times[-1] < 5.0
    assert [reply[3] & 0x0F for reply in asked.replies] == [SERVFAIL]
    assert asked.reply_times == [pytest.approx(5.0, abs=SLOT_S)]
    cut_short = len([at for at in times if at > 3.0 + SLOT_S])
    assert driver.counted("a", layout.COUNTER_LOST) == len(times) - cut_short


@pytest.mark.parametrize("per_attempt_s", [0.1, 0.3, 0.7, 2.0, 6.0])
@pytest.mark.parametrize("start", [1000.0, 1023.9, 4095.77, 123_456.789, 2_000_000.123])
def test_loss_is_counted_whatever_the_clock_says(per_attempt_s: float, start: float) -> None:
    driver = Driver("a", "b", start=start, per_attempt_s=per_attempt_s, deadline_s=30.0)
    driver.play("a", is_silent)
    driver.play("b", answers(0.020))
    for _ in range(20):
        driver.ask()
        driver.advance(0.0137)
    driver.advance(per_attempt_s + 0.1)
    lost = len(driver.sent_to("a"))
    assert lost >= 5
    assert driver.counted("a", layout.COUNTER_LOST) == lost


def test_loss_is_counted_where_an_attempt_may_take_as_long_as_the_query() -> None:
    driver = Driver("a", per_attempt_s=2.0, deadline_s=2.0)
    driver.ask()
    driver.advance(2.1)
    assert driver.counted("a", layout.COUNTER_LOST) == 1


def test_loss_is_counted_from_when_a_stream_stood_where_it_had_to_be_dialled() -> None:
    driver = Driver("tcp:a", "b")
    driver.play("b", answers(0.020))
    driver.ask()
    (sent,) = driver.sent
    driver.advance(0.030)
    sent.attempt.sent_at = driver.now  # as the transport notes: the handshake took 30 ms
    driver.advance(2.1)
    assert driver.counted("tcp:a", layout.COUNTER_LOST) == 1


def test_deadline_bounds_a_query_over_all_its_attempts() -> None:
    driver = Driver("a", "b", "c", deadline_s=3.0)
    asked = driver.ask()
    began = driver.now
    driver.until(began + 2.999)
    assert asked.replies == []
    driver.until(began + 3.0 + SLOT_S)
    assert [reply[3] & 0x0F for reply in asked.replies] == [SERVFAIL]
    assert driver.engines[0].counters.pending == 0
    driver.advance(10.0)
    assert len(asked.replies) == 1
    assert all(sent.attempt.closed for sent in driver.sent)
    assert driver.tables == [{key: {} for key in driver.tables[0]}]
    assert all(sent.at < began + 3.0 for sent in driver.sent)


def test_deadline_of_a_silent_profile_passes_in_silence() -> None:
    driver = Driver("a", silent_failure=True)
    asked = driver.ask()
    driver.advance(6.0)
    assert asked.replies == []
    assert driver.engines[0].counters.pending == 0
    assert driver.board.pool_total(0, layout.POOL_FAILURES) == 1


def test_deadline_just_before_an_answer_and_just_after() -> None:
    for delay_s, rcode in ((0.999, 0), (1.0 + 2 * SLOT_S, SERVFAIL)):
        driver = Driver("a", deadline_s=1.0)
        driver.play("a", answers(delay_s))
        asked = driver.ask()
        driver.advance(2.0)
        assert [reply[3] & 0x0F for reply in asked.replies] == [rcode]


def test_sendings_of_one_query_are_bounded() -> None:
    driver = Driver(*(f"r{number}" for number in range(40)))
    for number in range(40):
        driver.play(f"r{number}", is_closed())
    asked = driver.ask()
    driver.advance(1.0)
    assert len(driver.sent) == 16
    assert asked.reply[3] & 0x0F == SERVFAIL


# -- network errors -----------------------------------------------------------------------------


def test_network_error_goes_elsewhere_at_once_and_is_counted() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    driver.last.break_off()
    assert driver.last.name == "b"
    driver.last.answer()
    assert len(asked.replies) == 1
    driver.advance(0.02)
    assert driver.counted("a", layout.COUNTER_ERRORS) == 1
    assert driver.counted("a", layout.COUNTER_LOST) == 0


def test_network_error_at_the_only_resolver_fails_the_query_at_once() -> None:
    driver = Driver("a")
    asked = driver.ask()
    driver.last.break_off()
    assert asked.reply[3] & 0x0F == SERVFAIL
    assert driver.engines[0].counters.pending == 0


def test_network_error_at_the_only_resolver_is_not_sent_in_circles_while_it_waits() -> None:
    # Waiting is for room under a ceiling. One query must not set its resolver down by itself.
    driver = Driver("a", token_wait_s=0.3)
    driver.play("a", is_closed())
    asked = driver.ask()
    driver.advance(1.0)
    assert asked.reply[3] & 0x0F == SERVFAIL
    assert len(driver.sent) <= 4
    assert driver.state("a") is State.IN_USE


def test_network_error_told_twice_counts_once() -> None:
    driver = Driver("a", "b", "c")
    driver.ask()
    first = driver.last
    first.break_off()
    first.break_off()
    assert [sent.name for sent in driver.sent] == ["a", "b"]


# -- faults of this machine ---------------------------------------------------------------------


def test_local_fault_goes_elsewhere_and_blames_nobody() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    driver.last.stay()
    assert driver.last.name == "b"
    driver.last.answer()
    assert len(asked.replies) == 1
    driver.advance(0.2)
    for counter in (
        layout.COUNTER_ERRORS,
        layout.COUNTER_LOST,
        layout.COUNTER_REFUSED,
    ):
        assert driver.counted("a", counter) == 0
    assert driver.states == {"a": State.IN_USE, "b": State.IN_USE}


def test_local_fault_takes_a_resolver_out_of_the_turn_and_its_end_puts_it_back() -> None:
    driver = Driver("a", "b")
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.020))
    driver.engines[0].set_usable(driver.resolver("a"), False)
    driver.advance(0.02)
    assert repr(driver.engines[0]).startswith("<Engine pool pending=0 <Selection auto ready=[b] ")
    driver.traffic(rate_qps=100, seconds=5.0)
    assert driver.shares() == {"b": 500}
    assert driver.state("a") is State.IN_USE
    driver.engines[0].set_usable(driver.resolver("a"), True)
    driver.advance(0.02)
    driver.sent.clear()
    driver.traffic(rate_qps=100, seconds=1.0)
    assert driver.shares() == {"a": 50, "b": 50}


def test_local_fault_with_all_resolvers_fails_queries_at_once_and_blames_nobody() -> None:
    driver = Driver("a", "b")
    for name in "ab":
        driver.engines[0].set_usable(driver.resolver(name), False)
    driver.advance(0.02)
    asked = driver.traffic(rate_qps=50, seconds=2.0)
    assert {each.reply[3] & 0x0F for each in asked} == {SERVFAIL}
    assert driver.sent == []
    assert driver.states == {"a": State.IN_USE, "b": State.IN_USE}


def test_local_fault_in_one_worker_leaves_the_others_alone() -> None:
    driver = Driver("a", "b", workers=2)
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.020))
    driver.engines[1].set_usable(driver.resolver("a", worker=1), False)
    driver.advance(0.02)
    driver.traffic(rate_qps=100, seconds=2.0)
    by_worker = [[sent.name for sent in driver.sent if sent.worker == w] for w in (0, 1)]
    assert by_worker[0].count("a") == 50
    assert by_worker[1].count("a") == 0


def test_counters_of_a_tick_in_which_one_was_answered_and_one_not_sent_are_published() -> None:
    driver = Driver("a")
    driver.ask()
    driver.ask()
    driver.advance(0.02)
    first, second = driver.sent
    first.answer()
    second.stay()
    driver.advance(0.02)
    assert driver.counted("a", layout.COUNTER_ANSWERED) == 1


# -- what the profiles of the tunnels say -------------------------------------------------------


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(["refuse", "silent", "closed"])))
def test_failure_in_any_mixture_gives_at_most_one_error(
    order: tuple[str, ...], silent: bool
) -> None:
    scripts = {"refuse": refuses(), "silent": is_silent, "closed": is_closed()}
    driver = Driver("a", "b", "c", silent_failure=silent)
    for name, how in zip("abc", order, strict=True):
        driver.play(name, scripts[how])
    asked = driver.ask()
    driver.advance(6.0)
    assert [reply[3] & 0x0F for reply in asked.replies] == ([] if silent else [SERVFAIL])
    assert driver.engines[0].counters.pending == 0
    assert all(sent.attempt.closed for sent in driver.sent)


def test_failure_of_the_first_sendings_still_ends_in_the_answer_of_a_later_one() -> None:
    driver = Driver("a", "b")
    driver.play("a", in_turn(is_silent, answers(0.020)))
    driver.play("b", refuses())
    asked = driver.ask()
    driver.advance(6.0)
    assert [reply[3] & 0x0F for reply in asked.replies] == [0]
