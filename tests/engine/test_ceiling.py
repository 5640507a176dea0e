"""The learned limit: what refusals and losses make of it, for limiters, outages and plain chance.

Most tests feed a `Ceiling` by hand. `Bench` puts one between an open loop of questions and the
model of a resolver; the last tests let whole engines do the same.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from shared import layout
from tests.engine.driver import START, Driver, Script, answers, is_silent
from tests.rig.wire import REFUSED
from workers.engine.ceiling import Ceiling
from workers.engine.health import State
from workers.engine.keeper import EQUAL_LOSS
from workers.engine.loss import LossEstimate
from workers.engine.pending import FIRST
from workers.engine.resolver import MICRO
from workers.engine.selection import BURST_NS

STEP_S = 0.02
PER_ATTEMPT_S = 2.0
ROUND_TRIP_STEPS = 2
BURST_S = BURST_NS / 1e9
SEEDS = [1, 2, 3, 4, 5]

ANSWERED, LIMITED, LOST = "answered", "limited", "lost"

Model = Callable[[float], str]
"""What becomes of a query that is sent at this time."""


class Fed:
    """A ceiling with a clock: each `feed` is one step of 20 ms."""

    def __init__(self, qps: float = 0.0) -> None:
        self.now = START
        self.ceiling = Ceiling(START, PER_ATTEMPT_S, qps)

    @property
    def qps(self) -> float:
        return self.ceiling.qps

    def feed(self, *, sent: int | None = None, **counted: Any) -> None:
        self.now += STEP_S
        counts = {"answered": 0, "limited": 0, "lost": 0, "held": 1, "losing": False, **counted}
        if sent is None:
            sent = counts["answered"] + counts["limited"]
        self.ceiling.observe(self.now, **{"sent": sent, "extra_at": 0.0, **counts})

    def answer(self, rate_qps: float, seconds: float, **counted: Any) -> None:
        """Let it answer evenly at a rate that is a whole number of answers per so many steps."""
        owed = 0.0
        for _ in range(round(seconds / STEP_S)):
            owed += rate_qps * STEP_S
            whole = int(owed + 1e-9)
            owed -= whole
            self.feed(answered=whole, **counted)


class Bench:
    """An open loop of questions, the ceiling, and a resolver. What the ceiling holds is gone."""

    def __init__(self, model: Model, offered_qps: float) -> None:
        self.model = model
        self.offered_qps = offered_qps
        self.now = START
        self.ceiling = Ceiling(START, PER_ATTEMPT_S)
        self.sent = 0
        self.answered = 0
        self._loss = LossEstimate(START)
        self._tokens = 0.0
        self._owed = 0.0
        self._coming: deque[tuple[float, str]] = deque()
        self._timing_out: deque[float] = deque()

    @property
    def qps(self) -> float:
        return self.ceiling.qps

    def step(self) -> None:
        self.now += STEP_S
        counts = {ANSWERED: 0, LIMITED: 0, LOST: 0}
        while self._coming and self._coming[0][0] <= self.now:
            counts[self._coming.popleft()[1]] += 1
        while self._timing_out and self._timing_out[0] <= self.now:
            self._timing_out.popleft()
            counts[LOST] += 1
        self._owed += self.offered_qps * STEP_S
        self._tokens = min(self._tokens + self.qps * STEP_S, max(self.qps * BURST_S, 1.0))
        sent = held = 0
        while self._owed >= 1.0:
            self._owed -= 1.0
            if self.qps:
                if self._tokens < 1.0:
                    held += 1
                    continue
                self._tokens -= 1.0
            sent += 1
            outcome = self.model(self.now)
            if outcome == LOST:
                self._timing_out.append(self.now + PER_ATTEMPT_S)
            else:
                self._coming.append((self.now + ROUND_TRIP_STEPS * STEP_S, outcome))
        self.sent += sent
        self.answered += counts[ANSWERED]
        if any(counts.values()):
            self._loss.count(self.now, counts[ANSWERED] + counts[LIMITED], counts[LOST])
        self.ceiling.observe(
            self.now,
            sent=sent,
            held=held,
            extra_at=0.0,
            losing=self._loss.interval()[0] > EQUAL_LOSS,
            **counts,
        )

    def run(self, seconds: float) -> list[float]:
        """Let the time pass; return the ceiling after each step."""
        seen = []
        for _ in range(round(seconds / STEP_S)):
            self.step()
            seen.append(self.qps)
        return seen


def limiter(limit_qps: float, over: str = LIMITED) -> Model:
    """A token bucket that holds one second's worth; what exceeds it is refused or lost."""
    tokens = limit_qps
    at = START

    def model(now: float) -> str:
        nonlocal tokens, at
        tokens = min(limit_qps, tokens + (now - at) * limit_qps)
        at = now
        if tokens < 1.0:
            return over
        tokens -= 1.0
        return ANSWERED

    return model


