"""Who gets the next query: equal shares, trials of the fresh, the aside and the down, policies."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from shared import layout
from tests.engine.driver import Driver, answers, is_closed, is_silent, loses, refuses
from tests.rig.wire import SERVFAIL
from workers.engine.health import State
from workers.engine.pending import COPY, PROBE
from workers.engine.resolver import NS

WORKERS = [1, 2, 4]


def reachable(driver: Driver, **delays_s: float) -> None:
    for name, delay_s in delays_s.items():
        driver.play(name, answers(delay_s))


# -- equals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("resolvers", [1, 3, 10])
def test_equals_get_equal_shares(resolvers: int, workers: int) -> None:
    names = [f"r{number}" for number in range(resolvers)]
    driver = Driver(*names, workers=workers)
    for name in names:
        driver.play(name, answers(0.020))
    driver.traffic(rate_qps=resolvers * workers * 20, seconds=2.0)
    share = driver.shares()
    assert set(share) == set(names)
    assert max(share.values()) - min(share.values()) <= workers


def test_equals_take_turns_the_least_recently_used_first() -> None:
    driver = Driver("a", "b", "c")
    order = []
    for _ in range(9):
        driver.ask()
        order.append(driver.last.name)
    assert order == ["a", "b", "c"] * 3


def test_equals_within_a_fifth_and_five_milliseconds_share() -> None:
    driver = Driver("a", "b", "c", latency_s=0.100)
    reachable(driver, a=0.100, b=0.124, c=0.126)
    driver.traffic(rate_qps=60, seconds=11.0)
    driver.sent.clear()
    driver.traffic(rate_qps=60, seconds=5.0)
    share = driver.shares()
    assert driver.states == {"a": State.IN_USE, "b": State.IN_USE, "c": State.ASIDE}
    assert abs(share["a"] - share["b"]) <= 2
    assert share["c"] <= 3


# -- fresh --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_fresh_resolver_beside_one_in_use_has_one_query_at_a_time(workers: int) -> None:
    driver = Driver("a", workers=workers)
    reachable(driver, a=0.020)
    driver.set_roster("a", "new")
    driver.play("new", answers(0.150))
    driver.traffic(rate_qps=200, seconds=0.140 * 8)
    to_new = driver.sent_to("new")
    assert driver.state("new") is State.FRESH
    assert 3 <= len(to_new) <= 8
    gaps = [after.at - before.at for before, after in pairwise(to_new)]
    assert min(gaps) >= 0.150


@pytest.mark.parametrize("workers", WORKERS)
def test_fresh_resolver_is_proven_by_eight_replies(workers: int) -> None:
    driver = Driver("a", workers=workers)
    reachable(driver, a=0.020)
    driver.set_roster("a", "new")
    reachable(driver, new=0.020)
    driver.traffic(rate_qps=200, seconds=2.0)
    assert driver.states == {"a": State.IN_USE, "new": State.IN_USE}
    driver.sent.clear()
    driver.traffic(rate_qps=200, seconds=1.0)
    assert driver.shares()["new"] == pytest.approx(100, abs=workers)


def test_fresh_resolver_whose_replies_are_refusals_is_judged_after_eight() -> None:
    driver = Driver("a")
    reachable(driver, a=0.020)
    driver.set_roster("a", "new")
    driver.play("new", refuses())
    give_up_at = driver.now + 30.0
    while driver.counted("new", layout.COUNTER_REFUSED) < 8 and driver.now < give_up_at:
        assert driver.state("new") is State.FRESH
        driver.traffic(rate_qps=100, seconds=0.02)
    driver.advance(0.2)
    assert driver.state("new") is State.ASIDE


@pytest.mark.parametrize(("duplicate", "first"), [(1, PROBE), (2, COPY)])
def test_fresh_resolver_that_is_silent_costs_one_question_beside_per_attempt_time(
    duplicate: int, first: int
) -> None:
    driver = Driver("a", duplicate=duplicate)
    reachable(driver, a=0.020)
    driver.set_roster("a", "new")
    driver.play("new", is_silent)
    asked = driver.traffic(rate_qps=100, seconds=10.0)
    driver.advance(3.0)
    assert [sent.kind for sent in driver.sent_to("new")] == [first] * 2 + [COPY] * 3
    assert {len(each.replies) for each in asked} == set(range(1, duplicate + 1))
    assert {reply[3] & 0x0F for each in asked for reply in each.replies} == {0}


def test_fresh_resolvers_with_nobody_in_use_carry_the_load() -> None:
    driver = Driver("a", "b", state=State.FRESH)
    reachable(driver, a=0.020, b=0.020)
    asked = driver.traffic(rate_qps=100, seconds=0.2)
    driver.advance(0.1)
    assert driver.shares() == pytest.approx({"a": 10, "b": 10}, abs=1)
    assert {len(each.replies) for each in asked} == {1}


def test_fresh_resolvers_that_stood_in_turn_wait_for_no_trial_when_the_first_is_proven() -> None:
    for workers, rate_qps in ((1, 80), (1, 100), (2, 100), (4, 80), (4, 100)):
        driver = Driver("a", "b", "c", workers=workers, state=State.FRESH)
        reachable(driver, a=0.010, b=0.010, c=0.010)
        driver.traffic(rate_qps=rate_qps, seconds=1.5)
        assert set(driver.states.values()) == {State.IN_USE}, (workers, rate_qps)


def test_fresh_resolver_that_seems_faster_does_not_take_the_load_before_it_is_proven() -> None:
    driver = Driver("a", latency_s=0.060)
    reachable(driver, a=0.060)
    driver.set_roster("a", "new")
    driver.play("new", answers(0.010))
    # An idle tunnel: five questions a second, so eight replies of the new one take a while.
    driver.traffic(rate_qps=5, seconds=1.2)
    assert len(driver.sent_to("new")) < 8
    assert driver.states == {"a": State.IN_USE, "new": State.FRESH}


# -- aside --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_aside_resolver_is_tried_once_every_two_seconds_over_all_workers(workers: int) -> None:
    driver = Driver("a", "slow", workers=workers)
    reachable(driver, a=0.020, slow=0.250)
    driver.traffic(rate_qps=100, seconds=12.0)
    assert driver.state("slow") is State.ASIDE
    driver.sent.clear()
    driver.traffic(rate_qps=100, seconds=20.0)
    tries = [sent.at for sent in driver.sent_to("slow")]
    assert 9 <= len(tries) <= 11
    gaps = [after - before for before, after in pairwise(tries)]
    assert min(gaps) >= 1.99


def test_aside_resolvers_each_have_their_own_turn() -> None:
    driver = Driver("a", "slow", "slower", latency_s=0.010)
    reachable(driver, a=0.010, slow=0.060, slower=0.250)
    driver.traffic(rate_qps=50, seconds=15.0)
    assert driver.states == {"a": State.IN_USE, "slow": State.ASIDE, "slower": State.ASIDE}
    driver.sent.clear()
    driver.traffic(rate_qps=50, seconds=10.0)
    share = driver.shares()
    assert 4 <= share["slow"] <= 6
    assert 4 <= share["slower"] <= 6


def test_aside_resolver_gets_the_load_when_those_in_use_are_gone() -> None:
    driver = Driver("a", "slow")
    reachable(driver, a=0.020, slow=0.250)
    driver.traffic(rate_qps=50, seconds=12.0)
    assert driver.state("slow") is State.ASIDE
    driver.play("a", is_closed())
    asked = driver.traffic(rate_qps=50, seconds=3.0)
    driver.advance(0.5)
    assert {each.reply[3] & 0x0F for each in asked} == {0}
    assert driver.states == {"a": State.DOWN, "slow": State.IN_USE}


def test_aside_resolvers_are_never_all_of_them_one_being_slower_and_one_lossier() -> None:
    driver = Driver("lossy", "slow")
    driver.play("lossy", loses(0.2, 0.020))
    driver.play("slow", answers(0.250))
    driver.traffic(rate_qps=50, seconds=12.0)
    asked = driver.traffic(rate_qps=50, seconds=5.0)
    driver.advance(6.0)
    assert {each.replies[0][3] & 0x0F for each in asked} == {0}
    assert State.IN_USE in driver.states.values()


def test_only_resolver_is_not_set_aside_for_refusals() -> None:
    driver = Driver("a", state=State.FRESH)
    # A tunnel whose server is not up yet: every question ends in SERVFAIL, until it is.
    driver.play("a", refuses(rcode=SERVFAIL))
    driver.traffic(rate_qps=5, seconds=8.0)
    driver.play("a", answers(0.020))
    asked = driver.traffic(rate_qps=5, seconds=4.0)
    driver.advance(0.1)
    assert [each.reply[3] & 0x0F for each in asked] == [0] * 20


# -- down ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_down_resolver_gets_a_copy_once_a_second_over_all_workers(workers: int) -> None:
    driver = Driver("a", "dead", workers=workers)
    driver.play("a", answers(0.020))
    driver.play("dead", is_closed())
    driver.traffic(rate_qps=100, seconds=2.0)
    assert driver.state("dead") is State.DOWN
    driver.play("dead", is_silent)
    driver.sent.clear()
    asked = driver.traffic(rate_qps=100, seconds=20.0)
    copies = driver.sent_to("dead")
    assert {sent.kind for sent in copies} == {COPY}
    assert 19 <= len(copies) <= 21
    gaps = [after.at - before.at for before, after in pairwise(copies)]
    assert min(gaps) >= 0.99
    driver.advance(0.1)
    assert {len(each.replies) for each in asked} == {1}
    assert driver.board.pool_total(0, layout.POOL_COPIES) >= 19


@pytest.mark.parametrize("workers", WORKERS)
def test_down_resolver_is_back_as_fresh_at_its_first_answer(workers: int) -> None:
    driver = Driver("a", "dead", workers=workers)
    driver.play("a", answers(0.020))
    driver.play("dead", is_closed())
    driver.traffic(rate_qps=100, seconds=2.0)
    assert driver.state("dead") is State.DOWN
    driver.play("dead", answers(0.020))
    driver.sent.clear()
    driver.traffic(rate_qps=100, seconds=1.1)
    assert driver.state("dead") is not State.DOWN
    assert driver.sent_to("dead")[0].kind == COPY
    driver.traffic(rate_qps=100, seconds=2.0)
    assert driver.states == {"a": State.IN_USE, "dead": State.IN_USE}


def test_down_resolvers_answer_to_a_copy_reaches_the_client_too() -> None:
    driver = Driver("a", "dead")
    driver.play("a", answers(0.020))
    driver.play("dead", is_closed())
    driver.traffic(rate_qps=100, seconds=1.0)
    driver.play("dead", answers(0.030))
    driver.advance(1.5)
    asked = driver.ask()
    driver.advance(0.1)
    assert len(asked.replies) == 2


def test_down_resolver_is_set_down_by_eight_network_errors() -> None:
    driver = Driver("a", "dead")
    driver.play("a", answers(0.020))
    driver.play("dead", is_closed())
    states = []
    while driver.counted("dead", layout.COUNTER_ERRORS) < 8:
        states.append(driver.state("dead"))
        driver.traffic(rate_qps=20, seconds=0.05)
    assert set(states) == {State.IN_USE}
    assert driver.state("dead") is State.DOWN


def test_down_after_silence_comes_with_eight_losses() -> None:
    driver = Driver("a", "dead")
    driver.play("a", answers(0.020))
    driver.play("dead", is_silent)
    driver.traffic(rate_qps=100, seconds=2.5)
    assert driver.state("dead") is State.DOWN


def test_all_down_keeps_sendings_at_the_rate_of_trials() -> None:
    driver = Driver("a", "b")
    for name in "ab":
        driver.play(name, is_closed())
    driver.traffic(rate_qps=100, seconds=1.0)
    assert set(driver.states.values()) == {State.DOWN}
    driver.sent.clear()
    asked = driver.traffic(rate_qps=100, seconds=10.0)
    assert 10 <= len(driver.sent) <= 44  # one a second each, and what a failed one tries next
    driver.advance(1.0)
    assert {len(each.replies) for each in asked} == {1}


@pytest.mark.parametrize("workers", WORKERS)
def test_all_down_each_has_its_trial_every_second_whatever_the_query_has_tried(
    workers: int,
) -> None:
    names = ("a", "b", "c")
    driver = Driver(*names, workers=workers)
    for name in names:
        driver.play(name, is_silent)
    driver.traffic(rate_qps=50, seconds=20.0)
    driver.sent.clear()
    driver.traffic(rate_qps=50, seconds=60.0)
    sent = Counter(each.name for each in driver.sent)
    assert min(sent.values()) >= 56


def test_fresh_resolvers_are_proven_within_seconds_at_little_traffic() -> None:
    driver = Driver("a", "b", "c", state=State.FRESH)
    reachable(driver, a=0.010, b=0.010, c=0.010)
    driver.traffic(rate_qps=40, seconds=2.5)
    assert set(driver.states.values()) == {State.IN_USE}


def test_all_down_the_first_one_back_carries_the_load() -> None:
    driver = Driver("a", "b")
    for name in "ab":
        driver.play(name, is_closed())
    driver.traffic(rate_qps=100, seconds=1.0)
    driver.play("b", answers(0.020))
    driver.traffic(rate_qps=100, seconds=1.5)
    asked = driver.traffic(rate_qps=100, seconds=2.0)
    driver.advance(0.1)
    assert {each.reply[3] & 0x0F for each in asked} == {0}
    assert driver.states == {"a": State.DOWN, "b": State.IN_USE}


# -- probes -------------------------------------------------------------------------------------


def test_probe_of_a_down_resolver_goes_out_every_interval_while_it_is_quiet() -> None:
    driver = Driver("a", "dead", probe_name="probe.example")
    driver.play("a", answers(0.020))
    driver.play("dead", is_closed())
    driver.traffic(rate_qps=100, seconds=1.0)
    driver.play("dead", is_silent)
    driver.advance(5.0)
    driver.sent.clear()
    driver.advance(50.0)
    probes = driver.sent_to("dead")
    assert {sent.kind for sent in probes} == {PROBE}
    assert 9 <= len(probes) <= 11
    assert b"\x05probe\x07example\x00\x00\x01\x00\x01" in probes[0].wire
    assert driver.sent_to("a") == []
    assert driver.engines[0].counters.pending == 0


@pytest.mark.parametrize("workers", [2, 4])
def test_probe_of_a_down_resolver_is_one_an_interval_over_all_workers(workers: int) -> None:
    # The workers started more than a second apart, as after one was respawned.
    driver = Driver("a", "dead", workers=workers, phase_s=1.2)
    driver.play("a", answers(0.020))
    driver.play("dead", is_closed())
    driver.advance(5.0)
    driver.traffic(rate_qps=100, seconds=1.0)
    assert driver.state("dead") is State.DOWN
    driver.play("dead", is_silent)
    driver.advance(10.0)
    driver.sent.clear()
    driver.advance(50.0)
    assert 9 <= len(driver.sent_to("dead")) <= 11


def test_probe_that_is_answered_brings_the_resolver_back() -> None:
    driver = Driver("a", "dead")
    driver.play("a", answers(0.020))
    driver.play("dead", is_closed())
    driver.traffic(rate_qps=100, seconds=1.0)
    driver.play("dead", answers(0.020))
    driver.advance(11.0)
    assert driver.state("dead") is State.FRESH
    assert driver.engines[0].outbox == type(driver.engines[0].outbox)()


def test_probe_is_not_sent_while_there_is_traffic_or_nobody_is_down() -> None:
    driver = Driver("a", "b")
    reachable(driver, a=0.020, b=0.020)
    driver.traffic(rate_qps=1, seconds=20.0)
    driver.advance(20.0)
    assert driver.shares(PROBE) == {}


# -- the other policies -------------------------------------------------------------------------


def test_roundrobin_takes_all_in_turn_slow_ones_too() -> None:
    driver = Driver("a", "slow", load_balance="roundrobin")
    reachable(driver, a=0.020, slow=0.250)
    driver.traffic(rate_qps=50, seconds=12.0)
    driver.sent.clear()
    driver.traffic(rate_qps=50, seconds=4.0)
    assert driver.shares() == {"a": 100, "slow": 100}


def test_weighted_follows_the_weights() -> None:
    driver = Driver("weight1:a", "weight3:b", "weight6:c", load_balance="weighted")
    for name in ("weight1:a", "weight3:b", "weight6:c"):
        driver.play(name, answers(0.020))
    driver.traffic(rate_qps=1000, seconds=4.0)
    share = driver.shares()
    assert share["weight1:a"] == pytest.approx(400, abs=80)
    assert share["weight3:b"] == pytest.approx(1200, abs=130)
    assert share["weight6:c"] == pytest.approx(2400, abs=150)


def test_lowest_latency_prefers_the_fastest_of_equals() -> None:
    driver = Driver("a", "b", "c", load_balance="lowest_latency")
    reachable(driver, a=0.022, b=0.020, c=0.023)
    driver.traffic(rate_qps=100, seconds=12.0)
    driver.sent.clear()
    driver.traffic(rate_qps=100, seconds=5.0)
    share = driver.shares()
    assert share["b"] >= 480


def test_lowest_latency_moves_to_another_that_became_faster_without_a_change_of_state() -> None:
    driver = Driver("a", "b", load_balance="lowest_latency")
    reachable(driver, a=0.020, b=0.024)
    driver.traffic(rate_qps=100, seconds=12.0)
    reachable(driver, a=0.024, b=0.020)
    driver.traffic(rate_qps=100, seconds=30.0)
    driver.sent.clear()
    driver.traffic(rate_qps=100, seconds=2.0)
    assert driver.shares()["b"] >= 190


@pytest.mark.parametrize("policy", ["auto", "roundrobin", "weighted", "lowest_latency"])
def test_every_policy_fails_over_keeps_health_and_brings_back(policy: str) -> None:
    driver = Driver("a", "b", "c", load_balance=policy)
    reachable(driver, a=0.020, b=0.020, c=0.020)
    driver.traffic(rate_qps=100, seconds=1.0)
    driver.play("a", is_closed())
    asked = driver.traffic(rate_qps=100, seconds=3.0)
    driver.play("a", answers(0.020))
    asked += driver.traffic(rate_qps=100, seconds=5.0)
    driver.advance(0.1)
    assert {each.reply[3] & 0x0F for each in asked if len(each.replies) == 1} == {0}
    assert all(each.replies for each in asked)
    assert driver.state("a") is State.IN_USE


@pytest.mark.parametrize("policy", ["auto", "roundrobin", "weighted", "lowest_latency"])
def test_every_policy_sends_a_refused_query_to_another(policy: str) -> None:
    driver = Driver("a", "b", load_balance=policy)
    driver.play("a", refuses())
    driver.play("b", answers(0.020))
    asked = driver.traffic(rate_qps=20, seconds=1.0)
    driver.advance(0.1)
    assert Counter(each.reply[3] & 0x0F for each in asked) == {0: 20}


# -- tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [1_000.0, 1_000_000.0, 30_000_000.0])
def test_room_is_looked_for_when_the_token_is_there_and_not_a_moment_sooner(start: float) -> None:
    for number in range(30):
        driver = Driver("a", token_wait_s=0.3, start=start)
        resolver = driver.resolver("a")
        resolver.interval_ns = NS // 100
        free_ns = int(driver.now * NS) + 10_000_000 + number * 997
        driver.board.words[resolver.bucket] = free_ns
        driver.ask()
        assert free_ns <= int(driver.engines[0].wake_at * NS) <= free_ns + 10_000
