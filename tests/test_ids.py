"""IDs on the resolver side: random, and unique among those that are taken."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.transports.ids import RandomIds

ALL = [number.to_bytes(2, "big") for number in range(65_536)]


@given(st.sets(st.integers(0, 65_535), max_size=400), st.integers(1, 200))
def test_ids_drawn_are_never_taken_and_never_twice(taken: set[int], count: int) -> None:
    ids = RandomIds()
    table = {ALL[number]: None for number in taken}
    for _ in range(count):
        drawn = ids.draw(table)
        assert len(drawn) == 2
        assert drawn not in table
        table[drawn] = None
    assert len(table) == len(taken) + count


@pytest.mark.parametrize("free", [0, 1, 0x1234, 0xFFFF])
def test_ids_with_a_single_one_free_find_it(free: int) -> None:
    table = dict.fromkeys(ALL)
    del table[ALL[free]]
    assert RandomIds().draw(table) == ALL[free]


def test_ids_fill_a_quarter_of_their_space_without_repeating() -> None:
    ids = RandomIds()
    table: dict[bytes, None] = {}
    for _ in range(16_384):
        table[ids.draw(table)] = None
    assert len(table) == 16_384


def test_ids_are_spread_over_their_whole_space() -> None:
    # 32,000 draws into 256 parts: 125 each; 5 standard deviations are 56.
    ids = RandomIds()
    first, second = [0] * 256, [0] * 256
    for _ in range(32_000):
        drawn = ids.draw(())
        first[drawn[0]] += 1
        second[drawn[1]] += 1
    for counts in (first, second):
        assert min(counts) > 50
        assert max(counts) < 210


def test_ids_of_two_sources_do_not_follow_each_other() -> None:
    one, other = RandomIds(), RandomIds()
    assert [one.draw(()) for _ in range(32)] != [other.draw(()) for _ in range(32)]


def test_ids_follow_no_pattern_from_one_to_the_next() -> None:
    ids = RandomIds()
    drawn = [int.from_bytes(ids.draw(()), "big") for _ in range(2_000)]
    steps = {(b - a) & 0xFFFF for a, b in pairwise(drawn)}
    assert len(steps) > 1_900
