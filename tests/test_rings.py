"""The rings by which workers tell keepers whose counters moved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import rings
from shared.board import Board
from shared.layout import RING_SLOTS


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.create(2, 1, 4)
    yield made
    made.close()


def test_ring_nothing_pushed_reads_nothing(board: Board) -> None:
    assert rings.read(board.words, board.at.ring(0), 0) == (0, [])


def test_ring_of_one_worker_is_not_that_of_another(board: Board) -> None:
    rings.push(board.words, board.at.ring(0), 3)
    assert rings.read(board.words, board.at.ring(0), 0) == (1, [3])
    assert rings.read(board.words, board.at.ring(1), 0) == (0, [])


@given(st.lists(st.lists(st.integers(0, 65_535), max_size=RING_SLOTS // 2), max_size=20))
def test_ring_read_after_every_batch_gives_all_in_order(batches: list[list[int]]) -> None:
    board = Board.create(1, 1, 1)
    try:
        seen = 0
        for batch in batches:
            for slot in batch:
                rings.push(board.words, board.at.ring(0), slot)
            seen, read = rings.read(board.words, board.at.ring(0), seen)
            assert read == batch
    finally:
        board.close()


def test_ring_reader_that_is_too_slow_is_told_so(board: Board) -> None:
    ring = board.at.ring(0)
    for slot in range(RING_SLOTS // 2 + 1):
        rings.push(board.words, ring, slot)
    seen, read = rings.read(board.words, ring, 0)
    assert read is None
    assert rings.read(board.words, ring, seen) == (seen, [])


def test_ring_read_from_beyond_its_head_starts_over(board: Board) -> None:
    assert rings.read(board.words, board.at.ring(0), 7) == (0, None)