def by_chance(share: float, outcome: str, seed: int) -> Model:
    """This outcome for a random share, whatever the rate."""
    dice = random.Random(seed)
    return lambda _: outcome if dice.random() < share else ANSWERED


def always(outcome: str) -> Model:
    return lambda _: outcome


# -- lowering -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rate_qps", [25, 50, 100, 1000])
def test_ceiling_after_a_refusal_is_a_fifth_above_the_recent_rate(rate_qps: int) -> None:
    fed = Fed()
    fed.answer(rate_qps, 10.0)
    assert fed.qps == 0.0
    fed.feed(limited=1)
    assert fed.qps == pytest.approx(1.2 * rate_qps, rel=0.03)


def test_ceiling_after_a_refusal_follows_a_rate_that_has_changed() -> None:
    fed = Fed()
    fed.answer(200, 10.0)
    fed.answer(50, 3.0)
    fed.feed(limited=1)
    assert fed.qps == pytest.approx(60, rel=0.05)


@pytest.mark.parametrize("answered", [0, 1, 5, 9])
def test_ceiling_after_a_refusal_before_ten_answers_counts_as_ten(answered: int) -> None:
    fed = Fed()
    fed.answer(0, 3.0)
    for _ in range(answered):
        fed.feed(answered=1)
    fed.feed(limited=1)
    assert fed.qps == pytest.approx(12.0)


def test_ceiling_after_losses_is_a_tenth_below_the_recent_rate() -> None:
    fed = Fed()
    fed.answer(100, 5.0)
    fed.feed(lost=3, losing=True)
    assert fed.qps == pytest.approx(90, rel=0.03)


@pytest.mark.parametrize(
    ("lost", "losing"),
    [pytest.param(2, True, id="too few"), pytest.param(50, False, id="within chance")],
)
def test_ceiling_is_not_lowered_by_losses_that_say_nothing(lost: int, losing: bool) -> None:
    fed = Fed()
    fed.answer(100, 5.0)
    fed.feed(lost=lost, losing=losing)
    assert fed.qps == 0.0


def test_ceiling_is_not_lowered_by_few_losses_that_are_far_apart() -> None:
    fed = Fed()
    for _ in range(5):
        fed.answer(100, 4.0)
        fed.feed(lost=2, losing=True)
    assert fed.qps == 0.0


def test_ceiling_after_losses_of_an_idle_tunnel_is_not_beneath_the_first_answers() -> None:
    fed = Fed()
    fed.answer(2, 5.0)
    fed.feed(lost=3, losing=True)
    assert fed.qps == pytest.approx(9.0)


@pytest.mark.parametrize("burst", [1, 10])
def test_ceiling_after_a_quiet_spell_is_lowered_by_three_tenths_at_most(burst: int) -> None:
    fed = Fed(qps=100.0)
    fed.answer(2, 5.0)
    before = fed.qps
    for _ in range(burst):
        fed.feed(limited=1)
    assert fed.qps == pytest.approx(0.7 * before)


@pytest.mark.parametrize("limited", [1, 5])
def test_ceiling_is_not_lowered_for_a_second_after_extra_traffic(limited: int) -> None:
    fed = Fed(qps=100.0)
    fed.answer(50, 5.0)
    extra_at = fed.now
    before = fed.qps
    while fed.now + STEP_S < extra_at + 1.0 - STEP_S / 2:
        fed.feed(answered=1, limited=limited, extra_at=extra_at)
        assert fed.qps >= before
    for _ in range(2):
        fed.feed(answered=1, limited=limited, extra_at=extra_at)
    assert fed.qps < before


# -- raising ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate_qps", [1, 2, 10, 50])
def test_ceiling_grows_by_a_tenth_a_second_however_rare_the_answers(rate_qps: int) -> None:
    fed = Fed(qps=100.0)
    fed.answer(rate_qps, 1.0)
    before = fed.qps
    fed.answer(rate_qps, 5.0)
    assert fed.qps == pytest.approx(before * 1.1**5, rel=0.01)


def test_ceiling_without_answers_does_not_grow() -> None:
    fed = Fed(qps=100.0)
    fed.answer(0, 10.0)
    assert fed.qps == 100.0


def test_ceiling_that_holds_nothing_back_is_removed() -> None:
    fed = Fed(qps=100.0)
    fed.answer(50, 2.9, held=0)
    assert fed.qps > 0.0
    fed.answer(50, 0.2, held=0)
    assert fed.qps == 0.0


