"""Attempts that their transport keeps until there is a connection or a stream: no loss, no copy."""

from __future__ import annotations

import pytest

from shared import layout
from tests.engine.driver import Driver, Sent, answers
from tests.rig.wire import SERVFAIL
from workers.engine.health import State
from workers.engine.pending import FIRST, HEDGE

RTO_S = 0.040
SLOT_S = 0.0041


def waits(sent: Sent) -> None:
    """No connection stands: the transport keeps the attempt."""
    del sent.table[sent.attempt.id]
    sent.attempt.table = None
    sent.attempt.waits = True


def leaves(sent: Sent) -> None:
    """There is a connection now."""
    sent.table[sent.attempt.id] = sent.attempt
    sent.attempt.table = sent.table
    sent.attempt.leave(sent.driver.now)


def test_unsent_attempt_is_no_loss_and_its_query_fails_at_the_deadline() -> None:
    driver = Driver("tcp:a", per_attempt_s=1.0, deadline_s=3.5)
    driver.play("tcp:a", waits)
    asked = driver.ask()
    driver.advance(3.49)
    assert asked.replies == []
    assert len(driver.sent) == 1
    driver.advance(0.05)
    assert [reply[3] & 0x0F for reply in asked.replies] == [SERVFAIL]
    assert driver.sent[0].attempt.closed
    for counter in (layout.COUNTER_LOST, layout.COUNTER_ERRORS, layout.COUNTER_OVERDUE):
        assert driver.counted("tcp:a", counter) == 0
    assert driver.word("tcp:a", layout.RESOLVER_LOSS) == 0
    driver.traffic(100, 5.0)
    driver.advance(5.0)
    assert driver.state("tcp:a") is State.IN_USE


def test_unsent_attempt_is_hedged_elsewhere_and_still_leaves() -> None:
    driver = Driver("tcp:a", "b")
    driver.play("tcp:a", waits)
    driver.play("b", answers(0.010))
    asked = driver.ask()
    driver.advance(RTO_S + SLOT_S + 0.011)
    assert [(sent.name, sent.kind) for sent in driver.sent] == [("tcp:a", FIRST), ("b", HEDGE)]
    assert len(asked.replies) == 1
    driver.advance(2.5)  # longer than per_attempt
    first = driver.sent[0]
    assert not first.attempt.closed
    leaves(first)
    driver.advance(0.020)
    first.answer()
    assert len(asked.replies) == 2
    assert driver.resolver("tcp:a").rtt_sum_s == pytest.approx(0.020)
    assert driver.counted("tcp:a", layout.COUNTER_LOST) == 0


def test_unsent_attempt_that_finds_nobody_is_looked_at_again() -> None:
    driver = Driver("tcp:a", per_attempt_s=1.0)
    driver.play("tcp:a", waits)
    asked = driver.ask()
    driver.advance(0.5)
    driver.set_roster("tcp:a", "b")
    driver.play("b", answers(0.010))
    driver.advance(0.6)
    assert [sent.name for sent in driver.sent] == ["tcp:a", "b"]
    assert len(asked.replies) == 1


def test_unsent_attempt_that_leaves_is_late_and_lost_by_when_it_left() -> None:
    driver = Driver("tcp:a", "b")
    driver.ask()
    (first,) = driver.sent
    waits(first)
    driver.advance(0.030)
    leaves(first)
    driver.advance(RTO_S - 0.001)
    assert len(driver.sent) == 1
    driver.advance(2 * SLOT_S)
    assert [sent.kind for sent in driver.sent] == [FIRST, HEDGE]
    driver.advance(1.900)
    assert not first.attempt.closed
    driver.advance(0.200)
    assert first.attempt.closed
    assert driver.counted("tcp:a", layout.COUNTER_LOST) == 1


def test_unsent_attempt_of_a_profile_that_suffers_from_copies_goes_elsewhere_instead() -> None:
    driver = Driver("tcp:a", "b", hedge_only_losing=True)
    driver.play("tcp:a", waits)
    driver.play("b", answers(0.010))
    asked = driver.ask()
    driver.advance(RTO_S + SLOT_S + 0.011)
    assert len(asked.replies) == 1
    assert driver.sent[0].attempt.closed, "it would be sent twice"
    driver.advance(5.0)
    for counter in (layout.COUNTER_LOST, layout.COUNTER_ERRORS, layout.COUNTER_OVERDUE):
        assert driver.counted("tcp:a", counter) == 0


def test_unreachable_resolver_is_set_down_although_nobody_waits_for_it_any_more() -> None:
    driver = Driver("tcp:a", "b", state=State.FRESH, down_after=3)
    driver.play("tcp:a", waits)
    driver.play("b", answers(0.010))
    for _ in range(3):
        assert driver.state("tcp:a") is State.FRESH
        driver.engines[0].unreachable(driver.resolver("tcp:a"))
        driver.advance(0.1)
    assert driver.state("tcp:a") is State.DOWN
    assert driver.counted("tcp:a", layout.COUNTER_ERRORS) == 3
