"""The fastest answer of the last ten seconds, and when an answer is late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.latency import RoundTrip, WindowedMinimum, retransmission_s


def test_minimum_of_an_empty_window_is_zero() -> None:
    window = WindowedMinimum()
    assert window.get(1000.0) == 0.0
    assert window.until == 0.0


def test_minimum_holds_for_nine_seconds_and_is_gone_after_ten() -> None:
    window = WindowedMinimum()
    window.add(1000.0, 0.010)
    window.add(1001.0, 0.050)
    assert window.until == 1011.0
    assert window.get(1009.0) == 0.010
    assert window.get(1010.0) == 0.050
    assert window.get(1011.0) == 0.0


def test_minimum_after_a_long_pause_forgets_all() -> None:
    window = WindowedMinimum()
    window.add(1000.0, 0.010)
    window.add(1500.0, 0.300)
    assert window.get(1500.0) == 0.300


def test_minimum_beside_a_held_poll_stays_the_fast_answer() -> None:
    window = WindowedMinimum()
    window.add(1000.0, 0.020)
    window.add(1000.5, 1.020)
    assert window.get(1001.0) == 0.020


@given(
    st.lists(
        st.tuples(st.floats(0, 4, allow_nan=False), st.floats(0.001, 2, allow_nan=False)),
        min_size=1,
        max_size=40,
    )
)
def test_minimum_of_any_series_lies_between_those_of_nine_and_ten_seconds(
    series: list[tuple[float, float]],
) -> None:
    window = WindowedMinimum()
    now = 1000.0
    seen: list[tuple[float, float]] = []
    for pause, value in series:
        now += pause
        window.add(now, value)
        seen.append((now, value))
        got = window.get(now)
        assert min(v for at, v in seen if at > now - 10.0) <= got
        assert got <= min(v for at, v in seen if at >= now - 9.0)
        assert window.until == now + 10.0


def test_round_trip_at_the_first_sample_has_half_of_it_for_deviation() -> None:
    trip = RoundTrip()
    trip.add(1, 0.080, 0.080)
    assert repr(trip) == "<RoundTrip mean=0.0800 deviation=0.0400>"


def test_round_trip_of_one_sample_moves_by_the_rfcs_gains() -> None:
    trip = RoundTrip(0.080, 0.040)
    trip.add(1, 0.160, 0.080)
    assert trip.mean == pytest.approx(0.080 + 0.080 / 8)
    assert trip.deviation == pytest.approx(0.040 + 0.040 / 4)


@given(st.integers(1, 200), st.floats(0.001, 2.0), st.floats(0.0, 1.0))
def test_round_trip_of_a_batch_weighs_as_much_as_its_samples_one_by_one(
    samples: int, value: float, deviation: float
) -> None:
    at_once, one_by_one = RoundTrip(0.050, 0.010), RoundTrip(0.050, 0.010)
    at_once.add(samples, value * samples, deviation * samples)
    for _ in range(samples):
        one_by_one.add(1, value, deviation)
    assert at_once.mean == pytest.approx(one_by_one.mean)
    assert at_once.deviation == pytest.approx(one_by_one.deviation)


@pytest.mark.parametrize(
    ("mean", "deviation", "per_attempt_s", "expected"),
    [
        (0.0, 0.0, 2.0, 1.0),  # unknown: the first second
        (0.0, 0.0, 0.5, 0.5),
        (0.100, 0.025, 2.0, 0.200),
        (0.001, 0.000, 2.0, 0.020),  # a quick resolver: not below the floor
        (0.800, 0.500, 2.0, 2.0),  # never beyond the attempt itself
        (0.001, 0.000, 0.010, 0.010),
    ],
)
def test_retransmission_time_keeps_its_bounds(
    mean: float, deviation: float, per_attempt_s: float, expected: float
) -> None:
    assert retransmission_s(mean, deviation, per_attempt_s) == pytest.approx(expected)