def test_ceiling_that_holds_something_back_now_and_then_stays() -> None:
    fed = Fed(qps=10.0)
    for _ in range(10):
        fed.answer(10, 2.8, held=0)
        fed.feed(answered=1, held=1)
        assert fed.qps > 0.0


def test_ceiling_that_two_whole_seconds_of_answers_exceed_is_raised_at_once() -> None:
    fed = Fed(qps=20.0)
    fed.answer(100, 1.9)
    assert fed.qps < 30.0
    fed.answer(100, 0.2)
    assert fed.qps == pytest.approx(100, rel=0.03)


def test_ceiling_that_one_second_of_answers_exceeds_is_not_raised() -> None:
    fed = Fed(qps=20.0)
    fed.answer(100, 1.0)
    fed.answer(10, 2.5)
    assert fed.qps < 20.0 * 1.1**3.5 + 1


# -- outages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("outage_s", [3.0, 15.0, 30.0])
def test_ceiling_after_an_outage_of_refusals_is_at_once_what_it_was(outage_s: float) -> None:
    bench = Bench(limiter(50), offered_qps=100)
    bench.run(20.0)
    before = bench.qps
    bench.model = always(LIMITED)
    bench.run(outage_s)
    bench.model = limiter(50)
    answered = bench.answered
    while bench.answered == answered:
        bench.step()
    assert bench.qps == pytest.approx(before, rel=0.1)
    assert min(bench.run(10.0)) >= 45


@pytest.mark.parametrize("outage_s", [3.0, 15.0, 30.0])
@pytest.mark.parametrize("offered_qps", [5, 50, 200])
def test_ceiling_after_an_outage_is_none_where_there_was_none(
    outage_s: float, offered_qps: int
) -> None:
    bench = Bench(always(ANSWERED), offered_qps)
    bench.run(10.0)
    assert bench.qps == 0.0
    bench.model = always(LIMITED)
    bench.run(outage_s)
    assert bench.qps > 0.0
    bench.model = always(ANSWERED)
    answered = bench.answered
    while bench.answered == answered:
        bench.step()
    assert bench.qps == 0.0
    assert set(bench.run(5.0)) == {0.0}


@pytest.mark.parametrize("late", [1, 3, 10])
def test_ceiling_after_an_outage_is_about_what_it_was_though_refusals_come_late(late: int) -> None:
    fed = Fed(qps=60.0)
    fed.answer(50, 5.0)
    before = fed.qps
    for _ in range(200):
        fed.feed(limited=1)
    assert fed.qps < 0.5 * before
    fed.feed(answered=1, limited=1)
    fed.answer(50, (late - 1) * STEP_S, limited=1)
    assert fed.qps >= 0.65 * before


def test_ceiling_after_an_outage_follows_refusals_that_go_on() -> None:
    fed = Fed(qps=100.0)
    fed.answer(80, 5.0)
    for _ in range(200):
        fed.feed(limited=1)
    fed.answer(20, 5.0, limited=1)
    assert fed.qps == pytest.approx(24, rel=0.1)


# -- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit_qps", [20, 30, 100])
def test_ceiling_of_a_true_limiter_stays_a_little_above_its_limit(limit_qps: int) -> None:
    bench = Bench(limiter(limit_qps), offered_qps=300)
    bench.run(6.0)
    before = bench.answered
    seen = bench.run(60.0)
    usual = sum(limit_qps <= qps <= 1.35 * limit_qps for qps in seen)
    assert usual >= 0.97 * len(seen)  # the rest are tests for chance
    assert bench.answered - before >= 0.95 * limit_qps * 60
    assert bench.ceiling.random_until == 0.0


def test_ceiling_of_one_that_drops_above_its_limit_stays() -> None:
    bench = Bench(limiter(40, over=LOST), offered_qps=100)
    bench.run(10.0)
    before = bench.answered
    seen = bench.run(60.0)
    assert min(seen) > 0.0
    assert max(seen) < 100
    assert bench.answered - before >= 0.7 * 40 * 60
    assert bench.ceiling.random_until == 0.0


# -- whole engines ------------------------------------------------------------------------------


def played(model: Model, delay_s: float = 0.010) -> Script:
    """The model of a resolver as a script for the driver."""

    def script(sent: Any) -> None:
        outcome = model(sent.driver.now)
        if outcome == LIMITED:
            sent.driver.later(delay_s, lambda: sent.refuse(REFUSED))
        elif outcome == ANSWERED:
            sent.driver.later(delay_s, sent.answer)

    return script


def ceiling_of(driver: Driver, name: str) -> float:
    return driver.word(name, layout.RESOLVER_CEILING) / MICRO


