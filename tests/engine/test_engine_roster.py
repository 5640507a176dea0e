"""Rosters that change under traffic, and counters that outlive the worker that counted."""

from __future__ import annotations

import pytest

from shared import layout
from tests.engine.driver import Driver, answers, is_closed, is_silent
from workers.engine.health import State
from workers.engine.pending import FIRST
from workers.settings import PoolSettings, ResolverEntry


def test_roster_change_names_who_joined_and_who_left() -> None:
    driver = Driver("a", "b")
    assert driver.set_roster("b", "c") == (["c"], ["a"])
    assert driver.set_roster("b", "c") == ([], [])
    assert driver.set_roster() == ([], ["b", "c"])


def test_roster_change_keeps_unchanged_resolvers_and_what_is_open_at_them() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    kept = driver.resolver("a")
    (sent,) = driver.sent
    driver.set_roster("a", "c")
    assert driver.resolver("a") is kept
    assert not sent.attempt.closed
    sent.answer()
    assert len(asked.replies) == 1
    driver.advance(0.02)
    assert driver.counted("a", layout.COUNTER_ANSWERED) == 1


def test_roster_change_leaves_the_state_of_unchanged_resolvers() -> None:
    driver = Driver("a", "slow", "dead")
    driver.play("a", answers(0.020))
    driver.play("slow", answers(0.250))
    driver.play("dead", is_closed())
    driver.traffic(rate_qps=100, seconds=12.0)
    before = driver.states
    assert before == {"a": State.IN_USE, "slow": State.ASIDE, "dead": State.DOWN}
    driver.set_roster("dead", "new", "slow", "a")
    driver.advance(0.04)
    assert driver.states == {**before, "new": State.FRESH}


def test_roster_change_starts_new_resolvers_fresh() -> None:
    driver = Driver("a")
    driver.play("a", answers(0.020))
    driver.set_roster("a", "new")
    assert driver.state("new") is State.FRESH
    assert repr(driver.resolver("new")) == "<Resolver new FRESH sent=0 answered=0>"


def test_roster_change_sends_nothing_more_to_those_that_left() -> None:
    driver = Driver("a", "b")
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.020))
    driver.traffic(rate_qps=100, seconds=1.0)
    driver.set_roster("b")
    driver.sent.clear()
    asked = driver.traffic(rate_qps=100, seconds=1.0)
    driver.advance(0.1)
    assert driver.shares() == {"b": 100}
    assert {len(each.replies) for each in asked} == {1}


def test_roster_without_anybody_fails_queries_until_somebody_joins() -> None:
    driver = Driver("a")
    driver.set_roster()
    assert driver.ask().reply[3] & 0x0F == 2
    driver.set_roster("a2")
    driver.play("a2", answers(0.020))
    asked = driver.ask()
    driver.advance(0.1)
    assert asked.reply[3] & 0x0F == 0


def test_roster_entry_with_another_weight_keeps_its_slot_and_counters() -> None:
    driver = Driver("a")
    driver.play("a", answers(0.020))
    driver.traffic(rate_qps=100, seconds=1.0)
    old = driver.entries[0]
    driver.entries = [ResolverEntry(old.slot, old.scheme, old.host, old.port, old.name, weight=5)]
    joined, left = driver.engines[0].set_roster(driver.now, driver.entries)
    assert (len(joined), len(left)) == (1, 1)
    driver.traffic(rate_qps=100, seconds=1.0)
    assert driver.counted("a", layout.COUNTER_SENT) == 200


def test_query_open_at_a_resolver_that_left_goes_elsewhere_when_its_socket_closes() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    (sent,) = driver.sent
    driver.set_roster("b")
    sent.stay()  # what a transport does that is closed
    assert driver.last.name == "b"
    driver.last.answer()
    assert len(asked.replies) == 1


# -- counters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_counters_carry_on_with_a_workers_successor(workers: int) -> None:
    driver = Driver("a", "b", workers=workers)
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.030))
    driver.traffic(rate_qps=100, seconds=2.0)
    driver.ask(b"\0")
    driver.advance(0.1)
    rtt_sum = driver.counted("a", layout.COUNTER_RTT_SUM)
    driver.restart(0)
    driver.traffic(rate_qps=100, seconds=1.0)
    driver.ask(b"\0")
    driver.advance(0.1)
    total = driver.board.pool_total
    assert total(0, layout.POOL_QUERIES) == 300
    assert total(0, layout.POOL_ANSWERS) == 300
    assert total(0, layout.POOL_ANSWERED) == 300
    assert total(0, layout.POOL_DROPPED) == 2
    answered = [driver.counted(name, layout.COUNTER_ANSWERED) for name in ("a", "b")]
    assert sum(answered) == 300
    assert driver.counted("a", layout.COUNTER_RTT_SUM) > rtt_sum
    assert driver.counted("a", layout.COUNTER_RTT_SUM) == pytest.approx(
        answered[0] * 20_000_000, rel=0.01
    )


def test_counters_of_a_worker_that_died_with_queries_open_do_not_run_backwards() -> None:
    driver = Driver("a")
    for _ in range(10):
        driver.ask()
    driver.advance(0.02)
    driver.restart(0)
    driver.advance(0.02)
    assert driver.counted("a", layout.COUNTER_SENT) == 10
    driver.play("a", answers(0.020))
    driver.traffic(rate_qps=100, seconds=1.0)
    driver.advance(0.1)
    assert driver.counted("a", layout.COUNTER_SENT) == 110
    assert driver.counted("a", layout.COUNTER_ANSWERED) == 100
    assert driver.state("a") is State.IN_USE


def test_counters_tell_how_every_sending_ended() -> None:
    driver = Driver("a", "b", "c", "d", deadline_s=20.0)
    driver.play("a", answers(0.020))
    driver.play("b", is_closed())
    driver.play("c", is_silent)
    driver.play("d", answers(0.010, rcode=5))
    driver.traffic(rate_qps=40, seconds=3.0)
    driver.advance(20.0)
    ends = (
        layout.COUNTER_ANSWERED,
        layout.COUNTER_REFUSED,
        layout.COUNTER_LOST,
        layout.COUNTER_ERRORS,
    )
    for name in "abcd":
        ended = sum(driver.counted(name, counter) for counter in ends)
        assert driver.counted(name, layout.COUNTER_SENT) == ended
        assert len(driver.sent_to(name)) == ended


def test_settings_of_the_engine_are_those_it_was_given() -> None:
    driver = Driver("a", per_attempt_s=6.0, hedge_only_losing=True, silent_failure=True)
    settings = driver.engines[0].settings
    assert settings == PoolSettings(
        name="pool",
        per_attempt_s=6.0,
        hedge_only_losing=True,
        silent_failure=True,
        token_wait_s=0.0,
    )
    assert PoolSettings.from_json(settings.to_json()) == settings
    assert ResolverEntry.from_json(driver.entries[0].to_json()) == driver.entries[0]


def test_worker_whose_engine_has_just_started_serves_before_its_first_tick() -> None:
    driver = Driver("a", "b")
    driver.restart(0)
    asked = driver.ask()
    assert driver.shares(FIRST) == {"a": 1}
    driver.last.answer()
    assert len(asked.replies) == 1
