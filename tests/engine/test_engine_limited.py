"""A server that says beside DNS that it is asked too often (HTTP 429): the same as REFUSED."""

from __future__ import annotations

from shared import layout
from tests.engine.driver import Driver, Sent
from tests.rig.wire import SERVFAIL


def limit(sent: Sent) -> None:
    driver = sent.driver
    driver.engines[sent.worker].limited(driver.now, sent.attempt)
    driver.flush(sent.worker)


def test_limited_attempt_goes_to_another_resolver_and_counts_as_a_refusal() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    limit(driver.last)
    assert [sent.name for sent in driver.sent] == ["a", "b"]
    said = driver.last.answer()
    assert asked.reply == asked.wire[:2] + said[2:]
    driver.advance(0.02)
    assert driver.counted("a", layout.COUNTER_REFUSED) == 1
    assert driver.counted("a", layout.COUNTER_LIMITED) == 1
    assert driver.counted("a", layout.COUNTER_ERRORS) == 0
    assert driver.word("a", layout.RESOLVER_REFUSED_AT) > 0


def test_limited_attempts_everywhere_give_one_servfail() -> None:
    driver = Driver("a", "b")
    asked = driver.ask()
    for _ in range(2):
        limit(driver.last)
    assert asked.reply[3] & 0x0F == SERVFAIL
    driver.advance(6.0)
    assert len(asked.replies) == 1


def test_limited_attempt_that_was_over_changes_nothing() -> None:
    driver = Driver("a")
    asked = driver.ask()
    sent = driver.last
    sent.answer()
    limit(sent)
    driver.advance(0.02)
    assert len(asked.replies) == 1
    assert driver.counted("a", layout.COUNTER_REFUSED) == 0
