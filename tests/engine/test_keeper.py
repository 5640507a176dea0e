"""What the keeper makes of a resolver's counters, with one worker and with several."""

from __future__ import annotations

import pytest

from shared import layout
from tests.engine.driver import (
    Driver,
    Script,
    Sent,
    answers,
    is_closed,
    is_silent,
    loses,
    refuses,
)
from workers.engine.health import State
from workers.engine.keeper import cost_ns
from workers.engine.resolver import NS

WORKERS = [1, 2, 4]


def polls(quick_s: float, held_s: float, every: int) -> Script:
    """Answer quickly, but hold one query in `every` at the tunnel's server."""
    count = 0

    def script(sent: Sent) -> None:
        nonlocal count
        count += 1
        sent.driver.later(held_s if count % every == 0 else quick_s, sent.answer)

    return script


# -- latency ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_keeper_of_resolvers_at_10_60_and_250_ms_uses_the_first_alone(workers: int) -> None:
    driver = Driver("near", "mid", "far", workers=workers, state=State.FRESH)
    driver.play("near", answers(0.010))
    driver.play("mid", answers(0.060))
    driver.play("far", answers(0.250))
    driver.traffic(rate_qps=100, seconds=5.0)
    assert driver.states == {"near": State.IN_USE, "mid": State.ASIDE, "far": State.ASIDE}
    driver.sent.clear()
    driver.traffic(rate_qps=100, seconds=10.0)
    share = driver.shares()
    assert share["near"] >= 988
    assert share["mid"] + share["far"] <= 12
    for worker in range(workers):
        states = {each.name: each.state for each in driver.engines[worker].resolvers}
        assert states == driver.states


@pytest.mark.parametrize("workers", WORKERS)
def test_keeper_of_a_resolver_whose_polls_are_held_leaves_it_in_use(workers: int) -> None:
    driver = Driver("a", "b", workers=workers)
    driver.play("a", answers(0.020))
    driver.play("b", polls(0.020, 1.020, every=3))
    seen = set()
    for _ in range(150):
        driver.traffic(rate_qps=20 * workers, seconds=0.1)
        seen.add(driver.state("b"))
    assert seen == {State.IN_USE}
    assert driver.word("b", layout.RESOLVER_LATENCY) == pytest.approx(20_000_000, abs=1_000)


def test_keeper_of_one_held_poll_leaves_its_resolver_in_use() -> None:
    driver = Driver("a", "b")
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.020))
    driver.traffic(rate_qps=50, seconds=1.0)
    driver.play("b", answers(1.0))
    driver.traffic(rate_qps=50, seconds=1.1)
    driver.play("b", answers(0.020))
    driver.traffic(rate_qps=50, seconds=1.1)
    assert driver.states == {"a": State.IN_USE, "b": State.IN_USE}


def test_keeper_of_a_resolver_that_became_slow_sets_it_aside_when_its_fast_answers_are_old() -> (
    None
):
    driver = Driver("a", "b")
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.020))
    driver.traffic(rate_qps=50, seconds=1.0)
    driver.play("b", answers(0.400))
    driver.traffic(rate_qps=50, seconds=8.0)
    assert driver.state("b") is State.IN_USE
    driver.traffic(rate_qps=50, seconds=4.0)
    assert driver.state("b") is State.ASIDE


def test_keeper_of_a_resolver_that_became_fast_again_takes_it_back() -> None:
    driver = Driver("a", "b")
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.400))
    driver.traffic(rate_qps=50, seconds=12.0)
    assert driver.state("b") is State.ASIDE
    driver.play("b", answers(0.020))
    driver.traffic(rate_qps=50, seconds=2.5)
    assert driver.state("b") is State.IN_USE


def test_keeper_writes_round_trip_and_deviation_for_all_workers() -> None:
    driver = Driver("a", workers=2, latency_s=0.500, deviation_s=0.250)
    driver.play("a", answers(0.050))
    driver.traffic(rate_qps=100, seconds=3.0)
    assert driver.word("a", layout.RESOLVER_SRTT) == pytest.approx(50_000_000, rel=0.02)
    assert driver.word("a", layout.RESOLVER_RTTVAR) < 5_000_000
    for worker in range(2):
        resolver = driver.resolver("a", worker)
        assert resolver.srtt_s == pytest.approx(0.050, rel=0.02)
        assert resolver.rto_s == pytest.approx(0.050, abs=0.020)


