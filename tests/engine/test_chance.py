"""Refusals and losses by chance: the ceiling goes, and no limiter is ever taken for chance."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from shared import layout
from tests.engine.driver import Driver
from tests.engine.test_ceiling import (
    ANSWERED,
    LIMITED,
    LOST,
    SEEDS,
    Bench,
    Fed,
    Model,
    always,
    by_chance,
    ceiling_of,
    limiter,
    played,
)
from tests.rig.wire import NOERROR, rcode_of
from workers.engine.pending import FIRST
from workers.engine.resolver import NS

WORKERS = [1, 2, 4]
SHARES = [0.2, 0.3, 0.5]


def by_the_second(limit_qps: float) -> Model:
    """A limiter that counts whole seconds and refuses what exceeds its limit in each of them."""
    second = 0
    count = 0

    def model(now: float) -> str:
        nonlocal second, count
        if int(now) != second:
            second = int(now)
            count = 0
        count += 1
        return ANSWERED if count <= limit_qps else LIMITED

    return model


LIMITERS = [limiter, by_the_second]


def is_by_chance(bench: Bench) -> bool:
    return bench.ceiling.random_until > bench.now


def seconds_taken_for_chance(bench: Bench, seconds: int) -> int:
    count = 0
    for _ in range(seconds):
        bench.run(1.0)
        count += is_by_chance(bench)
    return count


# -- chance is found ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_ceiling_of_one_that_loses_a_tenth_by_chance_does_not_stay(seed: int) -> None:
    bench = Bench(by_chance(0.1, LOST, seed), offered_qps=50)
    bench.run(20.0)
    before = bench.sent
    seen = bench.run(30.0)
    assert set(seen[-500:]) == {0.0}
    assert bench.sent - before >= 0.9 * 50 * 30


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", SHARES)
def test_ceiling_of_one_that_refuses_by_chance_is_gone_within_half_a_minute(
    share: float, seed: int
) -> None:
    bench = Bench(by_chance(share, LIMITED, seed), offered_qps=50)
    seen = bench.run(30.0)
    assert max(seen) > 0.0
    assert bench.qps == 0.0
    before = bench.sent
    assert set(bench.run(120.0)) == {0.0}
    assert bench.sent - before >= 0.99 * 50 * 120


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("share", SHARES)
def test_engine_does_not_strangle_a_resolver_that_refuses_by_chance(
    share: float, workers: int
) -> None:
    driver = Driver("a", workers=workers)
    driver.play("a", played(by_chance(share, LIMITED, seed=11)))
    driver.traffic(rate_qps=50, seconds=30.0)
    assert ceiling_of(driver, "a") == 0.0
    driver.sent.clear()
    for _ in range(100):  # no worker makes a ceiling of its own at a refusal
        driver.traffic(rate_qps=50, seconds=0.1)
        assert {driver.resolver("a", worker).interval_ns for worker in range(workers)} == {0}
    assert len(driver.sent_to("a", FIRST)) == 500


@pytest.mark.parametrize("workers", WORKERS)
def test_query_that_comes_while_a_refused_one_waits_has_its_turn_too(workers: int) -> None:
    driver = Driver("a", workers=workers, token_wait_s=0.3)
    driver.play("a", played(by_chance(0.5, LIMITED, seed=11)))
    driver.traffic(rate_qps=50, seconds=30.0)
    asked = driver.traffic(rate_qps=50, seconds=10.0)
    driver.advance(1.0)
    answered = [ask for ask in asked if ask.replies and rcode_of(ask.reply) == NOERROR]
    assert len(answered) >= 0.98 * len(asked)


# -- a limit is never taken for it ----------------------------------------------------------------


@pytest.mark.parametrize("kind", LIMITERS)
@pytest.mark.parametrize("limit_qps", [20, 30, 100, 1500])
@pytest.mark.parametrize("factor", [1.2, 1.5, 2.0, 3.0, 10.0])
def test_ceiling_of_a_limiter_is_never_taken_for_chance(
    kind: Callable[[float], Model], limit_qps: int, factor: float
) -> None:
    bench = Bench(kind(limit_qps), offered_qps=limit_qps * factor)
    assert seconds_taken_for_chance(bench, 40) == 0
    assert bench.answered >= 0.93 * limit_qps * 40


@pytest.mark.parametrize("moved_at_s", [12.0, 12.4, 12.8, 13.3, 13.7])
@pytest.mark.parametrize("offered_qps", [120, 300])
def test_ceiling_of_a_limit_that_moves_is_never_taken_for_chance(
    offered_qps: int, moved_at_s: float
) -> None:
    bench = Bench(limiter(100), offered_qps)
    bench.run(moved_at_s)
    assert not is_by_chance(bench)
    bench.model = limiter(30)
    assert seconds_taken_for_chance(bench, 20) == 0
    bench.model = limiter(100)
    assert seconds_taken_for_chance(bench, 20) == 0
    assert bench.qps > 90


@pytest.mark.parametrize("kind", LIMITERS)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("factor", [1.2, 2.0])
def test_engine_never_takes_a_limiter_for_chance(
    factor: float, workers: int, kind: Callable[[float], Model]
) -> None:
    driver = Driver("a", workers=workers)
    driver.play("a", played(kind(30)))
    dice = random.Random(workers)
    for _ in range(300):
        driver.advance(dice.random() * 0.05)
        driver.traffic(rate_qps=30 * factor, seconds=0.1)
        assert driver.word("a", layout.RESOLVER_RANDOM_UNTIL) == 0


# -- what is known, and until when ----------------------------------------------------------------


def known(share: float) -> Bench:
    """One whose refusals were found to be chance."""
    bench = Bench(by_chance(share, LIMITED, seed=1), offered_qps=50)
    bench.run(30.0)
    assert is_by_chance(bench)
    return bench


@pytest.mark.parametrize("outage_s", [3.0, 15.0, 90.0])
def test_chance_that_was_found_out_is_known_after_an_outage(outage_s: float) -> None:
    bench = known(0.3)
    bench.model = always(LIMITED)
    bench.run(outage_s)
    assert bench.qps > 0.0  # while nothing is answered, little is sent
    bench.model = by_chance(0.3, LIMITED, seed=2)
    bench.run(2.0)
    assert bench.qps == 0.0
    assert set(bench.run(30.0)) == {0.0}


def test_chance_is_given_up_when_clearly_more_is_refused() -> None:
    bench = known(0.3)
    bench.model = limiter(15)
    bench.run(8.0)
    assert not is_by_chance(bench)
    assert bench.qps == pytest.approx(18, rel=0.2)


@pytest.mark.parametrize("into_period_s", [0.0, 1.0, 2.0])
def test_chance_is_given_up_within_two_seconds_when_a_limit_is_new(into_period_s: float) -> None:
    # Without a ceiling what is refused comes again at once: much more is sent than was asked.
    bench = known(0.3)
    bench.run(into_period_s)
    bench.offered_qps = 1_000
    bench.model = by_the_second(15)
    bench.run(2.1)
    assert not is_by_chance(bench)


def test_chance_is_forgotten_when_it_was_not_seen_for_a_minute() -> None:
    bench = known(0.3)
    bench.model = always(ANSWERED)
    bench.run(55.0)
    assert is_by_chance(bench)
    bench.run(10.0)
    assert not is_by_chance(bench)


def test_few_refusals_in_a_row_of_a_slow_tunnel_are_no_outage() -> None:
    fed = Fed(qps=100.0)
    fed.answer(2, 10.0)
    before = fed.qps
    for _ in range(3):
        for _ in range(30):
            fed.feed()
        fed.feed(limited=1)
    fed.answer(2, 1.0)
    assert fed.qps < before  # after an outage it would be what it was


def test_worker_makes_no_ceiling_of_its_own_for_one_that_refuses_by_chance() -> None:
    driver = Driver("a")
    word = driver.board.at.resolver(driver.slot("a")) + layout.RESOLVER_RANDOM_UNTIL
    driver.board.words[word] = int((driver.now + 60.0) * NS)
    resolver = driver.resolver("a")
    resolver.read_figures(driver.now)
    driver.ask()
    driver.last.refuse()
    assert resolver.interval_ns == 0
