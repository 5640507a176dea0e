"""The timing wheel: nothing is lost, nothing is early, nothing is more than a slot late."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from workers.engine.timers import SLOTS_PER_SECOND, TimingWheel

SLOT_S = 1 / SLOTS_PER_SECOND
times = st.floats(0, 50, allow_nan=False).map(lambda t: 1000.0 + t)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), times),
        st.tuples(st.just("due"), st.floats(0, 3, allow_nan=False)),
    ),
    max_size=60,
)


@given(steps)
def test_wheel_under_any_use_gives_every_entry_once_and_in_time(
    script: list[tuple[str, float]],
) -> None:
    wheel: TimingWheel[int] = TimingWheel()
    due_at: dict[int, float] = {}
    given_back: list[int] = []
    now = 1000.0
    for number, (what, value) in enumerate(script):
        if what == "add":
            due_at[number] = value
            wheel.add(value, number)
        else:
            now += value
            had_work = wheel.next_at <= now
            batch = wheel.due(now)
            assert bool(batch) == had_work
            assert all(due_at[entry] <= now for entry in batch)
            given_back += batch
        open_ones = set(due_at) - set(given_back)
        assert len(wheel) == len(open_ones)
        earliest = min((due_at[entry] for entry in open_ones), default=math.inf)
        assert earliest <= wheel.next_at
        if open_ones:
            assert wheel.next_at <= earliest + 1.01 * SLOT_S
    given_back += wheel.due(2000.0)
    assert sorted(given_back) == sorted(due_at)
    assert wheel.next_at == math.inf


@given(st.lists(times, max_size=50))
def test_wheel_emptied_at_once_gives_slots_in_order(at: list[float]) -> None:
    wheel: TimingWheel[float] = TimingWheel()
    for time in at:
        wheel.add(time, time)
    batch = wheel.due(2000.0)
    slots = [math.floor(time * SLOTS_PER_SECOND) for time in batch]
    assert slots == sorted(slots)


@given(times)
def test_wheel_entry_just_before_its_time_is_held(at: float) -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.add(at, "x")
    assert wheel.due(math.nextafter(at, 0)) == []
    assert wheel.due(at + 1.01 * SLOT_S) == ["x"]


def test_wheel_entries_of_one_slot_come_in_the_order_in_which_they_were_put_in() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    for entry in "abc":
        wheel.add(1000.0, entry)
    assert wheel.due(1000.004) == ["a", "b", "c"]


def test_wheel_entry_added_while_its_slot_is_due_comes_in_the_next_turn() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.add(1000.0, "first")
    wheel.add(1000.5, "second")
    assert wheel.due(1000.004) == ["first"]
    wheel.add(1000.002, "late")
    assert wheel.next_at == 1000.004
    assert wheel.due(1000.004) == ["late"]
    assert repr(wheel) == "<TimingWheel entries=1 next_at=1000.504>"


def test_wheel_that_is_empty_has_nothing_due_ever() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    assert wheel.next_at == math.inf
    assert wheel.due(1e9) == []
    assert repr(wheel) == "<TimingWheel entries=0 next_at=inf>"
