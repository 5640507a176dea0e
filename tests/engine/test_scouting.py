"""Strangers and the dead: asked beside the queries, in turn, bounded, and in no client's way."""

from __future__ import annotations

from collections import Counter

import pytest

from shared import layout
from tests.engine.driver import Driver, Sent, answers, is_closed, is_silent, loses, refuses
from tests.rig.wire import NOERROR, REFUSED, SERVFAIL, rcode_of
from workers.engine.health import State
from workers.engine.pending import COPY, FIRST, PROBE

WORKERS = [1, 2, 4]
DEAD = [f"dead{number}" for number in range(200)]


def beside_the_dead(workers: int = 1, **settings: object) -> Driver:
    """`a` answers; two hundred that never will have joined it."""
    driver = Driver("a", workers=workers, spare_slots=len(DEAD) + 1, **settings)  # type: ignore[arg-type]
    driver.play("a", answers(0.020))
    for name in DEAD:
        driver.play(name, is_silent)
    driver.set_roster("a", *DEAD)
    return driver


def answers_plain_questions(sent: Sent) -> None:
    if sent.kind == PROBE:
        answers(0.010)(sent)


@pytest.mark.parametrize("workers", WORKERS)
def test_strangers_are_asked_in_turn_beside_the_queries(workers: int) -> None:
    driver = beside_the_dead(workers)
    asked = driver.traffic(rate_qps=200, seconds=10.0)
    driver.advance(5.0)
    assert {each.name for each in driver.sent if each.kind == FIRST} == {"a"}
    assert {reply_s for each in asked for reply_s in each.reply_times} == {0.020}
    assert {len(each.replies) for each in asked} == {1}
    scouts = Counter(each.name for each in driver.sent if each.name != "a")
    assert set(scouts) == set(DEAD)
    assert max(scouts.values()) - min(scouts.values()) <= 2
    assert 400 <= scouts.total() <= 510  # fifty a second over all workers


@pytest.mark.parametrize(("rate_qps", "most"), [(20, 200), (100, 510), (2_000, 2_010)])
def test_strangers_get_fifty_a_second_or_a_tenth_of_the_traffic(rate_qps: int, most: int) -> None:
    driver = beside_the_dead()
    driver.traffic(rate_qps=rate_qps, seconds=10.0)
    scouts = sum(1 for each in driver.sent if each.name != "a")
    # Each has its two seconds to answer: more than a hundred a second there is not for two hundred.
    assert min(most, 1_000) * 0.8 <= scouts <= min(most, 1_010)


@pytest.mark.parametrize("workers", WORKERS)
def test_strangers_that_answer_are_proven_and_used(workers: int) -> None:
    driver = beside_the_dead(workers)
    driver.play("dead150", answers(0.020))
    driver.traffic(rate_qps=200, seconds=7.0)
    assert driver.state("dead150") is State.IN_USE


@pytest.mark.parametrize("hedge_only_losing", [False, True])
def test_strangers_of_a_pool_without_copies_are_asked_plain_questions(
    hedge_only_losing: bool,
) -> None:
    driver = beside_the_dead(hedge_only_losing=hedge_only_losing, probe_name="probe.example")
    driver.play("dead150", answers(0.020))
    asked = driver.traffic(rate_qps=200, seconds=7.0)
    to_it = driver.sent_to("dead150")
    assert [sent.kind for sent in to_it[:2]] == [PROBE, FIRST]
    assert b"\x05probe\x07example" in to_it[0].wire
    # Copies go to those alone that were silent to a plain question.
    firsts = {each.name: each.kind for each in reversed(driver.sent) if each.name != "a"}
    assert set(firsts.values()) == {PROBE}
    assert not driver.sent_to("a", COPY)
    assert not driver.sent_to("dead150", COPY)
    assert driver.state("dead150") is State.IN_USE
    assert {len(each.replies) for each in asked[:-10]} == {1}


def test_stranger_that_answers_for_the_tunnel_alone_is_found_without_copies() -> None:
    answering = answers(0.020)

    def for_the_tunnel(sent: Sent) -> None:
        if sent.kind != PROBE:
            answering(sent)

    driver = Driver("a", state=State.FRESH)
    driver.play("a", answering)
    driver.play("b", for_the_tunnel)
    driver.traffic(rate_qps=20, seconds=1.0)
    driver.set_roster("a", "b")
    driver.traffic(rate_qps=20, seconds=8.0)
    assert driver.state("b") is State.IN_USE