# -- loss ---------------------------------------------------------------------------------------


def test_keeper_of_resolvers_that_lose_0_10_and_30_percent_uses_the_first_alone() -> None:
    driver = Driver("clean", "some", "much")
    driver.play("clean", answers(0.020))
    driver.play("some", loses(0.10, 0.020))
    driver.play("much", loses(0.30, 0.020))
    driver.traffic(rate_qps=200, seconds=8.0)
    assert driver.states["clean"] is State.IN_USE
    assert driver.states["some"] is State.ASIDE
    assert driver.states["much"] is not State.IN_USE
    driver.sent.clear()
    driver.traffic(rate_qps=200, seconds=5.0)
    assert driver.shares()["clean"] >= 990


def test_keeper_of_few_samples_does_not_set_a_healthy_resolver_aside() -> None:
    driver = Driver("a", "b")
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.020))
    driver.traffic(rate_qps=10, seconds=2.0)
    driver.play("b", is_silent)
    while driver.sent_to("b")[-1].at < driver.now - 0.001:
        driver.ask()
    driver.play("b", answers(0.020))
    driver.traffic(rate_qps=10, seconds=4.0)
    assert driver.counted("b", layout.COUNTER_LOST) == 1
    assert driver.state("b") is State.IN_USE


def test_keeper_of_a_resolver_that_stopped_losing_takes_it_back() -> None:
    driver = Driver("a", "b", down_after=1000)
    driver.play("a", answers(0.020))
    driver.play("b", loses(0.3, 0.020))
    driver.traffic(rate_qps=100, seconds=6.0)
    assert driver.state("b") is State.ASIDE
    driver.play("b", answers(0.020))
    driver.traffic(rate_qps=100, seconds=120.0)
    assert driver.state("b") is State.IN_USE


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_keeper_of_a_resolver_that_still_answers_never_sets_it_down(names: tuple[str, ...]) -> None:
    driver = Driver(*names)
    driver.play("b", answers(0.020))
    driver.play("a", loses(0.5, 0.020))
    seen = set()
    for _ in range(200):
        driver.traffic(rate_qps=40, seconds=0.1)
        seen.add(driver.state("a"))
    assert State.DOWN not in seen


def test_keeper_of_a_pool_that_loses_alike_keeps_somebody_in_use() -> None:
    driver = Driver("a", "b", "c", down_after=1000)
    for seed, name in enumerate("abc"):
        driver.play(name, loses(0.2, 0.020, seed=seed))
    for _ in range(200):
        driver.traffic(rate_qps=100, seconds=0.1)
        assert State.IN_USE in driver.states.values()


def test_cost_is_latency_over_the_share_that_arrives() -> None:
    assert cost_ns(20_000_000, 0.0) == 20_000_000
    assert cost_ns(20_000_000, 0.5) == 40_000_000
    assert cost_ns(20_000_000, 1.0) == 400_000_000  # bounded: all lost is not infinitely far
    assert cost_ns(0, 0.5) == 0


def test_keeper_counts_network_errors_as_no_loss() -> None:
    driver = Driver("a", "b", down_after=1000)
    driver.play("a", answers(0.020))
    driver.play("b", is_closed())
    driver.traffic(rate_qps=100, seconds=2.0)
    assert driver.counted("b", layout.COUNTER_ERRORS) > 50
    assert driver.word("b", layout.RESOLVER_LOSS) == 0


def test_keeper_counts_refusals_as_no_loss() -> None:
    driver = Driver("a", "b")
    driver.play("a", answers(0.020))
    driver.play("b", refuses())
    driver.traffic(rate_qps=100, seconds=4.0)
    assert driver.counted("b", layout.COUNTER_REFUSED) > 8
    assert driver.word("b", layout.RESOLVER_LOSS) == 0
    assert driver.state("b") is not State.DOWN


