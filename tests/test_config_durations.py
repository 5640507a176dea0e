"""Durations as a person writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config_errors import DurationError
from relay.durations import duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("300ms", 0.3),
        ("5s", 5.0),
        ("1m", 60.0),
        ("1m30s", 90.0),
        ("1.5s", 1.5),
        ("2h", 7200.0),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("0", 0.0),
        ("0s", 0.0),
        (" 5s ", 5.0),
    ],
)
def test_parse_duration_accepted_form_gives_seconds(text: str, duration_s: float) -> None:
    assert parse_duration(text) == pytest.approx(duration_s)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", 'a duration needs a unit; did you mean "5s"?'),
        ("5 s", 'not a duration; did you mean "5s"?'),
        ("5sec", 'did you mean "5s"?'),
        ("2 Minutes", 'did you mean "2m"?'),
        ("300 msec", 'did you mean "300ms"?'),
        ("1d", 'not a duration such as "300ms", "5s" or "1m"'),
        ("", "not a duration"),
        ("-5s", "not a duration"),
        ("5s5", "not a duration"),
        (".5s", "not a duration"),
        ("1e3s", "not a duration"),
        ("\u0665s", "not a duration"),
        ("9" * 40 + "s", "not a duration"),
    ],
)
def test_parse_duration_wrong_text_says_why(text: str, message: str) -> None:
    with pytest.raises(DurationError) as caught:
        parse_duration(text)

    assert message in str(caught.value)


@given(st.text(max_size=20))
def test_parse_duration_any_text_gives_seconds_or_its_own_error(text: str) -> None:
    try:
        found: float | str = parse_duration(text)
    except DurationError as error:
        found = str(error)

    assert found.isprintable() if isinstance(found, str) else found >= 0


@given(st.integers(1, 86_400_000))
def test_duration_text_of_milliseconds_reads_back(milliseconds: int) -> None:
    assert parse_duration(duration_text(milliseconds / 1e3)) == pytest.approx(milliseconds / 1e3)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 999))
def test_parse_duration_sum_of_parts_adds_up(minutes: int, seconds: int, ms: int) -> None:
    found = parse_duration(f"{minutes}m{seconds}s{ms}ms")

    assert found == pytest.approx(minutes * 60 + seconds + ms / 1e3)