def test_plain_question_of_a_stranger_counts_neither_as_a_reply_nor_for_its_latency() -> None:
    driver = Driver("a", hedge_only_losing=True)
    driver.play("a", answers(0.050))
    driver.set_roster("a", "new")
    driver.play("new", answers(0.001))
    driver.ask()
    driver.advance(0.030)
    driver.ask()
    driver.advance(0.015)
    new = driver.resolver("new")
    assert [sent.kind for sent in driver.sent_to("new")] == [PROBE]
    assert new.heard
    assert not new.answered
    assert not new.srtt_s


def test_lost_query_of_the_only_one_that_answers_goes_there_again_and_not_to_strangers() -> None:
    late = []
    for driver in (Driver("a"), beside_the_dead()):
        driver.play("a", loses(0.2, 0.020))
        driver.traffic(rate_qps=100, seconds=3.0)
        asked = driver.traffic(rate_qps=100, seconds=10.0)
        driver.advance(5.0)
        assert all(each.replies for each in asked)
        late.append(sum(1 for each in asked if each.reply_times[0] > 0.2))
    assert late[1] <= late[0] + 10


def test_nobody_answers_strangers_are_asked_plain_questions_while_queries_wait() -> None:
    names = [f"r{number}" for number in range(300)]
    driver = Driver(*names, state=State.FRESH)
    for name in names:
        driver.play(name, is_silent)
    driver.play("r250", answers(0.020))
    driver.advance(5.0)
    assert not driver.sent  # nobody asks: nothing goes out
    for _ in range(5):
        driver.traffic(rate_qps=1, seconds=1.0)
    assert driver.resolver("r250").heard
    probes = [each for each in driver.sent if each.kind == PROBE]
    assert len(probes) <= 255
    driver.sent.clear()
    driver.traffic(rate_qps=1, seconds=3.0)
    assert {each.name for each in driver.sent if each.kind == FIRST} == {"r250"}


@pytest.mark.parametrize("rcode", [REFUSED, SERVFAIL])
def test_those_that_only_refuse_hide_nobody_who_answers(rcode: int) -> None:
    names = [f"r{number}" for number in range(60)]
    driver = Driver(*names, state=State.FRESH)
    for name in names[:20]:
        driver.play(name, refuses(rcode=rcode))
    for name in names[20:]:
        driver.play(name, is_silent)
    driver.play("r25", answers(0.020))
    asked = driver.traffic(rate_qps=5, seconds=6.0)
    # Sixteen may have refused the first one before anybody else was asked.
    assert {rcode_of(reply) for each in asked[1:] for reply in each.replies} == {NOERROR}
    assert all(each.replies for each in asked)


def test_those_that_answer_plain_questions_alone_hide_nobody_who_answers() -> None:
    names = [f"r{number}" for number in range(60)]
    driver = Driver(*names, state=State.FRESH, hedge_only_losing=True, silent_failure=True)
    for name in names:
        driver.play(name, is_silent)
    for name in names[10:15]:
        driver.play(name, answers_plain_questions)
    driver.play("r5", answers(0.020))
    asked = driver.traffic(rate_qps=1, seconds=10.0)
    assert all(each.replies for each in asked)
    assert max(each.reply_times[0] for each in asked[3:]) < 0.2


def test_two_hundred_down_are_asked_fifty_a_second() -> None:
    driver = beside_the_dead()
    for name in DEAD:
        driver.play(name, is_closed())
    driver.traffic(rate_qps=500, seconds=40.0)
    assert {driver.state(name) for name in DEAD} == {State.DOWN}
    driver.sent.clear()
    driver.traffic(rate_qps=100, seconds=10.0)
    assert 400 <= sum(1 for each in driver.sent if each.name != "a") <= 510


def test_two_hundred_down_without_traffic_are_probed_a_few_at_a_time() -> None:
    driver = beside_the_dead()
    for name in DEAD:
        driver.play(name, is_closed())
    driver.traffic(rate_qps=500, seconds=40.0)
    driver.advance(5.0)
    driver.sent.clear()
    driver.advance(50.0)
    assert len(driver.sent) <= 11 * 32
    assert {each.name for each in driver.sent} == set(DEAD)
    assert {each.kind for each in driver.sent} == {PROBE}


def test_queries_of_the_only_one_that_answered_go_to_strangers_when_it_falls_silent() -> None:
    driver = Driver("a", state=State.FRESH)
    driver.play("a", answers(0.020))
    driver.ask()
    driver.advance(0.1)
    driver.play("a", is_silent)
    asked = [driver.ask() for _ in range(30)]
    driver.play("new", answers(0.020))
    driver.set_roster("a", "new")
    driver.advance(1.0)
    # Nobody asks anything more, beside which it would be found.
    assert {len(each.replies) for each in asked} == {1}
    assert driver.counted("a", layout.COUNTER_LOST) == 0