@pytest.mark.parametrize("limit_qps", [30, 100])
def test_engine_keeps_a_true_limiter_at_its_limit(limit_qps: int) -> None:
    driver = Driver("a")
    driver.play("a", played(limiter(limit_qps)))
    driver.traffic(rate_qps=300, seconds=6.0)
    driver.sent.clear()
    before = driver.counted("a", layout.COUNTER_ANSWERED)
    for _ in range(20):
        driver.traffic(rate_qps=300, seconds=1.0)
        assert limit_qps <= ceiling_of(driver, "a") <= 1.35 * limit_qps
    assert driver.counted("a", layout.COUNTER_ANSWERED) - before >= 0.95 * limit_qps * 20
    assert len(driver.sent_to("a")) <= 1.35 * limit_qps * 20


@pytest.mark.parametrize("outage_s", [3.0, 15.0])
def test_engine_after_an_outage_of_refusals_sends_all_at_once(outage_s: float) -> None:
    driver = Driver("a")
    driver.play("a", answers(0.010))
    driver.traffic(rate_qps=50, seconds=5.0)
    driver.play("a", played(always(LIMITED)))
    driver.traffic(rate_qps=50, seconds=outage_s)
    driver.play("a", answers(0.010))
    driver.traffic(rate_qps=50, seconds=1.0)
    assert ceiling_of(driver, "a") == 0.0
    asked = driver.traffic(rate_qps=50, seconds=5.0)
    assert {each.reply[3] & 0x0F for each in asked[:-1]} == {0}


# -- lists of the dead --------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_trials_take_one_query_in_eight_at_most_beside_two_hundred_dead(workers: int) -> None:
    driver = Driver("a", workers=workers, spare_slots=200)
    driver.play("a", answers(0.020))
    dead = [f"dead{number}" for number in range(200)]
    driver.set_roster("a", *dead)
    for name in dead:
        driver.play(name, is_silent)
        for worker in range(workers):
            driver.resolver(name, worker).heard = True  # strangers have no trials of live queries
    asked = driver.traffic(rate_qps=200, seconds=10.0)
    driver.advance(5.0)
    for worker in range(workers):
        firsts = [each for each in driver.sent if each.worker == worker and each.kind == FIRST]
        trials = [place for place, each in enumerate(firsts) if each.name != "a"]
        assert len(trials) >= 50
        assert min(after - before for before, after in pairwise(trials)) >= 8
    assert {len(each.replies) for each in asked} == {1}
    assert {each.reply[3] & 0x0F for each in asked} == {0}


def test_fresh_that_answered_carry_the_load_where_nobody_is_in_use() -> None:
    names = [f"r{number}" for number in range(20)]
    driver = Driver(*names, state=State.FRESH)
    for name in names:
        driver.play(name, is_silent)
    # So slow that eight replies, the proof, are far off when the first has come.
    for name in ("r3", "r4"):
        driver.play(name, answers(1.5))
    driver.traffic(rate_qps=20, seconds=2.2)
    driver.sent.clear()
    driver.traffic(rate_qps=20, seconds=1.0)
    assert set(driver.states.values()) == {State.FRESH}
    shares = driver.shares()
    assert shares["r3"] >= 6  # hedges take their turns too
    assert shares["r4"] >= 6
    assert shares["r3"] + shares["r4"] >= 20 - 20 // 8 - 1


# -- an attempt that may take longer than its query ---------------------------------------------


def slow_tunnel(*names: str) -> Driver:
    return Driver(*names, per_attempt_s=6.0, deadline_s=5.0, hedge_only_losing=True)


def test_losses_are_counted_where_an_attempt_may_outlast_its_query() -> None:
    driver = slow_tunnel("a")
    driver.play("a", is_silent)
    driver.traffic(rate_qps=1, seconds=4.0)
    driver.advance(6.0)
    assert driver.counted("a", layout.COUNTER_LOST) == 4


@pytest.mark.parametrize("beside", [(), ("b",)])
def test_dead_resolver_goes_down_where_an_attempt_may_outlast_its_query(
    beside: tuple[str, ...],
) -> None:
    driver = slow_tunnel("a", *beside)
    for name in ("a", *beside):
        driver.play(name, answers(0.020))
    driver.traffic(rate_qps=10, seconds=5.0)
    driver.play("a", is_silent)
    driver.traffic(rate_qps=10, seconds=9.0)
    # Beside another one it may be set aside first; it is then tried, and counted, less often.
    assert driver.state("a") is not State.IN_USE or not beside
    driver.traffic(rate_qps=10, seconds=11.0)
    assert driver.state("a") is State.DOWN
