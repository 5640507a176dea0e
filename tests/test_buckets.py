"""Token buckets of one word: exact with one taker, and bounded when several read at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import buckets, layout
from shared.board import Board

NS = 1_000_000_000
START = 5 * NS


@pytest.fixture
def words() -> Iterator[memoryview[int]]:
    board = Board.create(1, 1, 1)
    yield board.words
    board.close()


AT = layout.HEADER_WORDS + layout.WORKER_WORDS + layout.POOL_WORDS + layout.RESOLVER_BUCKET_AT


class OneWord:
    """A word that several takers can read before any of them writes."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.seen: int | None = None

    def __getitem__(self, position: int) -> int:
        return self.value if self.seen is None else self.seen

    def __setitem__(self, position: int, value: int) -> None:
        self.value = value

    def take(self, now_ns: int, interval_ns: int, burst_ns: int) -> bool:
        return buckets.take(cast("memoryview[int]", self), 0, now_ns, interval_ns, burst_ns)


intervals = st.integers(1_000, 2 * NS)
pauses = st.lists(st.integers(0, 3 * NS), min_size=1, max_size=80)


def most_in(span_ns: int, interval_ns: int, burst_ns: int) -> int:
    """The bound: one token now, those that had piled up, and those that came meanwhile."""
    return 1 + (burst_ns + span_ns) // interval_ns


@given(intervals, st.integers(0, 5 * NS), pauses)
def test_bucket_with_one_taker_never_gives_more_than_burst_and_rate(
    interval_ns: int, burst_ns: int, steps: list[int]
) -> None:
    word = OneWord(0)
    now = START
    taken: list[int] = []
    for step in steps:
        now += step
        while len(taken) < 200 and word.take(now, interval_ns, burst_ns):
            taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            bound = most_in(taken[last] - taken[first], interval_ns, burst_ns)
            assert last - first + 1 <= bound


@given(intervals, st.integers(0, 40))
def test_bucket_after_a_long_pause_gives_exactly_its_burst_and_one(
    interval_ns: int, tokens: int
) -> None:
    word = OneWord(0)
    taken = 0
    while word.take(START * 100, interval_ns, tokens * interval_ns):
        taken += 1
    assert taken == tokens + 1


@given(intervals, st.integers(2, 8), st.integers(0, 20), pauses)
def test_bucket_read_by_n_takers_at_once_gives_at_most_n_less_one_too_many(
    interval_ns: int, takers: int, tokens: int, steps: list[int]
) -> None:
    word = OneWord(0)
    burst_ns = tokens * interval_ns
    now = START
    took: list[int] = []
    # One race: all read the word before anyone has written it.
    word.seen = word.value
    took += [now] * sum(word.take(now, interval_ns, burst_ns) for _ in range(takers))
    word.seen = None
    for step in steps:
        now += step
        while len(took) < 200 and word.take(now, interval_ns, burst_ns):
            took.append(now)
    for last in range(len(took)):
        bound = most_in(took[last] - took[0], interval_ns, burst_ns)
        assert last + 1 <= bound + takers - 1


@given(intervals, st.integers(1, 60))
def test_bucket_asked_all_the_time_keeps_its_rate(interval_ns: int, seconds: int) -> None:
    word = OneWord(START)
    end = START + seconds * NS
    now, taken = START, 0
    while now < end and taken < 2000:
        if word.take(now, interval_ns, 0):
            taken += 1
            now = word.value  # nobody is earlier
        assert now > START
    assert taken == min(2000, -(-seconds * NS // interval_ns))


def test_bucket_of_20_a_second_over_four_takers_gives_20_a_second(words: memoryview[int]) -> None:
    taken = [0] * 4
    for step in range(10_000):  # ten seconds, every millisecond
        for taker in range(4):
            taken[taker] += buckets.take(words, AT, START + step * 1_000_000, NS // 20, 0)
    assert sum(taken) == 200


def test_bucket_that_is_held_gives_nothing_until_then(words: memoryview[int]) -> None:
    buckets.hold_until(words, AT, START + NS)
    assert not buckets.take(words, AT, START, 1000, 100 * NS)
    assert not buckets.take(words, AT, START + NS - 1, 1000, 100 * NS)
    assert buckets.take(words, AT, START + NS, 1000, 100 * NS)


def test_bucket_that_is_held_until_now_has_a_token_at_once(words: memoryview[int]) -> None:
    words[AT] = START + 100 * NS
    buckets.hold_until(words, AT, 0)
    assert buckets.take(words, AT, START, NS, 0)
    assert not buckets.take(words, AT, START, NS, 0)