# -- several workers and the hand-over ----------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_keeper_sums_the_failures_of_all_workers(workers: int) -> None:
    driver = Driver("a", "dead", workers=workers)
    driver.play("a", answers(0.020))
    driver.play("dead", is_closed())
    before = driver.now
    while driver.state("dead") is State.IN_USE:
        driver.traffic(rate_qps=100, seconds=0.01)
    assert driver.state("dead") is State.DOWN
    assert driver.now - before < 0.5
    assert 8 <= driver.counted("dead", layout.COUNTER_ERRORS) <= 8 + 2 * workers
    assert driver.word("dead", layout.RESOLVER_STATE_SINCE_AT) == pytest.approx(
        driver.now * NS, abs=0.1 * NS
    )


def test_keeper_alone_writes_the_verdict() -> None:
    driver = Driver("a", "b", workers=2)
    driver.play("a", is_closed())  # kept by worker 0
    driver.play("b", answers(0.020))  # kept by worker 1
    driver.keep(0, -1)
    driver.traffic(rate_qps=100, seconds=2.0)
    assert driver.state("a") is State.IN_USE  # nobody judges it
    driver.keep(0, 1)
    driver.traffic(rate_qps=100, seconds=1.0)
    assert driver.state("a") is State.DOWN


@pytest.mark.parametrize("to", [0, 1, 2])
def test_keeper_that_takes_over_carries_on(to: int) -> None:
    driver = Driver("a", "slow", "dead", workers=3)
    driver.play("a", answers(0.020))
    driver.play("slow", answers(0.250))
    driver.play("dead", is_closed())
    driver.traffic(rate_qps=100, seconds=12.0)
    before = {"a": State.IN_USE, "slow": State.ASIDE, "dead": State.DOWN}
    assert driver.states == before
    srtt = driver.word("a", layout.RESOLVER_SRTT)
    since = [driver.word(name, layout.RESOLVER_STATE_SINCE_AT) for name in before]
    for slot in range(3):
        driver.keep(slot, to)
    driver.traffic(rate_qps=100, seconds=5.0)
    assert driver.states == before
    assert driver.word("a", layout.RESOLVER_SRTT) == pytest.approx(srtt, rel=0.02)
    after = [driver.word(name, layout.RESOLVER_STATE_SINCE_AT) for name in before]
    assert after == since
    driver.play("dead", answers(0.020))
    driver.traffic(rate_qps=100, seconds=3.0)
    assert driver.state("dead") is State.IN_USE


def test_keeper_that_takes_over_a_lossy_resolver_leaves_it_aside() -> None:
    driver = Driver("a", "lossy", workers=2, down_after=1000)
    driver.play("a", answers(0.020))
    driver.play("lossy", loses(0.3, 0.020))
    driver.traffic(rate_qps=100, seconds=6.0)
    assert driver.state("lossy") is State.ASIDE
    driver.keep(1, 0)
    for _ in range(20):
        driver.traffic(rate_qps=100, seconds=0.1)
        assert driver.state("lossy") is State.ASIDE


def test_keeper_whose_worker_was_replaced_gets_its_shard_back_without_a_new_verdict() -> None:
    driver = Driver("a", "b", "slow", workers=2)
    driver.play("a", answers(0.020))
    driver.play("b", answers(0.020))
    driver.play("slow", answers(0.250))
    driver.traffic(rate_qps=100, seconds=12.0)
    before = driver.states
    assert before["slow"] is State.ASIDE
    for slot in range(3):
        driver.keep(slot, 1)
    driver.traffic(rate_qps=100, seconds=0.5)
    driver.restart(0)
    driver.keep(0, 0)
    driver.keep(2, 0)
    asked = driver.traffic(rate_qps=100, seconds=3.0)
    driver.advance(0.5)
    assert driver.states == before
    assert {len(each.replies) for each in asked} == {1}


def test_verdicts_reach_all_workers_within_two_ticks() -> None:
    driver = Driver("a", "b", workers=4)
    driver.play("a", answers(0.020))
    driver.play("b", is_closed())
    while driver.state("b") is not State.DOWN:
        driver.traffic(rate_qps=400, seconds=0.005)
    driver.advance(0.04)
    assert {driver.resolver("b", worker).state for worker in range(4)} == {State.DOWN}
