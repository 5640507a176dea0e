"""The loss estimate: a share with its uncertainty, fading with time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.loss import LossEstimate


def test_loss_before_anything_ended_is_unknown() -> None:
    loss = LossEstimate(1000.0)
    assert loss.ratio == 0.0
    assert loss.interval() == (0.0, 1.0)
    assert repr(loss) == "<LossEstimate 0.0/0.0 [0.000, 1.000]>"


@pytest.mark.parametrize(
    ("answered", "lost", "low", "high"),
    [
        # Wilson's interval at 95 %, from tables.
        (10, 0, 0.0, 0.2775),
        (9, 1, 0.0179, 0.4042),
        (45, 5, 0.0435, 0.2136),
        (0, 10, 0.7225, 1.0),
        (500, 500, 0.4691, 0.5309),
    ],
)
def test_loss_interval_is_wilsons(answered: int, lost: int, low: float, high: float) -> None:
    loss = LossEstimate(1000.0)
    loss.count(1000.0, answered, lost)
    assert loss.interval() == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert loss.ratio == pytest.approx(lost / (answered + lost))


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_loss_interval_holds_the_share_whatever_was_counted(answered: int, lost: int) -> None:
    loss = LossEstimate(1000.0)
    loss.count(1000.0, answered, lost)
    low, high = loss.interval()
    assert 0.0 <= low <= loss.ratio + 1e-12
    assert loss.ratio - 1e-12 <= high <= 1.0


def test_loss_after_the_half_life_weighs_half() -> None:
    loss = LossEstimate(1000.0)
    loss.count(1000.0, 60, 40)
    loss.count(1010.0, 50, 0)
    assert loss.ended == pytest.approx(100.0)
    assert loss.lost == pytest.approx(20.0)


def test_loss_after_a_long_time_is_forgotten() -> None:
    loss = LossEstimate(1000.0)
    loss.count(1000.0, 0, 1000)
    loss.count(1300.0, 100, 0)
    assert loss.ratio < 0.001


def test_loss_of_one_sample_says_little() -> None:
    loss = LossEstimate(1000.0)
    loss.count(1000.0, 0, 1)
    low, high = loss.interval()
    assert low < 0.21
    assert high == 1.0
