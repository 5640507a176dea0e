"""Late queries: when they are tried elsewhere too, where, and when they are left alone."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from shared import layout
from tests.engine.driver import (
    Driver,
    Script,
    answers,
    in_turn,
    is_closed,
    is_silent,
    loses,
    refuses,
)
from workers.engine.health import State
from workers.engine.pending import COPY, FIRST, HEDGE, PROBE, RETRY

# 20 ms with a mean deviation of 5 ms: an attempt is late after 40 ms.
RTO_S = 0.040
SLOT_S = 0.0041


def test_hedge_goes_out_at_the_retransmission_time_and_not_before() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    began = driver.now
    driver.until(began + RTO_S - 0.001)
    assert len(driver.sent) == 1
    driver.until(began + RTO_S + SLOT_S)
    first, hedge = driver.sent
    assert (hedge.name, hedge.kind) == ("b", HEDGE)
    assert hedge.at - began == pytest.approx(RTO_S + SLOT_S / 2, abs=SLOT_S / 2)
    assert not first.attempt.closed
    assert asked.replies == []
    driver.advance(0.02)
    assert driver.board.pool_total(0, layout.POOL_HEDGES) == 1
    assert driver.board.pool_total(0, layout.POOL_RETRIES) == 0


def test_hedge_is_spared_by_an_answer_in_time() -> None:
    driver = Driver("a", "b")
    driver.play("a", answers(0.039))
    driver.ask()
    driver.advance(1.0)
    assert len(driver.sent) == 1


def test_hedge_leaves_the_first_attempt_open_until_per_attempt() -> None:
    driver = Driver("a", "b")
    driver.play("b", answers(0.020))
    asked = driver.ask()
    driver.advance(1.990)
    assert not driver.sent[0].attempt.closed
    driver.sent[0].answer()
    assert len(asked.replies) == 2


def test_hedge_of_a_hedge_follows_when_it_is_late_too() -> None:
    driver = Driver("a", "b", "c", "d")
    driver.ask()
    driver.advance(0.2)
    assert [(sent.name, sent.kind) for sent in driver.sent] == [
        ("a", FIRST),
        ("b", HEDGE),
        ("c", HEDGE),
        ("d", HEDGE),
    ]


def test_hedge_with_one_resolver_only_is_not_sent_to_it_again() -> None:
    driver = Driver("a")
    driver.ask()
    driver.advance(1.9)
    assert len(driver.sent) == 1


def test_hedge_before_anything_is_known_of_the_resolver_waits_a_second() -> None:
    driver = Driver("a", "b", state=State.FRESH)
    driver.ask()
    driver.advance(0.990)
    assert [sent.kind for sent in driver.sent if sent.kind != PROBE] == [FIRST]
    driver.advance(0.020)
    assert [sent.kind for sent in driver.sent if sent.kind != PROBE] == [FIRST, HEDGE]


def test_hedge_from_a_healthy_resolver_goes_only_to_one_about_as_fast() -> None:
    driver = Driver("near", "far")
    driver.play("near", answers(0.020))
    driver.play("far", answers(0.300))
    driver.traffic(rate_qps=20, seconds=3.0)
    assert driver.states == {"near": State.IN_USE, "far": State.ASIDE}
    driver.play("near", answers(1.0))  # held at the server, not lost
    driver.sent.clear()
    driver.ask()
    driver.advance(0.9)
    assert driver.shares(HEDGE) == {}


def test_hedge_from_a_losing_resolver_may_go_to_any() -> None:
    driver = Driver("near", "far", down_after=1000)
    driver.play("near", answers(0.020))
    driver.play("far", answers(0.300))
    driver.traffic(rate_qps=20, seconds=12.0)
    driver.play("near", loses(0.4, 0.020))
    driver.traffic(rate_qps=20, seconds=4.0)
    assert driver.states == {"near": State.IN_USE, "far": State.ASIDE}
    assert driver.word("near", layout.RESOLVER_LOSING) == 1
    assert [sent for sent in driver.sent_to("far", HEDGE) if sent.at > driver.now - 1.0]


def test_hedge_of_a_profile_that_suffers_from_copies_stays_out() -> None:
    driver = Driver("a", "b", hedge_only_losing=True)
    driver.play("a", answers(1.0))
    driver.play("b", answers(1.0))
    driver.ask()
    driver.advance(1.9)
    assert len(driver.sent) == 1


def test_hedge_of_such_a_profile_goes_out_from_a_resolver_that_loses() -> None:
    # Both lose alike, so neither is set aside: only the loss itself can be the reason.
    driver = Driver("a", "b", hedge_only_losing=True, down_after=1000)
    driver.play("a", loses(0.3, 0.020, seed=1))
    driver.play("b", loses(0.3, 0.020, seed=2))
    driver.traffic(rate_qps=50, seconds=10.0)
    assert driver.word("a", layout.RESOLVER_LOSING) == 1
    recent = [s for s in driver.sent if s.kind == HEDGE and s.at > driver.now - 2.0]
    assert recent


def test_first_loss_of_such_a_profile_is_seen_when_no_answer_took_half_as_long() -> None:
    driver = Driver("a", "b", hedge_only_losing=True)
    for name in "ab":
        driver.play(name, answers(0.020))
    driver.traffic(rate_qps=20, seconds=2.0)
    for name in "ab":
        driver.play(name, is_silent)
    driver.sent.clear()
    asked = [driver.ask() for _ in range(5)]
    began = driver.now
    driver.until(began + 1.0)
    hedges = [sent for sent in driver.sent if sent.kind == HEDGE]
    assert len(hedges) == 1  # whatever is in flight: it may be held after all
    assert 0.1 <= hedges[0].at - began <= 0.2
    assert [len(each.replies) for each in asked] == [0] * 5


def test_first_held_poll_of_such_a_profile_is_hedged_once_and_then_known() -> None:
    driver = Driver("a", "b", hedge_only_losing=True)
    for name in "ab":
        driver.play(name, answers(0.020))
    driver.traffic(rate_qps=20, seconds=2.0)
    for name in "ab":
        driver.play(name, answers(0.5))
    driver.traffic(rate_qps=2, seconds=30.0)
    assert driver.shares(HEDGE).total() == 1


def test_losing_is_seen_by_every_worker_without_a_change_of_state() -> None:
    driver = Driver("a", workers=2, down_after=1000)
    driver.play("a", loses(0.4, 0.020))
    driver.traffic(rate_qps=50, seconds=5.0)
    assert driver.state("a") is State.IN_USE
    assert driver.word("a", layout.RESOLVER_LOSING) == 1
    assert [driver.resolver("a", worker).losing for worker in (0, 1)] == [True, True]


def test_hedge_under_lowest_latency_goes_to_the_next_that_is_about_as_fast() -> None:
    driver = Driver("a", "b", load_balance="lowest_latency")
    driver.play("b", answers(0.021))
    driver.ask()  # the other one's trial
    driver.advance(0.1)
    driver.sent.clear()
    asked = driver.ask()
    driver.advance(0.1)
    assert [(sent.name, sent.kind) for sent in driver.sent] == [("a", FIRST), ("b", HEDGE)]
    assert len(asked.replies) == 1


def test_hedge_of_a_query_that_is_answered_already_is_not_sent() -> None:
    driver = Driver("a", "b", "c")
    driver.ask()
    driver.advance(RTO_S + SLOT_S)
    driver.last.answer()
    driver.advance(1.0)
    assert len(driver.sent) == 2


# -- copies of live queries for a resolver that is down ------------------------------------------


def _with_one_down(**settings: object) -> Driver:
    """A pool of `a` and `b`, 20 ms away, and `dead`, which is down and stays silent."""
    driver = Driver("a", "b", "dead", **settings)  # type: ignore[arg-type]
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.020))
    driver.play("dead", is_closed())
    driver.traffic(rate_qps=50, seconds=1.0)
    assert driver.state("dead") is State.DOWN
    driver.play("dead", is_silent)
    driver.advance(5.0)
    driver.sent.clear()
    return driver


def test_copy_to_a_down_resolver_goes_out_once_a_second_while_there_is_traffic() -> None:
    driver = _with_one_down()
    asked = driver.traffic(rate_qps=100, seconds=10.0)
    assert 9 <= len(driver.sent_to("dead", COPY)) <= 11
    assert len(driver.sent_to("dead")) == len(driver.sent_to("dead", COPY))
    assert {len(each.replies) for each in asked if each.at < driver.now - 0.1} == {1}


def test_copy_that_is_late_is_no_reason_to_send_the_query_elsewhere() -> None:
    driver = _with_one_down(hedge_only_losing=True)
    driver.play("a", answers(1.9))  # held polls
    driver.play("b", answers(1.9))
    driver.traffic(rate_qps=10, seconds=3.0)
    driver.sent.clear()
    driver.traffic(rate_qps=10, seconds=10.0)
    assert driver.sent_to("dead", COPY)
    assert driver.shares(HEDGE) == {}


@pytest.mark.parametrize("how", [is_closed(), refuses()], ids=["closed", "refuses"])
def test_copy_that_fails_causes_no_other_sending_while_the_first_is_open(how: Script) -> None:
    driver = _with_one_down(hedge_only_losing=True)
    for name in "ab":
        driver.play(name, answers(0.5))  # as long as a tunnel's server holds a poll
    driver.ask()
    driver.advance(3.0)
    driver.sent.clear()
    driver.play("dead", how)
    asked = driver.ask()
    driver.advance(1.0)
    assert driver.shares(COPY) == {"dead": 1}
    assert driver.shares(RETRY) == {}
    assert len(asked.replies) == 1


def test_copy_carries_the_query_when_its_first_sending_fails() -> None:
    driver = Driver("a", "dead")
    driver.play("a", answers(0.020))
    driver.play("dead", is_closed())
    driver.traffic(rate_qps=50, seconds=1.0)
    assert driver.state("dead") is State.DOWN
    driver.play("dead", answers(0.100))
    driver.play("a", refuses())
    driver.advance(1.5)
    asked = driver.ask()
    driver.advance(0.5)
    assert [reply[3] & 0x0F for reply in asked.replies] == [0]


@pytest.mark.parametrize("state", [State.FRESH, State.IN_USE, State.ASIDE])
@pytest.mark.parametrize("script", [answers(0.5), answers(1.8), is_silent])
def test_hedges_of_queries_that_nobody_refused_do_not_multiply(
    state: State, script: Script
) -> None:
    names = ("a", "b", "c")
    driver = Driver(*names, state=state, hedge_only_losing=True, token_wait_s=0.3)
    for name in names:
        driver.play(name, script)
    driver.traffic(rate_qps=40, seconds=15.0)
    driver.advance(5.0)
    sendings = Counter(each.attempt.query for each in driver.sent)
    # ... and once more after each of the two losses that fit into the deadline.
    assert max(sendings.values()) <= len(names) + 2


@pytest.mark.parametrize("hedge_only_losing", [False, True])
def test_late_trial_of_a_dead_resolver_lets_a_query_that_all_others_refused_wait_for_room(
    hedge_only_losing: bool,
) -> None:
    driver = Driver("a", "b", token_wait_s=0.3, hedge_only_losing=hedge_only_losing)
    dead = "dead"
    driver.set_roster("a", "b", dead)
    driver.resolver(dead).heard = True  # a stranger would not be asked instead of the two
    driver.advance(1.1)
    driver.play(dead, is_silent)
    for name in ("a", "b"):
        driver.play(name, in_turn(refuses(0.002), answers(0.002)))
    asked = driver.ask()
    driver.advance(0.5)
    assert {each.name for each in driver.sent} == {"a", "b", dead}
    assert asked.reply[3] & 0x0F == 0
    assert asked.reply_times[0] <= 0.3


def test_trial_of_an_unknown_resolver_is_hedged_as_soon_as_another_has_shown_its_speed() -> None:
    driver = Driver("dead", "good", state=State.FRESH)
    driver.play("dead", is_silent)
    driver.play("good", answers(0.005))
    first = driver.ask()
    driver.advance(0.010)
    driver.ask()
    driver.advance(0.5)
    assert first.replies
    assert first.reply_times[0] <= 0.2


def test_login_of_a_tunnel_is_not_asked_twice_for_a_hiccup_of_a_fresh_resolver() -> None:
    # dns2tcp refuses the login that comes twice, and its refusal may be the first to return.
    driver = Driver("a", "b", state=State.FRESH, hedge_only_losing=True)
    for name in "ab":
        driver.play(name, answers(0.003))
    driver.ask()
    driver.advance(0.1)
    for name in "ab":
        driver.play(name, answers(0.080))
    driver.ask()
    driver.advance(0.3)
    assert [sent.kind for sent in driver.sent if sent.kind != PROBE] == [FIRST, FIRST]
    for name in "ab":
        driver.play(name, is_silent)
    driver.sent.clear()
    driver.ask()
    began = driver.now
    driver.advance(0.5)
    sent = [each for each in driver.sent if each.kind != PROBE]
    assert [each.kind for each in sent[:2]] == [FIRST, HEDGE]
    assert sent[1].at - began >= 0.1


def test_sole_resolver_is_asked_again_at_its_retransmission_time_after_a_loss() -> None:
    driver = Driver("a")
    driver.play("a", answers(0.020))
    driver.traffic(rate_qps=50, seconds=5.0)
    driver.play("a", is_silent)
    driver.ask()
    driver.advance(2.1)  # the first loss ends at per_attempt: nothing spoke for one before
    resolver = driver.resolver("a")
    assert (resolver.lost, resolver.losing) == (1, False)
    before = len(driver.sent)
    driver.ask()
    began = driver.now
    driver.until(began + 0.5)
    again = [sent.at - began for sent in driver.sent[before:] if sent.kind == HEDGE]
    assert again[0] <= RTO_S + SLOT_S
    assert len(again) <= 3
    # What was sent again waits at least twice as long.
    assert all(after >= 2 * at for at, after in itertools.pairwise(again))


def test_sole_resolver_that_lost_nothing_is_not_asked_twice() -> None:
    driver = Driver("a")
    driver.ask()
    driver.advance(1.5)
    assert [sent.kind for sent in driver.sent] == [FIRST]


def loaded(rate_qps: float = 200.0) -> Driver:
    """Six resolvers that have shown how long an answer takes, with some load."""
    driver = Driver(*"abcdef")
    for name in "abcdef":
        driver.play(name, answers(0.020))
    driver.traffic(rate_qps=rate_qps, seconds=2.0)
    driver.sent.clear()
    return driver


def test_hedges_of_a_loaded_pool_that_is_cut_off_do_not_multiply() -> None:
    driver = loaded()
    for name in "abcdef":
        driver.play(name, is_silent)
    asked = driver.traffic(rate_qps=200, seconds=1.5)  # nobody is down by then
    # One hedge each, and one query that looks for a way.
    assert len(driver.sent) <= 2 * len(asked) + 16


def test_hedges_go_on_while_one_of_many_answers() -> None:
    driver = loaded()
    for name in "abcde":
        driver.play(name, is_silent)
    asked = driver.traffic(rate_qps=200, seconds=1.0)
    driver.advance(0.5)
    assert all(each.replies for each in asked)


@pytest.mark.parametrize("hedge_only_losing", [False, True])
def test_sole_resolver_that_loses_twice_in_a_row_does_not_stall_one_in_flight(
    hedge_only_losing: bool,
) -> None:
    driver = Driver("a", hedge_only_losing=hedge_only_losing)
    driver.play("a", loses(0.2, 0.020))
    driver.traffic(rate_qps=10, seconds=20.0)
    driver.advance(6.0)
    driver.play("a", in_turn(is_silent, is_silent, answers(0.020)))
    asked = driver.ask()
    driver.advance(1.0)
    assert asked.replies


def test_sole_resolver_that_drops_most_is_not_asked_the_same_again_and_again() -> None:
    driver = Driver("a")
    driver.play("a", answers(0.020))
    driver.traffic(rate_qps=200, seconds=2.0)
    driver.play("a", loses(0.9, 0.020))  # it may be at a limit: nothing is known of that yet
    driver.sent.clear()
    asked = driver.traffic(rate_qps=200, seconds=1.5)
    assert len(driver.sent) <= 2 * len(asked) + 16


def test_sole_resolver_over_a_stream_is_not_asked_again_in_vain() -> None:
    driver = Driver("tcp:a")
    driver.play("tcp:a", answers(0.020))
    driver.traffic(rate_qps=50, seconds=2.0)
    driver.play("tcp:a", is_silent)
    driver.ask()
    driver.advance(2.1)
    before = len(driver.sent)
    driver.ask()
    driver.advance(1.0)
    assert len(driver.sent) == before + 1
