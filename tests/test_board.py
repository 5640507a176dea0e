"""The shared board: where its words lie, what attaches and what does not, whole words."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import layout
from shared.board import MAX_POOLS, MAX_SLOTS, MAX_WORKERS, Board
from shared.errors import LayoutMismatch, RelayError
from shared.layout import Layout

HEADER = {
    "magic": layout.HEADER_MAGIC,
    "version": layout.HEADER_VERSION,
    "workers": layout.HEADER_WORKERS,
    "pools": layout.HEADER_POOLS,
    "slots": layout.HEADER_SLOTS,
}

words_of_64_bits = st.integers(-(1 << 63), (1 << 63) - 1)


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.create(3, 2, 5)
    yield made
    made.close()


# -- layout -------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 20))
def test_layout_gives_every_block_its_own_words_inside_the_board(
    workers: int, pools: int, slots: int
) -> None:
    at = Layout(workers, pools, slots)
    blocks = [(0, layout.HEADER_WORDS)]
    blocks += [(at.worker(worker), layout.WORKER_WORDS) for worker in range(workers)]
    blocks += [(at.ring(worker), layout.RING_WORDS) for worker in range(workers)]
    blocks += [
        (at.pool(worker, pool), layout.POOL_WORDS)
        for worker in range(workers)
        for pool in range(pools)
    ]
    blocks += [(at.resolver(slot), layout.RESOLVER_WORDS) for slot in range(slots)]
    blocks += [
        (at.counters(worker, slot), layout.COUNTER_WORDS)
        for worker in range(workers)
        for slot in range(slots)
    ]
    blocks.sort()
    ends = [start + size for start, size in blocks]
    assert [start for start, _ in blocks] == [0, *ends[:-1]]
    assert ends[-1] * layout.WORD_SIZE_BYTES == at.size_bytes


@pytest.mark.parametrize(
    ("prefix", "size"),
    [
        ("HEADER", layout.HEADER_WORDS),
        ("WORKER", layout.WORKER_WORDS),
        ("POOL", layout.POOL_WORDS),
        ("RESOLVER", layout.RESOLVER_WORDS),
        ("COUNTER", layout.COUNTER_WORDS),
    ],
)
def test_layout_words_of_a_block_are_different_and_inside_it(prefix: str, size: int) -> None:
    offsets = [
        value
        for name, value in vars(layout).items()
        if name.startswith(f"{prefix}_") and name != f"{prefix}_WORDS"
    ]
    if prefix == "POOL":
        offsets += [layout.POOL_DROPPED + n for n in range(1, len(layout.DROP_REASONS))]
    assert len(set(offsets)) == len(offsets)
    assert all(0 <= offset < size for offset in offsets)


# -- create and attach --------------------------------------------------------------------------


def test_board_that_is_created_is_zero_but_for_its_header_and_keepers(board: Board) -> None:
    at = board.at
    expected = [0] * (at.size_bytes // 8)
    expected[:5] = [layout.MAGIC, layout.VERSION, 3, 2, 5]
    for slot in range(5):
        expected[at.resolver(slot) + layout.RESOLVER_KEEPER] = -1
    assert board.words.tolist() == expected
    assert repr(board) == "<Board workers=3 pools=2 slots=5>"


def test_board_that_is_attached_shows_the_same_words(board: Board) -> None:
    other = Board.attach(os.dup(board.fd))
    assert other.at == board.at
    board.words[board.at.counters(2, 4)] = 77
    assert other.words[other.at.counters(2, 4)] == 77
    other.words[5] = -(1 << 63)
    assert board.words[5] == -(1 << 63)
    other.close()
    assert board.words[5] == -(1 << 63)


def test_board_has_no_name_in_the_file_system_and_is_not_inherited_unasked(board: Board) -> None:
    assert not os.get_inheritable(board.fd)
    assert "memfd:relay-board" in os.readlink(f"/proc/self/fd/{board.fd}")


def test_board_handed_to_another_process_is_shared_both_ways(board: Board) -> None:
    code = (
        "import sys\n"
        "from shared.board import Board\n"
        "board = Board.attach(int(sys.argv[1]))\n"
        "board.words[board.at.worker(1)] = board.words[board.at.worker(0)] + 1\n"
    )
    board.words[board.at.worker(0)] = 41
    subprocess.run(
        [sys.executable, "-c", code, str(board.fd)],
        pass_fds=[board.fd],
        check=True,
        timeout=30,
        cwd=Path(__file__).parent.parent,
    )
    assert board.words[board.at.worker(1)] == 42


@pytest.mark.parametrize(
    ("workers", "pools", "slots", "named"),
    [
        (0, 1, 1, "workers"),
        (MAX_WORKERS + 1, 1, 1, "workers"),
        (1, 0, 1, "pools"),
        (1, MAX_POOLS + 1, 1, "pools"),
        (1, 1, 0, "slots"),
        (1, 1, MAX_SLOTS + 1, "slots"),
        (-1, 1, 1, "workers"),
    ],
)
def test_board_of_impossible_dimensions_is_refused_by_name(
    workers: int, pools: int, slots: int, named: str
) -> None:
    with pytest.raises(RelayError, match=named):
        Board.create(workers, pools, slots)


def test_board_of_the_greatest_dimensions_takes_no_memory_until_it_is_used() -> None:
    board = Board.create(4, 1, MAX_SLOTS)
    assert os.fstat(board.fd).st_size == board.at.size_bytes
    per_worker = MAX_SLOTS * layout.COUNTER_WORDS * 8
    assert os.fstat(board.fd).st_blocks * 512 < board.at.size_bytes - 3 * per_worker
    board.close()


@given(st.sampled_from(sorted(HEADER)), words_of_64_bits)
def test_attach_to_a_board_with_any_header_word_changed_is_refused(name: str, value: int) -> None:
    board = Board.create(3, 2, 5)
    try:
        if board.words[HEADER[name]] == value:
            return
        board.words[HEADER[name]] = value
        with pytest.raises(LayoutMismatch):
            Board.attach(board.fd)
    finally:
        board.close()


@given(st.integers(-4096, 4096).filter(bool))
def test_attach_to_a_board_of_another_size_is_refused(change: int) -> None:
    board = Board.create(3, 2, 5)
    fd = os.dup(board.fd)
    size = board.at.size_bytes
    board.close()
    try:
        os.ftruncate(fd, max(0, size + change))
        with pytest.raises(LayoutMismatch, match="board"):
            Board.attach(fd)
    finally:
        os.close(fd)


@given(st.binary(max_size=300))
def test_attach_to_any_other_file_is_refused(content: bytes) -> None:
    fd = os.memfd_create("not-a-board")
    try:
        os.write(fd, content)
        with pytest.raises(LayoutMismatch):
            Board.attach(fd)
    finally:
        os.close(fd)


def test_attach_to_a_board_of_another_version_names_both(board: Board) -> None:
    board.words[layout.HEADER_VERSION] = layout.VERSION + 1
    with pytest.raises(LayoutMismatch, match=rf"{layout.VERSION + 1}.*{layout.VERSION}"):
        Board.attach(board.fd)


def test_attach_that_is_refused_leaves_the_descriptor_open(board: Board) -> None:
    board.words[layout.HEADER_MAGIC] = 0
    with pytest.raises(LayoutMismatch):
        Board.attach(board.fd)
    assert os.fstat(board.fd).st_size == board.at.size_bytes


# -- slots and sums -----------------------------------------------------------------------------


def test_clear_slot_zeroes_its_words_in_all_workers_and_no_other(board: Board) -> None:
    words, at = board.words, board.at
    for position in range(layout.HEADER_WORDS, at.size_bytes // 8):
        words[position] = position
    before = words.tolist()
    board.clear_slot(2)
    after = words.tolist()
    cleared = set(range(at.resolver(2), at.resolver(3)))
    for worker in range(3):
        first = at.counters(worker, 2)
        cleared |= set(range(first, first + layout.COUNTER_WORDS))
    for position, value in enumerate(after):
        if position == at.resolver(2) + layout.RESOLVER_KEEPER:
            assert value == -1
        else:
            assert value == (0 if position in cleared else before[position])


def test_totals_sum_over_all_workers(board: Board) -> None:
    for worker in range(3):
        board.words[board.at.counters(worker, 4) + layout.COUNTER_LOST] = 10**worker
        board.words[board.at.pool(worker, 1) + layout.POOL_HEDGES] = 2 * 10**worker
    assert board.counter_total(4, layout.COUNTER_LOST) == 111
    assert board.counter_total(3, layout.COUNTER_LOST) == 0
    assert board.pool_total(1, layout.POOL_HEDGES) == 222
    assert board.pool_total(0, layout.POOL_HEDGES) == 0


# -- words are whole ----------------------------------------------------------------------------


def test_words_written_by_another_process_are_never_seen_torn(board: Board) -> None:
    # Two values that differ in every byte: a torn read would mix them.
    low, high = 0x0101010101010101, 0x7E7E7E7E7E7E7E7E
    position = board.at.resolver(0)
    board.words[position] = low
    code = (
        "import sys\n"
        "from shared.board import Board\n"
        "words = Board.attach(int(sys.argv[1])).words\n"
        f"at, low, high = {position}, {low}, {high}\n"
        "print('go', flush=True)\n"
        "while words[0]:\n"
        "    for _ in range(1000):\n"
        "        words[at] = high\n"
        "        words[at] = low\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(board.fd)],
        pass_fds=[board.fd],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"go\n"
        seen: set[int] = set()
        reads, give_up_at = 0, monotonic() + 10.0
        while (reads < 200_000 or len(seen) < 2) and monotonic() < give_up_at:
            seen |= {board.words[position] for _ in range(1_000)}
            reads += 1_000
        board.words[0] = 0
        assert writer.wait(30) == 0
    assert seen <= {low, high}
    assert len(seen) == 2


def test_words_are_aligned_to_their_size(board: Board) -> None:
    assert board.words.itemsize == layout.WORD_SIZE_BYTES
    assert board.words.format == "q"
    assert mmap.PAGESIZE % layout.WORD_SIZE_BYTES == 0
