"""Queries that wait for room: in what order they are served, and that none waits too long."""

from __future__ import annotations

import random

from tests.engine.driver import Ask, Driver, Script, answers, in_turn, refuses
from tests.rig.wire import SERVFAIL


def sole(*, deadline_s: float, token_wait_s: float, after: Script) -> Driver:
    """One resolver that has a ceiling, about 12 q/s, and then follows the script `after`."""
    driver = Driver("a", deadline_s=deadline_s, token_wait_s=token_wait_s)
    driver.play("a", in_turn(refuses(0.020), after))
    driver.traffic(rate_qps=20, seconds=1.0)
    assert driver.resolver("a").interval_ns
    return driver


def ends(asked: list[Ask]) -> list[float]:
    return [each.reply_times[0] for each in asked]


def test_wait_ends_with_the_deadline_of_its_query() -> None:
    driver = sole(deadline_s=0.5, token_wait_s=2.0, after=answers(0.020))
    asked = driver.traffic(rate_qps=200, seconds=1.0)
    driver.advance(3.0)
    assert max(ends(asked)) <= 0.52
    assert SERVFAIL in {each.reply[3] & 0x0F for each in asked}
    assert driver.engines[0].counters.pending == 0


def test_wait_behind_queries_that_come_back_from_a_losing_resolver_ends_in_time() -> None:
    dice = random.Random(3)

    def after(sent: object) -> None:
        if dice.random() < 0.1:
            answers(0.020)(sent)  # type: ignore[arg-type]

    driver = sole(deadline_s=5.0, token_wait_s=0.3, after=after)
    asked = driver.traffic(rate_qps=200, seconds=6.0)
    driver.advance(6.0)
    sent = {each.attempt.query.wire for each in driver.sent}
    never_sent = [each for each in asked if each.wire not in sent]
    assert len(never_sent) > 100
    assert max(ends(never_sent)) <= 0.33  # its wait and a tick
    assert max(ends(asked)) <= 5.02
